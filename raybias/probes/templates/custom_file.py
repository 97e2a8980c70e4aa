"""Read a user's own probe: one CSV, TSV or Parquet file of labelled sentences about groups.

Columns text, label, attribute and group are needed; item_id, template_id, term and
family (of templates that are alike) are taken where they are there. Other columns are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from raybias.errors import DataError
from raybias.probes.card_table import own_table
from raybias.probes.column_checks import (
    as_text,
    column,
    distinct,
    filled,
    filled_columns,
    label_numbers,
)
from raybias.probes.planted import planted_items
from raybias.probes.registries import probe


@probe(
    "file",
    about="your own sentences: text, label, attribute, group",
    data="one .csv, .tsv, .jsonl or .parquet file, or a card",
)
def own_items(uri: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
    """Read the items of one file (schema.ITEMS), in its order.

    Without item_id, items are numbered after the file's name; without
    template_id, every item is a cluster of its own; without term, it is null.

    Raises
    ------
    DataError: no such file or column, a label outside the three, an empty text,
        attribute or group, a repeated item_id, or no rows.
    """
    frame, stem = own_table(uri, "label")
    if frame.is_empty():
        raise DataError("holds no rows", where=uri)
    items = filled_columns(frame, ("text", "attribute", "group"), where=uri).with_columns(
        label=label_numbers(column(frame, "label", where=uri), where=uri)
    )
    if "item_id" in frame.columns:
        ids = distinct(filled(frame["item_id"], where=uri), where=uri)
    else:
        ids = pl.Series([f"{stem}/{row:05d}" for row in range(len(frame))])
    clusters = filled(frame["template_id"], where=uri) if "template_id" in frame.columns else ids
    term = as_text(frame["term"], where=uri) if "term" in frame.columns else None
    family = as_text(frame["family"], where=uri) if "family" in frame.columns else None
    return items.with_columns(item_id=ids, template_id=clusters, term=term, family=family)


@probe("planted", about="embedded calibration over invented groups")
def _items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    return planted_items()
