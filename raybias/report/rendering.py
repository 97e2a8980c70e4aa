"""Fill the templates of pages and figures, and lay out titled tables.

In a page everything is escaped and nothing is asked of a server. A table is shown on a page, in a
terminal, in Markdown and in LaTeX; frames are written as files.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from raybias.storage import Store
from raybias.table_files import csv_text
from raybias.terminal import visible_line

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


Row = Mapping[str, Any]
#: The text of a cell: a column of the row, or a function of it.
Cell = str | Callable[[Row], str]
_ONE: Final = r"[<+-]?[0-9][0-9,]*(\.[0-9]+)?(e[+-]?[0-9]+)?%?"
#: A number, with its interval and a short reason.
_NUMBER: Final = re.compile(rf"none|{_ONE}( \[{_ONE}, {_ONE}\])?( \([^)]{{,24}}\))?")
#: Where Markdown would begin HTML; `<0.001` is none.
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")


def markdown_text(text: str) -> str:
    """Escape a text, so that no viewer of Markdown finds HTML or a cell's end in it."""
    whole = visible_line(text.replace("\n", " ")).replace("\\", "\\\\").replace("|", "\\|")
    return _TAG.sub("&lt;", whole)


@dataclass(frozen=True)
class TextTable:
    """A titled table of texts."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, str]]) -> TextTable:
        """Make a table of rows with the same headers."""
        return cls(
            title, tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows)
        )

    @cached_property
    def kinds(self) -> list[str]:
        """Whether each column is `number` or `text`, for its alignment."""
        columns = ([row[i] for row in self.rows if row[i]] for i in range(len(self.headers)))
        return [
            "number" if values and all(map(_NUMBER.fullmatch, values)) else "text"
            for values in columns
        ]

    @property
    def _sides(self) -> list[Literal["left", "right"]]:
        return ["right" if kind == "number" else "left" for kind in self.kinds]

    def __str__(self) -> str:
        """Return the table as plain text below its title; in a terminal, within its width."""
        text = self.within(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        return f"{self.title}\n{text}" if self.title else text

    def within(self, width: int | None) -> str:
        """Lay the table out in lines of at most `width`; a wider one says once what rows share."""
        headers = [visible_line(header) for header in self.headers]
        rows = [[visible_line(cell) for cell in row] for row in self.rows]
        plain = tabulate(rows, headers, colalign=self._sides, disable_numparse=True)
        if width is None or max(map(len, plain.splitlines()), default=0) <= width:
            return plain
        columns = range(len(headers))
        shared = [len(rows) > 1 and len({row[i] for row in rows}) == 1 for i in columns]
        own = [i for i in columns if not shared[i]] or [*columns]
        laid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i in own:
            laid.add_column(Text(headers[i]), justify=self._sides[i], overflow="fold")
        for row in rows:
            laid.add_row(*(Text(row[i]) for i in own))
        written = StringIO()
        console = Console(file=written, width=width, color_system=None)
        said = [f"{headers[i]} {rows[0][i]}" for i in columns
                if i not in own and rows[0][i]]  # fmt: skip
        if said:
            console.print(Text("; ".join(said)), end="\n\n")
        console.print(laid)
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines())

    def markdown(self) -> str:
        """Format the table for a viewer of Markdown, without its title."""
        rows = [[markdown_text(value) for value in row] for row in self.rows]
        headers = [markdown_text(header) for header in self.headers]
        return tabulate(rows, headers, "pipe", disable_numparse=True) + "\n"

    def latex(self) -> str:
        """Format the table in LaTeX (booktabs); what LaTeX takes for a command is escaped."""
        body = tabulate(
            self.rows, self.headers, "latex_booktabs", colalign=self._sides, disable_numparse=True
        )
        return f"% {' '.join(self.title.split())}\n{body}\n"


def table(title: str, frame: pl.DataFrame, columns: Mapping[str, Cell]) -> TextTable:
    """Make a table with a row for each row of a frame, and a cell for each header."""
    rows = tuple(
        tuple(str(row[cell]) if isinstance(cell, str) else cell(row) for cell in columns.values())
        for row in frame.iter_rows(named=True)
    )
    return TextTable(title, tuple(columns), rows)


def same(*columns: str) -> dict[str, str]:
    """Return table columns that show a frame's columns under their names."""
    return {column: column for column in columns}


def count(column: str) -> Callable[[Row], str]:
    """Return a cell that shows a whole number, or nothing where there is none."""
    return lambda row: "" if row[column] is None else f"{row[column]:,}"


def worded(words: Callable[..., str], *columns: str) -> Callable[[Row], str]:
    """Return a cell that puts the values of some columns into words."""
    return lambda row: words(*(row[column] for column in columns))


def write_frame(store: Store, name: str, frame: pl.DataFrame, *, text: bool = True) -> None:
    """Write `name`.parquet and, if `text`, `name`.csv and `name`.md; NaN counts as missing."""
    floats = [column for column, dtype in frame.schema.items() if dtype.is_float()]
    frame = frame.with_columns(pl.col(floats).fill_nan(None))
    store.write_table(f"{name}.parquet", frame.to_arrow().replace_schema_metadata(None))
    if text:
        store.write_text(f"{name}.csv", csv_text(frame))
        store.write_text(f"{name}.md", markdown(frame))


def markdown(frame: pl.DataFrame) -> str:
    """Format a frame as a Markdown table: numbers to four digits, missing cells empty."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    rows = tuple(tuple(map(cell, row)) for row in frame.iter_rows())
    return TextTable("", tuple(frame.columns), rows).markdown()
