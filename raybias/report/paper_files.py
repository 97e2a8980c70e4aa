"""The parts of figures and tables that are laid out as papers lay them out.

A file is named after its paper, its place there (if the paper has it) and its content, such as
`tian2023-figure-2-positive-gap-sexuality.svg` or `zhao2025-table-3-winobias.csv`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.report import wording
from raybias.report.rendering import Cell, Drawn, Row, TextTable
from raybias.report.rendering import slug as file_slug
from raybias.schema import ALL, LIKELIHOOD
from raybias.storage import Store
from raybias.table_files import csv_text

#: Where they are written in OUT.
FOLDER: Final = "figures/paper/"


@dataclass(frozen=True)
class PaperInputs:
    """What a study found, and the names that its papers' layouts need."""

    estimates: pl.DataFrame
    """Of schema.ESTIMATES."""
    gaps: pl.DataFrame
    """Gaps under the scope that decides, a row each (`Judged.gaps`)."""
    composition: pl.DataFrame | None
    """Of `stats.counts.composition`; None without probes."""
    models: Sequence[str]
    """In the order of their sizes, or of the study if a size is not known."""
    ways: Mapping[str, str]
    """`soft_prompt`, `tuned` or `prompted`, by the method's name; in the order of the study."""
    sources: Mapping[str, str]
    """What each probe and each set of pairs was read from, by its name."""
    intervals: str
    """What intervals are, in words."""
    pair_items: Mapping[str, pl.DataFrame]
    """Pairs of sentences in all styles (schema.PAIRS), by the name of their probe."""

    def of_way(self, table: pl.DataFrame, way: str) -> pl.DataFrame:
        """Select the rows of methods of one way, by method, training set and model in order."""
        names = [name for name, each in self.ways.items() if each == way]
        names += [name + LIKELIHOOD for name in names]
        part = table.filter(pl.col("method").is_in(names))
        return part.sort(
            ordered("method", names),
            "dataset",
            ordered("model", self.models),
            "probe",
            pl.col("attribute") == ALL,
            "attribute",
            "group",
            maintain_order=True,
        )


@dataclass(frozen=True)
class PaperTable:
    """A table in full precision, and as it is laid out in print."""

    name: str
    frame: pl.DataFrame
    shown: TextTable

    def write(self, store: Store, folder: str) -> None:
        """Write the table as CSV, and its layout as Markdown."""
        store.write_text(f"{folder}{self.name}.csv", csv_text(self.frame))
        text = f"**{self.shown.title}**\n\n{self.shown.markdown()}"
        store.write_text(f"{folder}{self.name}.md", text)


#: A figure or a table.
Filed = Drawn | PaperTable


def ordered(column: str, names: Sequence[str], *, others_first: bool = False) -> pl.Expr:
    """Return the place of a column's text among names; other texts are after or before them."""
    place = {name: number for number, name in enumerate(names)}
    other = -1 if others_first else len(place)
    return pl.col(column).replace_strict(place, default=other, return_dtype=pl.Int64)


def file_name(*parts: str) -> str:
    """Join the parts of a file's name that are not empty, such as `tian2023-table-1`."""
    text = "-".join(filter(None, parts)).lower()
    return file_slug(re.sub(r"[-_\s]+", "-", text))


def only_if_several(table: pl.DataFrame, *columns: str) -> list[str]:
    """List the columns in which the rows of a table differ."""
    return [column for column in columns if table[column].n_unique() > 1]


def joined(columns: Sequence[str]) -> pl.Expr:
    """Join the texts of some columns, without those that are empty or `none`, for people."""
    texts = [pl.when(~pl.col(c).is_in(["", "none"])).then(c) for c in columns]
    if not texts:
        return pl.lit("")
    return pl.concat_str(texts, separator=", ", ignore_nulls=True)


def crossed(
    title: str, table: pl.DataFrame, rows: Mapping[str, Cell], column: Cell, cell: Cell
) -> TextTable:
    """Lay out long rows: `rows` begin each line, and a column for each of `column` has cells."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    heads: dict[str, None] = {}
    for row in table.iter_rows(named=True):
        key = tuple(_text(each, row) for each in rows.values())
        head = _text(column, row)
        heads[head] = None
        lines.setdefault(key, {})[head] = _text(cell, row)
    whole = tuple((*key, *(cells.get(head, "") for head in heads)) for key, cells in lines.items())
    return TextTable(title, (*rows, *heads), whole)


def _text(cell: Cell, row: Row) -> str:
    return wording.spaced(str(row[cell])) if isinstance(cell, str) else cell(row)
