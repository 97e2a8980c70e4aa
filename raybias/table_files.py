"""Read a user's CSV, TSV, JSON Lines and Parquet files as Polars frames, and write frames.

A cell of text that a spreadsheet would take for a formula is written with an apostrophe before it,
as OWASP advises, and is read without it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from io import BytesIO
from typing import BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raybias import storage
from raybias.errors import DataError, OutputError
from raybias.storage import Store, split_uri

_LINES: Final = (".jsonl", ".jsonl.gz")
_SEPARATORS: Final = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}
_NAMED: Final = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar"}
#: What Polars says of a row that is longer than the header.
_LONGER: Final = "found more fields"
#: How Polars names a column that is there already.
_TWICE: Final = "_duplicated_0"
#: What a spreadsheet takes for a formula, and what is so written already.
_FORMULA: Final = r"^('*[=+\-@\t\r\n])"
_ESCAPED: Final = r"^'('*[=+\-@\t\r\n])"


def unzipped(data: bytes, name: str, where: str) -> bytes:
    """Unpack a .gz file's content; DataError for a broken, empty or huge one."""
    if name.endswith(".gz"):
        try:
            with gzip.open(BytesIO(data)) as stream:
                # A byte more than is allowed shows that there are more.
                data = stream.read(storage.MOST_UNPACKED + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"is not a whole gzip file ({error})", where=where, cure="fetch it again"
            ) from error
        storage.check_unpacked(len(data), where)
    if not data.strip():
        raise DataError("is empty", where=where, cure="leave it out")
    return data


def read_frame(store: Store, name: str) -> pl.DataFrame:
    """Read a CSV or TSV (all text), JSON Lines or Parquet file, by suffix; else `DataError`."""
    if name.endswith(".parquet"):
        table = store.read_table(name)
        with store.reading(name, "as a table"):
            return pl.DataFrame(table)
    if name.endswith(_LINES):
        with store.reading(name, "as lines of JSON"):
            data = unzipped(store.read_bytes(name), name, store.uri_of(name))
            return pl.read_ndjson(data, infer_schema_length=None)
    separator = next((s for end, s in _SEPARATORS.items() if name.endswith(end)), None)
    if separator is None:
        raise DataError(
            f"is none of {', '.join((*_SEPARATORS, *_LINES))} and .parquet",
            where=store.uri_of(name),
            cure="rename or convert it",
        )
    with store.reading(name, "as a table of UTF-8 text"):
        data = store.read_bytes(name)
        if name.endswith(".gz"):
            data = unzipped(data, name, store.uri_of(name))
        header = pl.read_csv(data, separator=separator, infer_schema=False, n_rows=0)
        check_separator(header.columns, separator, store.uri_of(name))
        try:
            frame = pl.read_csv(data, separator=separator, infer_schema=False)
        except pl.exceptions.ComputeError as error:
            if _LONGER not in str(error):
                raise
            raise DataError(
                f"a row has more than the header's {header.width} fields",
                where=store.uri_of(name),
                cure=f'put text that holds a {_NAMED[separator]} in "quotes"',
            ) from error
        if twice := [each for each in frame.columns if each.endswith(_TWICE)]:
            column = twice[0].removesuffix(_TWICE)
            raise DataError(
                f"has the column {column} twice", where=store.uri_of(name), cure="drop one"
            )
        return frame.with_columns(pl.all().str.replace(_ESCAPED, "$1"))


def standard_input(stream: BinaryIO) -> pl.DataFrame:
    """Read a CSV, every column as text, from a stream; `DataError` where it is none."""
    try:
        return pl.read_csv(stream.read(), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read as CSV ({error})", where="standard input", cure="write a CSV to it"
        ) from error


def columns_of(store: Store, name: str) -> list[str]:
    """List the columns of a table; `DataError` as `read_frame`."""
    if not name.endswith(".parquet"):
        return read_frame(store, name).columns
    with store.reading(name, "as a table"), store.fs.open_input_file(store.path(name)) as stream:
        return list(pq.read_schema(stream).names)


def check_separator(columns: Sequence[str], separator: str, where: str) -> None:
    """Refuse a header of one column whose name holds another separator."""
    meant = [each for each in _NAMED if each != separator and each in columns[0]]
    if len(columns) == 1 and meant:
        raise DataError(
            f"its columns are separated by {_NAMED[meant[0]]}s",
            where=where,
            cure=f"write it with {_NAMED[separator]}s",
        )


def csv_text(frame: pl.DataFrame) -> str:
    """Write a frame as CSV that no spreadsheet takes for formulas; numbers stay as they are."""
    texts = pl.col(pl.String, pl.Categorical).cast(pl.String)
    safe = frame.with_columns(texts.str.replace(_FORMULA, "'$1"))
    return safe.rename(lambda name: re.sub(_FORMULA, r"'\1", name)).write_csv()


def refuse(
    bad: pl.Series,
    column: pl.Series,
    problem: str | Callable[[int], str],
    where: str,
    cure: str,
    *,
    offset: int = 0,
) -> None:
    """Raise a `DataError` with the first bad value of a column and its row, from `offset` + 1.

    A function of the row's index from 0 says all in place of the value and its problem.
    """
    if bad.any():
        row = int(bad.arg_max() or 0)
        value = column[row]
        named = column.name if value is None else f"{column.name} {value!r}"
        said = f"{named} {problem}" if isinstance(problem, str) else problem(row)
        raise DataError(said, where=f"{where} row {offset + row + 1}", cure=cure)


def need_columns(needed: Iterable[str], there: Collection[str], where: str, cure: str) -> None:
    """Refuse a table that lacks some columns."""
    missing = [name for name in needed if name not in there]
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            cure=cure,
        )


def conformed(frame: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
    """Select and cast the columns of a table; those that a frame lacks are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in types.items()
    )


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
