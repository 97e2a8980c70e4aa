"""Write the files that annotators are given, and read those that they return."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from raybias.probes.styles import annotation
from raybias.storage import Store
from raybias.table_files import csv_text


def export_annotation(pairs: pl.DataFrame, out: str) -> pl.DataFrame:
    """Write sheet.csv and guidelines.md; returns the sheet.

    Parameters
    ----------
    pairs: `schema.PAIRS` in the style `original` and in those that are to be judged.
    out: folder or URI.
    """
    original = pairs["style"] == "original"
    sheet = annotation.annotation_sheet(pairs.filter(original), pairs.filter(~original))
    store = Store(out)
    store.write_text("sheet.csv", csv_text(sheet))
    store.write_text("guidelines.md", annotation.GUIDELINES)
    return sheet


def import_annotation(sheet: str, files: Sequence[str], out: str) -> dict[str, pl.DataFrame]:
    """Read annotators' labels, and write four tables as CSV.

    Returns them by name: `shares` of labels and `agreement` by style, pairs to be `kept`, and
    pairs to `rewrite`.

    Parameters
    ----------
    sheet: that the annotators were given.
    files: one of each annotator.
    out: folder or URI.

    Raises
    ------
    DataError: see `annotation.read_sheet` and `annotation.read_labels`.
    """
    given = annotation.read_sheet(sheet)
    labels = annotation.read_labels(given, files)
    kept, rest = annotation.kept_and_rest(given, labels)
    tables = {
        "shares": annotation.label_shares(labels),
        "agreement": annotation.agreement(labels),
        "kept": kept,
        "rewrite": rest,
    }
    store = Store(out)
    for name, frame in tables.items():
        store.write_text(f"{name}.csv", csv_text(frame))
    return tables
