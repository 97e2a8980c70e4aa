"""Write tables as one Parquet or CSV file, atomically, in any place a `Store` reaches."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from raybias.errors import OutputError
from raybias.storage import split_uri
from raybias.table_files import csv_text


def output_suffix(uri: str) -> str:
    """Return `.csv` or `.parquet`; `OutputError` for any other name, to refuse it before work."""
    for suffix in (".csv", ".parquet"):
        if uri.endswith(suffix):
            return suffix
    raise OutputError(f"cannot write {uri!r}", cure="end its name in .parquet or .csv")


def write_frame(frame: pl.DataFrame, uri: str, schema: pa.Schema) -> None:
    """Replace the file at `uri` by the columns of `schema`, atomically."""
    suffix = output_suffix(uri)
    store, name = split_uri(uri)
    if suffix == ".csv":
        store.write_text(name, csv_text(frame.select(schema.names)))
    else:
        store.write_table(name, frame.select(schema.names).to_arrow().cast(schema))
