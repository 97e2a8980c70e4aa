"""Items as one Parquet or CSV file, whole or not at all, in any place a `Store` reaches."""

from __future__ import annotations

import polars as pl

from raybias.errors import OutputError
from raybias.probes.files import split_uri
from raybias.schema import ITEMS


def output_suffix(uri: str) -> str:
    """`.csv` or `.parquet`; `OutputError` for any other name, so that it is refused before work."""
    for suffix in (".csv", ".parquet"):
        if uri.endswith(suffix):
            return suffix
    raise OutputError(f"cannot write {uri!r}", cure="end its name in .parquet or .csv")


def write_items(items: pl.DataFrame, uri: str) -> None:
    """Replace the file at `uri` by the items (schema.ITEMS), atomically."""
    suffix = output_suffix(uri)
    store, name = split_uri(uri)
    if suffix == ".csv":
        store.write_text(name, items.select(ITEMS.names).write_csv())
    else:
        store.write_table(name, items.select(ITEMS.names).to_arrow().cast(ITEMS))
