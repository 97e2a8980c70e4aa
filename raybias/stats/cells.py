"""Predictions are reduced to counts once; every statistic is arithmetic on the counts.

A cell is the number of predictions of one (run, attribute, group, template,
gold label, predicted label). Grouping by eleven text columns is slow, so the
columns are folded into one integer per row first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema

#: What names one run of one classifier on one probe.
RUN_KEYS: Final = (*schema.KEYS, "run_id")

#: Ends the method name of the second reading of a prompted classifier.
LIKELIHOOD: Final = "+likelihood"

Codes = npt.NDArray[np.int64]

#: What a cell holds of an item, and what a term cell does.
ITEM: Final = ("attribute", "group", "template_id", "label", "pred")
TERM: Final = ("attribute", "group", "term", "label", "pred")
CELL_KEYS: Final = (*RUN_KEYS, *ITEM)
#: Entries of the largest table of codes that is cheaper than sorting the codes.
_TABLE: Final = 1 << 24


def cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions per run, attribute, group, template, gold and predicted label.

    Parameters
    ----------
    predictions: schema.PREDICTIONS; a null `pred` (no label could be read) stays a count
        of its own: it is wrong, and a false positive of no label.

    Returns
    -------
    schema.CELLS, one row per cell that occurs.
    """
    chosen = predictions.lazy().select(*CELL_KEYS, n=pl.lit(1, pl.Int64)).collect()
    return as_schema(summed(chosen, CELL_KEYS), pl.Schema(schema.CELLS), pl.String())


def term_cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions per run, attribute, group, term, gold and predicted label.

    Returns
    -------
    schema.TERM_CELLS, without the predictions whose term is not known.
    """
    known = predictions.lazy().filter(pl.col("term").is_not_null())
    chosen = known.select(*RUN_KEYS, *TERM, n=pl.lit(1, pl.Int64)).collect()
    types = pl.Schema(schema.TERM_CELLS)
    return as_schema(summed(chosen, (*RUN_KEYS, *TERM)), types, pl.String())


def without_extras(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells of protected groups alone, without those of schema.EXTRA_GROUPS."""
    found = cells["group"].is_in(schema.EXTRA_GROUPS)
    return cells.filter(~found) if found.any() else cells


def summed(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Sum the column `n` of a frame of cells over everything but `by`; rows keep first order."""
    code, size = codes(frame, by)
    first = np.empty(size, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    is_first = np.zeros(len(code), dtype=bool)
    is_first[first] = True
    rows = np.flatnonzero(is_first)
    # Sums are floats, exact below 2**53.
    n = np.bincount(code, frame["n"].to_numpy(), minlength=size).astype(np.int64)
    return frame.select(by)[rows].with_columns(n=n[code[rows]])


def codes(frame: pl.DataFrame, by: Sequence[str]) -> tuple[Codes, int]:
    """Number the rows 0, 1, ... without gaps, equal where all columns of `by` are equal.

    Returns
    -------
    The numbers [N] and how many distinct ones there are.
    """
    rows = frame.height
    folded, size = np.zeros(rows, dtype=np.int64), 1
    for name in by:
        column, values = _column_codes(frame[name])
        if size * values > rows:
            folded, size = _without_gaps(folded, size)
            column, values = _without_gaps(column, values)
        folded, size = folded * values + column, size * values
        if size > rows:
            folded, size = _without_gaps(folded, size)
    return _without_gaps(folded, size)


def _column_codes(column: pl.Series) -> tuple[Codes, int]:
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical)
    numbers = column.to_physical().cast(pl.Int64)
    # Null is a value like the others.
    nulls = numbers.null_count()
    if nulls:
        numbers = numbers.fill_null(int(numbers.max() or 0) + 1)  # type: ignore[arg-type]
    raw: Codes = numbers.to_numpy()
    low = int(raw.min(initial=0))
    return raw - low, int(raw.max(initial=0)) - low + 1


def _without_gaps(numbers: Codes, size: int) -> tuple[Codes, int]:
    """Renumber numbers below `size` so that each of 0, 1, ... occurs."""
    if size > max(_TABLE, len(numbers)):
        values, numbers = np.unique(numbers, return_inverse=True)
        return numbers, len(values)
    occurs = np.zeros(size, dtype=bool)
    occurs[numbers] = True
    occurring = np.flatnonzero(occurs)
    if len(occurring) == size:
        return numbers, size
    closed = np.empty(size, dtype=np.int64)
    closed[occurring] = np.arange(len(occurring))
    return closed[numbers], len(occurring)


def as_schema(frame: pl.DataFrame, types: pl.Schema, text: pl.DataType) -> pl.DataFrame:
    """The columns of a table of counts in their order and types, texts as `text`."""
    return frame.select(
        pl.col(name).cast(text if dtype == pl.String else dtype) for name, dtype in types.items()
    )
