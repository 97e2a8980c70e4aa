"""Fill the templates of pages and figures: everything is escaped, nothing is asked of a server."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from raybias.storage import Store

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
    """Fill a template; its sections are listed at `<!--contents-->`, a missing text is an error."""
    page = _environment().get_template(template).render(context)
    links = "".join(
        f'<li><a href="#{name}">{title}</a></li>' for name, title in _SECTION.findall(page)
    )
    return page.replace(_CONTENTS, links, 1)


@dataclass(frozen=True)
class Drawn:
    """One finished figure."""

    name: str
    """Its file name in OUT/figures, without suffix."""
    svg: str
    """Without ids or colours of its own, so that a page can hold several, light or dark."""


@dataclass(frozen=True)
class Shown:
    """Figures that show themselves in a notebook."""

    figures: tuple[Drawn, ...]

    def _repr_html_(self) -> str:
        ink = "--paper: #ffffff; --faint: #5d6876; color: #16202b; background: #ffffff"
        return f'<div style="{ink}">{"".join(one.svg for one in self.figures)}</div>'

    def save(self, folder: str | Path) -> None:
        """Write each figure to a folder as SVG; `OutputError` where that cannot be written."""
        write_figures(Store(folder), self.figures)


def write_figures(store: Store, figures: Iterable[Drawn], folder: str = "") -> None:
    """Write each figure as SVG to a folder of a store."""
    for figure in figures:
        store.write_text(f"{folder}{figure.name}.svg", figure.svg)


def slug(*parts: str) -> str:
    """Return a file name of the parts; a hash keeps apart parts that are no file names."""
    text = ".".join(parts)
    safe = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).strip(".-")[:120]
    if safe == text:
        return safe
    return f"{safe}.{hashlib.blake2b(text.encode('utf-8'), digest_size=4).hexdigest()}"


def round_values(low: float, high: float, most: int) -> list[float]:
    """Return at most about `most` round values from `low` to `high`, for the marks of a scale."""
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [place * step for place in range(first, last + 1)]
