"""What a figure is: a name, a title and its SVG; and how it is written and put into a page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from raybias.report.figure_style import inline
from raybias.storage import Store


@dataclass(frozen=True)
class Drawn:
    """One finished figure."""

    name: str
    """Its file name in OUT/figures, without suffix."""
    title: str
    svg: str


@dataclass(frozen=True)
class Shown:
    """Figures that a notebook shows."""

    figures: tuple[Drawn, ...]

    def _repr_html_(self) -> str:
        ink = "--paper: #ffffff; --faint: #5d6876; color: #16202b; background: #ffffff"
        return f'<div style="{ink}">{Markup().join(inlined(self.figures, "n"))}</div>'

    def save(self, folder: str | Path) -> None:
        """Write each figure to a folder as SVG.

        Raises
        ------
        OutputError: it cannot be written.
        """
        store = Store(folder)
        for figure in self.figures:
            store.write_text(f"{figure.name}.svg", figure.svg)


def write_figures(store: Store, figures: Iterable[Drawn]) -> None:
    """Write each figure to OUT/figures."""
    for figure in figures:
        store.write_text(f"figures/{figure.name}.svg", figure.svg)


def inlined(figures: Iterable[Drawn], prefix: str) -> tuple[Markup, ...]:
    """Return figures to put into a page, in order; their ids begin with `prefix`."""
    return tuple(Markup(inline(one.svg, f"{prefix}{i}")) for i, one in enumerate(figures))


def slug(*parts: str) -> str:
    """Return a file name of the parts; a hash keeps apart parts that are no file names."""
    text = ".".join(parts)
    safe = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).strip(".-")[:120]
    if safe == text:
        return safe
    return f"{safe}.{hashlib.blake2b(text.encode('utf-8'), digest_size=4).hexdigest()}"
