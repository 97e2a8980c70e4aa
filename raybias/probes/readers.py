"""Read files from any folder or URI as text, records or a frame.

Every failure is one `DataError` that names the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.storage import Store

Row = dict[str, str]


class Sample(NamedTuple):
    """One row of a published expansion."""

    where: str
    """The file and row, for a message."""
    label: str
    category: str
    group: str
    text: str


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types of an Arrow schema."""
    return pl.DataFrame(schema.empty_table()).schema


def attribute_name(category: str) -> str:
    """Return our name of a published category: `grouped_race` and `race` are `race`."""
    plain = category.removeprefix("grouped_")
    return "nationality" if plain == "country_by_gdp_ppp_quantile" else plain


def list_files(store: Store) -> list[str]:
    """List the paths of all files below a folder; `DataError` where it is none."""
    try:
        return store.files(recursive=True)
    except OSError as error:
        raise DataError("is not a folder", where=store.uri, cure="give a folder") from error


def read_text(store: Store, name: str) -> str:
    """Read one UTF-8 file without its byte order mark; `DataError` where it cannot be read."""
    try:
        return store.read_bytes(name).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(
            "no such file", where=store.uri_of(name), cure="check the folder given as data"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read ({error})", where=store.uri_of(name)) from error


def read_lines(store: Store, name: str) -> list[str]:
    """Read the lines of one file; only line feeds end one, for tweets hold other separators."""
    lines = [line.removesuffix("\r") for line in read_text(store, name).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_records(store: Store, name: str, *, columns: tuple[str, ...]) -> list[Row]:
    """Read the records of one CSV file with a header; `DataError` names a column it lacks."""
    reader = csv.DictReader(io.StringIO(read_text(store, name), newline=""))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"no column {missing[0]!r}", where=store.uri_of(name))
    return [{key: value or "" for key, value in row.items() if key} for row in reader]


def read_samples(store: Store, name: str) -> Iterator[Sample]:
    """Yield the rows of a published expansion: label, category, group, text; no header."""
    for number, line in enumerate(read_lines(store, name), start=1):
        where = f"{store.uri_of(name)} row {number}"
        fields = line.split("\t")
        if len(fields) != 4:
            raise DataError(f"has {len(fields)} fields, not 4", where=where)
        yield Sample(where, *fields)


def read_frame(store: Store, name: str) -> pl.DataFrame:
    """Read one CSV or TSV (every column as text) or Parquet file, by suffix.

    Raises
    ------
    DataError: another suffix, no such file, or content that is not what the suffix says.
    """
    where = store.uri_of(name)
    if name.endswith((".csv", ".tsv")):
        data = read_text(store, name).encode("utf-8")
        separator = "\t" if name.endswith(".tsv") else ","
        try:
            return pl.read_csv(data, separator=separator, infer_schema=False)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"not a {name[-3:].upper()} table ({error})", where=where) from error
    if not name.endswith(".parquet"):
        raise DataError(
            "is none of .csv, .tsv and .parquet", where=where, cure="rename or convert it"
        )
    try:
        return pl.DataFrame(store.read_table(name))
    except FileNotFoundError as error:
        raise DataError("no such file", where=where, cure="check the path") from error
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise DataError(f"not a Parquet table ({error})", where=where) from error
