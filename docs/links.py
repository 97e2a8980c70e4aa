"""A hook of mkdocs: links of notebooks to other pages, which mkdocs rewrites in Markdown alone."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Return a page's HTML, with links to a source file leading to that file's page.

    Raises:
        ValueError: if a notebook links to a file that the site does not have.
    """
    if not page.file.src_uri.endswith(".ipynb"):
        return html

    def led(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[1])
        if file is None:
            raise ValueError(f"{page.file.src_uri}: no page {found[1]} to link to")
        return f'href="{file.url_relative_to(page.file)}'

    return re.sub(r'href="([\w/]+\.(?:md|ipynb))(?=["#])', led, html)
