"""Read published files from any folder or URI as lines or records.

Every failure is one `DataError` that names the file.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from itertools import zip_longest
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


def read_lines(store: Store, name: str) -> list[str]:
    """Read the lines of one file; only line feeds end one, for tweets hold other separators."""
    lines = [line.removesuffix("\r") for line in store.read_text(name).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_records(store: Store, name: str, *, columns: tuple[str, ...]) -> list[Row]:
    """Read the records of one CSV file with a header; `DataError` names a column it lacks."""
    header, *records = read_csv(store, name) or [[]]
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"no column {missing[0]!r}", where=store.uri_of(name))
    return [dict(zip_longest(header, row[: len(header)], fillvalue="")) for row in records if row]


def read_csv(store: Store, name: str) -> list[list[str]]:
    """Read the rows of one CSV file, its header with them."""
    with store.reading(name, "as CSV"):
        # By default a field of 131,072 characters is an error.
        csv.field_size_limit(sys.maxsize)
        return list(csv.reader(io.StringIO(store.read_text(name), newline="")))


def read_samples(store: Store, name: str) -> Iterator[Sample]:
    """Yield the rows of a published expansion: label, category, group, text; no header."""
    for number, line in enumerate(read_lines(store, name), start=1):
        where = f"{store.uri_of(name)} row {number}"
        fields = line.split("\t")
        if len(fields) != 4:
            raise DataError(f"has {len(fields)} fields, not 4", where=where)
        yield Sample(where, *fields)
