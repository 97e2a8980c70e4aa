"""Titled tables on a page, in a terminal, in Markdown and LaTeX; frames as files."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import Any, Final, Literal

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from raybias.storage import Store
from raybias.table_files import csv_text

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
    whole = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
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
        plain = tabulate(self.rows, self.headers, colalign=self._sides, disable_numparse=True)
        if width is None or max(map(len, plain.splitlines()), default=0) <= width:
            return plain
        columns = range(len(self.headers))
        shared = [len(self.rows) > 1 and len({row[i] for row in self.rows}) == 1 for i in columns]
        own = [i for i in columns if not shared[i]] or [*columns]
        laid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i in own:
            laid.add_column(Text(self.headers[i]), justify=self._sides[i], overflow="fold")
        for row in self.rows:
            laid.add_row(*(Text(row[i]) for i in own))
        written = StringIO()
        console = Console(file=written, width=width, color_system=None)
        said = [f"{self.headers[i]} {self.rows[0][i]}" for i in columns
                if i not in own and self.rows[0][i]]  # fmt: skip
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
