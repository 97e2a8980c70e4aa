"""Read a user's CSV, TSV and Parquet files as Polars frames, and write frames as CSV.

A cell of text that a spreadsheet would take for a formula is written with an apostrophe before it,
as OWASP advises, and is read without it.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.storage import Store

_SEPARATORS: Final = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}
#: How Polars names a column that is there already.
_TWICE: Final = "_duplicated_0"
#: What a spreadsheet takes for a formula, and what is so written already.
_FORMULA: Final = r"^('*[=+\-@\t\r\n])"
_ESCAPED: Final = r"^'('*[=+\-@\t\r\n])"


def read_frame(store: Store, name: str) -> pl.DataFrame:
    """Read one CSV or TSV (every column as text) or Parquet file, by suffix.

    Raises
    ------
    DataError: another suffix, no such file, or content that is not what the suffix says.
    """
    if name.endswith(".parquet"):
        return as_frame(store, name, store.read_table(name))
    separator = next((s for end, s in _SEPARATORS.items() if name.endswith(end)), None)
    if separator is None:
        raise DataError(
            f"is none of {', '.join(_SEPARATORS)} and .parquet",
            where=store.uri_of(name),
            cure="rename or convert it",
        )
    with store.reading(name, "as a table of UTF-8 text"):
        frame = pl.read_csv(store.read_bytes(name), separator=separator, infer_schema=False)
        if twice := [each for each in frame.columns if each.endswith(_TWICE)]:
            column = twice[0].removesuffix(_TWICE)
            raise DataError(
                f"has the column {column} twice", where=store.uri_of(name), cure="drop one"
            )
        return frame.with_columns(pl.all().str.replace(_ESCAPED, "$1"))


def as_frame(store: Store, name: str, table: pa.Table) -> pl.DataFrame:
    """Convert a table of the file `name`; `DataError` where Polars has no such type."""
    with store.reading(name, "as a table"):
        return pl.DataFrame(table)


def csv_text(frame: pl.DataFrame) -> str:
    """Write a frame as CSV that no spreadsheet takes for formulas; numbers stay as they are."""
    texts = pl.col(pl.String, pl.Categorical).cast(pl.String)
    safe = frame.with_columns(texts.str.replace(_FORMULA, "'$1"))
    return safe.rename(lambda name: re.sub(_FORMULA, r"'\1", name)).write_csv()
