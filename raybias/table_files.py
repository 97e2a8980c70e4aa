"""Read a user's CSV, TSV, JSON Lines and Parquet files as Polars frames, and write frames.

A cell of text that a spreadsheet would take for a formula is written with an apostrophe before it,
as OWASP advises, and is read without it.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from io import BytesIO
from typing import BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raybias import memory_limits
from raybias.errors import DataError, OutputError, said_by
from raybias.schema import ALL
from raybias.storage import Store, split_uri

#: Units of a time stamp in a day, and the days of the years 1 and 9999 from 1970.
_DAY: Final = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_DAYS: Final = (-719_162, 2_932_896)
_LINES: Final = (".jsonl", ".jsonl.gz")
_SEPARATORS: Final = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
#: Byte order marks; those of UTF-32 begin with those of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_AS_UTF8: Final = "save it as UTF-8"
_NAMED: Final = {"\t": "tab", ";": "semicolon", ",": "comma", "|": "bar"}
#: Begin compressed files, whatever they are called.
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
#: What Polars says of a row that is longer than the header.
_LONGER: Final = "found more fields"
#: Ends the name that Polars gives to a column that is there already.
_TWICE: Final = re.compile(r"_duplicated_\d+$")
#: What a spreadsheet takes for a formula, and what is so written already.
_FORMULA: Final = r"^('*[=+\-@\t\r\n])"
_ESCAPED: Final = r"^'('*[=+\-@\t\r\n])"


def unpack_text(data: bytes, name: str, where: str) -> bytes:
    """Unpack gzip and zstd, and write text as UTF-8 with line feeds, whatever it was written as.

    UTF-8, UTF-16 and UTF-32 are known by their byte order mark, which is left out; without one a
    text is taken for UTF-8. Lines that end in carriage returns alone end in line feeds.

    Raises DataError: a broken, empty or huge file, or text that is not Unicode.
    """
    if name.endswith(".gz") or data.startswith(_GZIP):
        data = _unpack(partial(gzip.GzipFile, fileobj=BytesIO(data)), "gzip", where)
    elif data.startswith(_ZSTD):
        source = pa.BufferReader(data)
        data = _unpack(partial(pa.CompressedInputStream, source, "zstd"), "zstd", where)
    data = _as_utf8(data, where)
    if not data.strip():
        raise DataError("is empty", where=where, cure="leave it out")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise DataError("has a NUL in its text", where=f"{where}, line {line}", cure=_AS_UTF8)
    if b"\r" in data and b"\n" not in data:
        return data.replace(b"\r", b"\n")
    return data


def _unpack(
    open_stream: Callable[[], gzip.GzipFile | pa.CompressedInputStream], form: str, where: str
) -> bytes:
    """Read what a compressed file holds; `DataError` as `unpack_text`."""
    try:
        with open_stream() as stream:
            # A byte more than is allowed shows that there are more.
            data = stream.read(memory_limits.MOST_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"is not a whole {form} file ({said_by(error)})", where=where, cure="fetch it again"
        ) from error
    memory_limits.check_unpacked(len(data), where)
    return data


def _as_utf8(data: bytes, where: str) -> bytes:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.removeprefix(mark).decode(encoding).encode()
            # A lone surrogate has no UTF-8.
            except UnicodeError as error:
                raise DataError(
                    f"is no {encoding.upper()} text ({said_by(error)})", where=where, cure=_AS_UTF8
                ) from error
    # The first character of a header or of JSON is ASCII.
    if b"\0" in data[:2] and data[:2].strip(b"\0"):
        raise DataError(
            "is UTF-16 or UTF-32 text without a byte order mark", where=where, cure=_AS_UTF8
        )
    return data


def read_frame(store: Store, name: str, columns: Collection[str] | None = None) -> pl.DataFrame:
    """Read a CSV or TSV (all text), JSON Lines or Parquet file, by suffix; else `DataError`.

    `columns` are those to read, all by default. One that the file has twice is read if both are the
    same in every row, and refused otherwise.
    """
    if name.endswith(".parquet"):
        table = store.read_table(name, None if columns is None else [*columns])
        with store.reading(name, "as a table"):
            return pl.DataFrame(table)
    if name.endswith(_LINES):
        with store.reading(name, "as lines of JSON"):
            data = unpack_text(store.read_bytes(name), name, store.uri_of(name))
            frame = pl.read_ndjson(data, infer_schema_length=None)
            return frame if columns is None else frame.select(columns)
    with store.reading(name, "as a table of UTF-8 text"):
        return _csv_columns(_csv_data(store, name), name, store.uri_of(name), columns)


def _csv_data(store: Store, name: str) -> bytes:
    if not name.endswith(tuple(_SEPARATORS)):
        raise DataError(
            f"is none of {', '.join((*_SEPARATORS, *_LINES))} and .parquet",
            where=store.uri_of(name),
            cure="rename or convert it",
        )
    return unpack_text(store.read_bytes(name), name, store.uri_of(name))


def _header(data: bytes, name: str, where: str) -> tuple[str, list[str]]:
    """Return the separator and columns of a CSV; Polars renames those that are there twice."""
    separator = next(separator for end, separator in _SEPARATORS.items() if name.endswith(end))
    names = pl.read_csv(data, separator=separator, infer_schema=False, n_rows=0).columns
    check_separator(names, separator, where)
    return separator, names


def _csv_columns(
    data: bytes, name: str, where: str, columns: Collection[str] | None
) -> pl.DataFrame:
    separator, names = _header(data, name, where)
    wanted = [each for each in names if columns is None or _TWICE.sub("", each) in columns]
    try:
        frame = pl.read_csv(data, separator=separator, infer_schema=False, columns=wanted)
    except pl.exceptions.ComputeError as error:
        if _LONGER not in str(error):
            raise
        raise DataError(
            f"a row has more than the header's {len(names)} fields",
            where=where,
            cure=f'put text that holds a {_NAMED[separator]} in "quotes"',
        ) from error
    frame = without_repeated(frame, where)
    return frame.with_columns(pl.all().str.replace(_ESCAPED, "$1"))


def select_columns(frame: pl.DataFrame, columns: Collection[str], where: str) -> pl.DataFrame:
    """Select columns of a frame in memory, as `read_frame` those of a file."""
    wanted = [name for name in frame.columns if _TWICE.sub("", name) in columns]
    return without_repeated(frame.select(wanted), where)


def without_repeated(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    """Drop columns that repeat another of the same name; `DataError` if they differ."""
    names = {*frame.columns}
    repeated = [name for name in frame.columns if _TWICE.search(name)]
    for name in repeated:
        column = _TWICE.sub("", name)
        if column in names and not frame[name].equals(frame[column]):
            raise DataError(
                f"has the column {column} twice, and they differ",
                where=where,
                cure="drop or rename one",
            )
    return frame.drop(repeated)


def match_columns(
    columns: Collection[str], known: Collection[str], where: str, taken: Collection[str] = ()
) -> dict[str, str]:
    """Map columns to the known names that they differ from in capitals and blanks around alone.

    columns: names in a table; a known name that is among them has no other.
    taken: columns that a user names for something else, and which keep their names.

    Raises DataError: two columns could be the same known name.
    """
    plain_names = {name.strip().lower(): name for name in known if name not in columns}
    renamed: dict[str, str] = {}
    for column in columns:
        name = plain_names.get(column.strip().lower())
        if name is None or column in taken or column in known:
            continue
        if name in renamed.values():
            other = next(key for key, value in renamed.items() if value == name)
            raise DataError(
                f"has the columns {other!r} and {column!r}, either of which may be {name}",
                where=where,
                cure=f"rename one, or call it {name}",
            )
        renamed[column] = name
    return renamed


def standard_input(stream: BinaryIO) -> pl.DataFrame:
    """Read a CSV, every column as text, from a stream; `DataError` where it is none."""
    try:
        data = unpack_text(stream.read(), "", "standard input")
        return pl.read_csv(data, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read as CSV ({said_by(error)})",
            where="standard input",
            cure="write a CSV to it",
        ) from error


def columns_of(store: Store, name: str) -> list[str]:
    """List the columns of a table, each once; `DataError` as `read_frame`."""
    if name.endswith(".parquet"):
        with store.reading(name, "as a table"), store.open_file(name) as file:
            return list(dict.fromkeys(pq.read_schema(file).names))
    if name.endswith(_LINES):
        return read_frame(store, name).columns
    with store.reading(name, "as a table of UTF-8 text"):
        _, names = _header(_csv_data(store, name), name, store.uri_of(name))
    return list(dict.fromkeys(_TWICE.sub("", each) for each in names))


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
    safe = without_nul(frame).with_columns(texts.str.replace(_FORMULA, "'$1"))
    return safe.rename(lambda name: re.sub(_FORMULA, r"'\1", name)).write_csv()


def without_nul(frame: pl.DataFrame) -> pl.DataFrame:
    """Write each NUL in a frame's text as `\\x00`: a model writes some, and no CSV can hold one."""
    return frame.with_columns(pl.col(pl.String).str.replace_all("\0", r"\x00", literal=True))


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
        # A list would fill the line.
        has_text = value is not None and not isinstance(value, pl.Series)
        named = f"{column.name} {value!r}" if has_text else column.name
        said = f"{named} {problem}" if isinstance(problem, str) else problem(row)
        raise DataError(said, where=f"{where} row {offset + row + 1}", cure=cure)


def as_text(values: pl.Series, *, where: str) -> pl.Series:
    """Cast a column to text; `DataError` if its values are not text, such as lists and structs."""
    cure = "write it as text"
    if values.dtype.is_nested():
        raise DataError(f"{values.name} is {values.dtype}, not text", where=where, cure=cure)
    if isinstance(values.dtype, pl.Date | pl.Datetime):
        # Polars ends with a panic, and a page of its own, for a year of more digits than it writes.
        days = values.to_physical() // _DAY.get(getattr(values.dtype, "time_unit", ""), 1)
        refuse(~days.is_between(*_DAYS), days, "days after 1970 is past 9999", where, cure)
    try:
        return values.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{values.name} is {values.dtype}, not text", where=where, cure=cure
        ) from error


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


def rename_reserved(
    table: pl.DataFrame, columns: Iterable[str], where: str, warn: Callable[[str], None]
) -> pl.DataFrame:
    """Rename the value `all` of some columns, which in results stands for all values of a column.

    A group `all` becomes `all (group)`, and is warned of; `DataError` if that exists too.
    """
    for name in columns:
        if name not in table.columns or not (table[name] == ALL).any():
            continue
        renamed = f"{ALL} ({name})"
        if (table[name] == renamed).any():
            raise DataError(
                f"{name} has both {ALL!r} and {renamed!r}", where=where, cure=f"rename {ALL!r}"
            )
        warn(
            f"{where}: the {name} {ALL!r} is called {renamed!r}, since {ALL!r} stands for all "
            "of them in results"
        )
        plain = pl.col(name).cast(pl.String)
        changed = pl.when(plain == ALL).then(pl.lit(renamed)).otherwise(plain)
        table = table.with_columns(changed.cast(table.schema[name]).alias(name))
    return table


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
