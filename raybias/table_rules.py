"""Hold tables against the rules of `raybias.schema`: columns, types, ranges, missing values.

A Parquet table of raybias is read by `read_checked`, or in pieces that `check_rows` checks. Tables
of users and of other programs become tables of raybias by `conform`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import polars as pl
import pyarrow as pa
from polars.datatypes import DataTypeClass

from raybias.columns import ROUNDING, Rule, rule_of
from raybias.errors import DataError
from raybias.storage import Store
from raybias.table_files import as_text, columns_of, need_columns, read_frame, refuse

#: What a user can do about a table of raybias that is not as it was written.
_AGAIN: Final = "run its study again, or `raybias report OUT` for a table in OUT/tables"
_MEND: Final = "correct the row or leave it out; leave a cell empty if there is no value"
#: A path that is absolute or climbs, or that not every file system has.
_OUTSIDE: Final = r"^/|(^|/)\.\.(/|$)|[\\\x00]"
_Type = pl.DataType | DataTypeClass
#: What is wrong, and the rows in which it is.
_Problem = tuple[str, pl.Expr]


def read_checked(
    store: Store, name: str, table: pa.Schema, *, may_be_empty: bool = False
) -> pl.DataFrame:
    """Read the columns of a schema from a Parquet table that raybias wrote.

    Parameters
    ----------
    name: of the file in `store`.
    table: a schema of `raybias.schema`, or some columns of one.
    may_be_empty: whether the table may have no rows.

    Raises
    ------
    DataError: a missing column, another type, a value that breaks the rule of its column (the
        message names the row), or no rows.
    """
    where = store.uri_of(name)
    need_columns(table.names, columns_of(store, name), where, _AGAIN)
    frame = read_frame(store, name, table.names)
    if may_be_empty and not frame.height:
        return pl.DataFrame(schema=pl.Schema(table))
    for field, dtype in zip(table, pl.Schema(table).values(), strict=True):
        there = frame.schema[field.name]
        if there != pl.Null and not _holds(there, dtype):
            raise DataError(
                f"{field.name} is {there}, not {called(dtype)}", where=where, cure=_AGAIN
            )
    return conform(frame, table, where, cure=_AGAIN)


def conform(
    frame: pl.DataFrame, table: pa.Schema, where: str, *, cure: str = _MEND
) -> pl.DataFrame:
    """Cast a table to the columns of a schema, and check their values.

    Numbers can be written as text, as in a CSV, where an empty cell is a missing value.

    where: names the table in a message; the row follows.

    Raises DataError: no rows, a value of another type, or one that breaks the rule of its column.
    """
    if not frame.height:
        raise DataError("holds no rows", where=where, cure="leave it out")
    types = pl.Schema(table)
    made = pl.DataFrame([_cast(frame[name], types[name], where, cure) for name in table.names])
    check_rows(made, table, where, cure=cure)
    return made


def check_rows(
    frame: pl.DataFrame, table: pa.Schema, where: str, *, cure: str = _MEND, offset: int = 0
) -> None:
    """Refuse the first value that breaks the rule of its column (`DataError`).

    Columns of the schema that the frame lacks are not checked.

    offset: rows of the table before this piece of it.
    """
    fields = [field for field in table if field.name in frame.columns]
    problems = [
        (field.name, problem, bad)
        for field in fields
        for problem, bad in _problems(field.name, frame.schema[field.name], rule_of(field))
    ]
    found = frame.select(bad.any().alias(str(n)) for n, (_, _, bad) in enumerate(problems))
    for (name, problem, bad), is_there in zip(problems, found.row(0), strict=True):
        if is_there:
            rows = frame.select(bad.fill_null(value=False)).to_series()
            refuse(rows, frame[name], problem, where, cure, offset=offset)


def is_log_probability(value: object) -> bool:
    """Return whether a value is a finite number of at most 0, but for rounding."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value <= ROUNDING
    # A whole number that no float can hold.
    except OverflowError:
        return False


def called(dtype: pl.DataType) -> str:
    """Name a type for people."""
    if dtype == pl.Boolean:
        return "true or false"
    if isinstance(dtype, pl.List):
        return f"a list of {'numbers' if dtype.inner.is_numeric() else 'texts'}"
    return "a number" if dtype.is_numeric() else "text"


def _holds(stored: _Type, wanted: _Type) -> bool:
    """Return whether values of a stored type can be of the wanted one, if they are in its range."""
    if isinstance(stored, pl.List) and isinstance(wanted, pl.List):
        return stored.inner == pl.Null or _holds(stored.inner, wanted.inner)
    if wanted.is_float():
        return stored.is_numeric()
    if wanted.is_integer():
        return stored.is_integer()
    return stored == wanted or (stored == pl.Categorical and wanted == pl.String)


def _cast(column: pl.Series, dtype: pl.DataType, where: str, cure: str) -> pl.Series:
    """Cast a column; `DataError` for the first value that is of another type."""
    if dtype == pl.String:
        return as_text(column, where=where)
    text = column.dtype == pl.String
    if text and dtype == pl.Boolean:
        lower = column.str.to_lowercase()
        words = {"true": True, "1": True, "false": False, "0": False}
        cast = lower.replace_strict(words, default=None, return_dtype=pl.Boolean)
    else:
        try:
            cast = column.cast(dtype, strict=False)
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"{column.name} is {column.dtype}, not {called(dtype)}",
                where=where,
                cure="write it again",
            ) from error
    lost = cast.is_null() & column.is_not_null()
    if text:
        lost &= column != ""
    if column.dtype.is_float() and dtype.is_integer():
        lost |= cast != column
    refuse(lost, column, f"is not {called(dtype)}", where, cure)
    return cast


def _problems(name: str, dtype: pl.DataType, rule: Rule) -> Iterator[_Problem]:
    """Yield what the values of a column can have wrong."""
    column = pl.col(name)
    if not rule.optional:
        yield "is missing", column.is_null()
    if rule.unique:
        yield "is given twice", ~column.is_first_distinct()
    if not isinstance(dtype, pl.List):
        yield from _wrong(column, dtype, rule)
        return
    element = pl.element()
    inside = [*_wrong(element, dtype.inner, rule)]
    if not rule.gaps:
        inside.append(("is missing", element.is_null()))
    for problem, bad in inside:
        yield f"has a value that {problem}", column.list.eval(bad).list.any()


def _wrong(value: pl.Expr, dtype: _Type, rule: Rule) -> Iterator[_Problem]:
    """Yield what a value that is not missing can have wrong."""
    if dtype.is_float():
        yield "is not a finite number", ~value.is_finite()
    if rule.least > -math.inf:
        yield f"is below {rule.least:g}", value < rule.least
    if rule.most == ROUNDING:
        yield "is above 0, which no log-probability is", value > ROUNDING
    elif rule.most < math.inf:
        yield f"is above {rule.most:g}", value > rule.most
    if rule.inside:
        yield "leads out of its folder", value.str.contains(_OUTSIDE)
    if rule.among:
        yield f"is none of {', '.join(rule.among)}", ~value.is_in(rule.among)
