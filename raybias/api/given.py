"""Read what a caller of `raybias.measure` gives: paths, or tables of any library."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import QuestionProbe
from raybias.errors import DataError
from raybias.storage import reading

#: Paths; or a frame of Polars, pandas or Arrow, or arrays by name; or several of these.
Given = Any
#: How pandas and numpy write a missing value among objects.
_MISSING: Final = ("nan", "<NA>", "NaT")
#: Names the folder of this package in the frames of a stack.
_PACKAGE: Final = str(Path(__file__).parents[1])


def tables_of(given: Given) -> list[str | Path | pl.DataFrame]:
    """Return paths as they are, and tables as frames of Polars."""
    if isinstance(given, str | Path | pl.DataFrame):
        return [given]
    if isinstance(given, pl.LazyFrame):
        return [given.collect()]
    if isinstance(given, Mapping):
        return [_frame(given)]
    if isinstance(given, pl.Series) or type(given).__name__ == "Series":
        raise DataError(
            "one column is no table of predictions",
            where="the table",
            cure="give a frame or a dict of columns, with label, group and pred",
        )
    if hasattr(given, "__arrow_c_stream__"):
        return [_frame(given)]
    if not isinstance(given, Iterable):
        raise DataError(
            f"{given!r} is no file and no table",
            where="the table",
            cure="give paths, a frame, or a dict of columns",
        )
    return [one for each in given for one in tables_of(each)]


def items_of(items: str | Path | None) -> pl.DataFrame | str | None:
    """Return what published answers are to: a file by its name, or BBQ's questions."""
    from raybias.probes import question_items

    if items is None or str(items).endswith((".csv", ".json", ".json.gz")):
        return None if items is None else str(items)
    return question_items(QuestionProbe(source="bbq", data=str(items)))


def _frame(given: Given) -> pl.DataFrame:
    """Make a frame of Polars of columns by name, or a frame of pandas or Arrow."""
    with reading("the table", "as a table"):
        if hasattr(given, "iloc"):
            names = [str(name) for name in given.columns]
            columns = [given.iloc[:, place] for place in range(len(names))]
            return pl.DataFrame([*map(_column, _distinct(names), columns)])
        if isinstance(given, Mapping):
            return pl.DataFrame([_column(str(name), values) for name, values in given.items()])
        return pl.DataFrame(given)


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Name columns that are there twice as Polars names those of a CSV."""
    seen: Counter[str] = Counter()
    for name in names:
        yield f"{name}_duplicated_{seen[name] - 1}" if seen[name] else name
        seen[name] += 1


def _column(name: str, values: Any) -> pl.Series:
    """Make a column; what Polars has no plain type for, such as intervals of pandas, is text."""
    kind = getattr(values, "dtype", None)
    listed = isinstance(values, list | tuple)
    mixed = listed and len({type(value) for value in values if value is not None}) > 1
    if mixed or str(kind) == "object" or "interval" in repr(kind):
        missing = (value is None or str(value) in _MISSING for value in values)
        texts = (None if no else str(value) for no, value in zip(missing, values, strict=True))
        return pl.Series(name, list(texts), pl.String)
    series = pl.Series(name, values)
    return _column(name, series.to_numpy()) if series.dtype == pl.Object else series


@contextmanager
def warnings_of_caller() -> Iterator[None]:
    """Issue each different warning of a block once, as if the line that called this package did."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    for category, text in dict.fromkeys((each.category, str(each.message)) for each in caught):
        warnings.warn(text, category, stacklevel=level)


def _is_inside(file: str) -> bool:
    """Whether a line is of this package, or of the standard library's context managers."""
    return file.startswith(_PACKAGE) or file.endswith("contextlib.py")
