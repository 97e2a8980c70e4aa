"""Fill the templates of pages: everything is escaped, and nothing is asked of any server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

#: Stands in a template where the list of its sections is to be.
_CONTENTS: Final = "<!--contents-->"
_SECTION: Final = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>', re.DOTALL)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("raybias.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    script = environment.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # A browser runs no other script and fetches nothing, whatever a name or a sentence holds.
    environment.globals |= {
        "script": Markup(script),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
    }
    return environment


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Fill a template of this folder; every text is escaped, and a missing one is an error.

    The list of the page's sections takes the place of `<!--contents-->`.
    """
    page = _environment().get_template(template).render(context)
    links = "".join(
        f'<li><a href="#{name}">{title}</a></li>' for name, title in _SECTION.findall(page)
    )
    return page.replace(_CONTENTS, links, 1)
