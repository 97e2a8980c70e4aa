"""Checks on a user's own columns: each failure names the first bad row and its value.

Rows are counted from 1, a header not counted. It does not know where a table
came from.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.probes.readers import polars_schema
from raybias.schema import LABELS, Label

#: How labels are written where a user says nothing: names or the papers' numbers.
DEFAULT_LABELS: Final = {
    **{name: name for name in LABELS},
    **{str(label.value): label.name.lower() for label in Label},
}


def column(frame: pl.DataFrame, name: str, *, where: str) -> pl.Series:
    """One column of a table; `DataError` names the nearest there is."""
    if name not in frame.columns:
        near = difflib.get_close_matches(name, frame.columns, n=1)
        cure = f"rename {near[0]!r}" if near else f"its columns are {', '.join(frame.columns)}"
        raise DataError(f"no column {name!r}", where=where, cure=cure)
    return frame[name]


def as_text(values: pl.Series, *, where: str) -> pl.Series:
    """The column as text; `DataError` where its values are none, such as lists."""
    try:
        return values.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{values.name} is {values.dtype}, not text", where=where, cure="write it as text"
        ) from error


def filled(values: pl.Series, *, where: str) -> pl.Series:
    """The column as text, stripped at neither end; an empty or blank value is a `DataError`."""
    text = as_text(values, where=where)
    blank = (text.is_null() | (text.str.strip_chars() == "")).arg_true()
    if len(blank):
        raise DataError(
            f"{values.name} is empty", where=f"{where} row {blank[0] + 1}", cure="fill it in"
        )
    return text


def label_numbers(
    values: pl.Series, *, where: str, labels: Mapping[str, str] | None = None
) -> pl.Series:
    """The column as 0 negative, 1 neutral, 2 positive (int8).

    Parameters
    ----------
    values: written as in `labels`, or as names or 0, 1, 2 without; capitals do not count.
    where: the table, for the message.
    labels: value -> label name.
    """
    names = {key.strip().lower(): name for key, name in (labels or DEFAULT_LABELS).items()}
    written = filled(values, where=where).str.strip_chars()
    numbers = written.str.to_lowercase().replace_strict(
        {key: LABELS.index(name) for key, name in names.items()},
        default=None,
        return_dtype=pl.Int8,
    )
    outside = numbers.is_null().arg_true()
    if len(outside):
        raise DataError(
            f"{values.name} {written[outside[0]]!r} is none of {', '.join(names)}",
            where=f"{where} row {outside[0] + 1}",
            cure="mend it, or map it with `labels` if this is a training set",
        )
    return numbers


def distinct(values: pl.Series, *, where: str) -> pl.Series:
    """The same column; a repeated value is a `DataError` naming both rows."""
    repeated = (~values.is_first_distinct()).arg_true()
    if len(repeated):
        row = repeated[0]
        first = (values == values[row]).arg_true()[0]
        raise DataError(
            f"{values.name} {values[row]!r} is already in row {first + 1}",
            where=f"{where} row {row + 1}",
            cure="give every row its own, or leave the column out",
        )
    return values


def as_table(frame: pl.DataFrame, schema: pa.Schema, *, where: str) -> pl.DataFrame:
    """Select the columns of a schema with its types; `DataError` for one that is not so."""
    for name in schema.names:
        column(frame, name, where=where)
    try:
        return frame.select(schema.names).cast(dict(polars_schema(schema)))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"a column has the wrong type ({error})", where=where) from error


def needed(data: str | None, *, where: str) -> str:
    """Return `data` of a section; `DataError` where it is not given."""
    if not data:
        raise DataError("needs `data`", where=where, cure="say where its files are")
    return data


def choose(wanted: Iterable[str], known: Iterable[str], *, where: str) -> list[str]:
    """The wanted attributes; `DataError` for one that is not there."""
    there = list(known)
    chosen = list(wanted)
    for name in chosen:
        if name not in there:
            raise DataError(
                f"no attribute {name!r}", where=where, cure=f"choose from {', '.join(there)}"
            )
    return chosen
