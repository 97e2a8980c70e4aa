"""Predictions are reduced to counts once; every statistic is arithmetic on the counts.

A cell is the number of predictions of one (run, attribute, group, template,
gold label, predicted label). Grouping by eleven text columns is slow, so the
columns are folded into one integer per row first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.predictions import pieces, read_predictions, sources

#: What names one run of one classifier on one probe.
RUN_KEYS: Final = (*schema.KEYS, "run_id")

_CELL_KEYS: Final = tuple(name for name in schema.CELLS.names if name != "n")
_WIDEST_CODE: Final = 2**62


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
    chosen = predictions.lazy().select(*_CELL_KEYS, n=pl.lit(1, pl.Int64)).collect()
    return _as_cells(summed(chosen, _CELL_KEYS), pl.String())


def read_cells(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Count the predictions in files without holding them all: `cells` of `read_predictions`.

    Returns
    -------
    schema.CELLS with categorical texts: a million cells as plain strings cost more time than
    everything that is computed from them.

    Raises
    ------
    DataError: as `read_predictions`.
    """
    parts: list[pl.DataFrame] = []
    seen: list[npt.NDArray[np.uint64]] = []
    for frame in pieces(sources(paths), columns=(*_CELL_KEYS, "item_id")):
        seen.append(_fingerprints(frame))
        parts.append(summed(frame.select(*_CELL_KEYS, n=pl.lit(1, pl.Int64)), _CELL_KEYS))
    ordered = np.sort(np.concatenate(seen))
    if (ordered[1:] == ordered[:-1]).any():
        # A repeated prediction is named by the slow reader; where two hashes
        # were equal by chance it finds nothing and goes on.
        return cells(read_predictions(paths)).cast({pl.String: pl.Categorical})
    return _as_cells(_merged(parts), pl.Categorical())


def summed(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Sum the column `n` of a frame of cells over everything but `by`; rows keep first order."""
    grouped = (
        pl.DataFrame({"code": codes(frame, by), "n": frame["n"]})
        .with_row_index("row")
        .group_by("code")
        .agg(pl.col("row").min(), pl.col("n").sum())
        .sort("row")
    )
    return frame.select(by)[grouped["row"]].with_columns(grouped["n"])


def codes(frame: pl.DataFrame, by: Sequence[str]) -> npt.NDArray[np.int64]:
    """Fold columns into one integer per row [N], equal where all columns are equal."""
    folded = np.zeros(frame.height, dtype=np.int64)
    bound = 1
    for name in by:
        column, size = dense(frame[name])
        if size == 1:
            continue
        if bound * size > _WIDEST_CODE:
            values, folded = np.unique(folded, return_inverse=True)
            bound = len(values)
        folded *= size
        folded += column
        bound *= size
    return folded


def dense(column: pl.Series) -> tuple[npt.NDArray[np.int64], int]:
    """Number a column's values 0, 1, ... without gaps; null is a value like the others.

    Returns
    -------
    The numbers [N] and how many distinct values there are.
    """
    if column.dtype.is_integer():
        column = column.cast(pl.Int64) - (column.min() or 0)
    else:
        column = column.cast(pl.Categorical).to_physical()
    if not column.null_count() and column.min() == column.max():
        return np.zeros(len(column), dtype=np.int64), min(1, len(column))
    if column.null_count():
        column = column.cast(pl.Int64).fill_null(int(column.max() or 0) + 1)  # type: ignore[arg-type]
    raw = column.to_numpy()
    occurs = np.zeros(int(raw.max()) + 1, dtype=bool)
    occurs[raw] = True
    numbers = np.cumsum(occurs) - 1
    return numbers[raw], int(numbers[-1]) + 1


def _fingerprints(frame: pl.DataFrame) -> npt.NDArray[np.uint64]:
    """One hash [N] per prediction; an item of a run twice gives it twice.

    Categories keep their numbers from batch to batch while any frame holds them, and the
    counted parts do.
    """
    keys = frame.select(pl.col(RUN_KEYS).to_physical(), pl.col("item_id"))
    return keys.hash_rows().to_numpy()


def _merged(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Sum cells that several parts have; only runs that were cut between parts can have some."""
    runs = summed(pl.concat([summed(part, RUN_KEYS).with_columns(n=1) for part in parts]), RUN_KEYS)
    table = pl.concat(parts)
    cut = runs.filter(pl.col("n") > 1).drop("n")
    if cut.is_empty():
        return table
    whole = table.join(cut, on=RUN_KEYS, how="anti", maintain_order="left")
    again = table.join(cut, on=RUN_KEYS, how="semi", maintain_order="left")
    return pl.concat([whole, summed(again, _CELL_KEYS)])


def _as_cells(frame: pl.DataFrame, text: pl.DataType) -> pl.DataFrame:
    types = pl.Schema(schema.CELLS)
    return frame.select(
        pl.col(name).cast(text if dtype == pl.String else dtype) for name, dtype in types.items()
    )
