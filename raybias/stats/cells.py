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

Codes = npt.NDArray[np.int64]

_ITEM: Final = ("attribute", "group", "template_id", "label", "pred")
_CELL_KEYS: Final = (*RUN_KEYS, *_ITEM)
#: Entries of the largest table of codes that is cheaper than sorting the codes.
_TABLE: Final = 1 << 24
#: An odd number without pattern (2**64 by the golden ratio), for mixing runs into hashes.
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


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
    runs: dict[tuple[str, ...], int] = {}
    parts: list[pl.DataFrame] = []
    seen: list[npt.NDArray[np.uint64]] = []
    for piece in pieces(sources(paths), columns=(*_CELL_KEYS, "item_id")):
        run = _numbered(piece, runs)
        seen.append(piece["item_id"].hash().to_numpy() + run.astype(np.uint64) * _MIX)
        items = piece.select(_ITEM).cast({pl.String: pl.Categorical})
        parts.append(summed(items.with_columns(run=run, n=1), ("run", *_ITEM)))
    ordered = np.sort(np.concatenate(seen))
    if (ordered[1:] == ordered[:-1]).any():
        # A repeated prediction is named by the slow reader; where two hashes
        # were equal by chance it finds nothing and goes on.
        return cells(read_predictions(paths)).cast({pl.String: pl.Categorical})
    # Runs that were cut between pieces have some cells twice.
    table = summed(pl.concat(parts), ("run", *_ITEM))
    names = pl.DataFrame(list(runs), schema=RUN_KEYS, orient="row")[table["run"]]
    return _as_cells(pl.concat([names, table], how="horizontal"), pl.Categorical())


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


def _numbered(piece: pl.DataFrame, runs: dict[tuple[str, ...], int]) -> Codes:
    """The number in `runs` of each row's run [N]; new runs are put there."""
    keys = piece.select(RUN_KEYS)
    changes = pl.repeat(False, piece.height - 1, eager=True)
    for column in keys:
        # Rows of a run stand together, so that few of them need more than this comparison.
        changes |= column[1:].ne_missing(column[:-1])
    starts = np.append(0, np.flatnonzero(changes.to_numpy()) + 1)
    heads = keys[starts]
    code, size = codes(heads, RUN_KEYS)
    first = np.empty(size, dtype=np.int64)
    first[code] = np.arange(len(code))
    found = [runs.setdefault(row, len(runs)) for row in heads[first].iter_rows()]
    return np.repeat(np.array(found)[code], np.diff(starts, append=piece.height))


def _as_cells(frame: pl.DataFrame, text: pl.DataType) -> pl.DataFrame:
    types = pl.Schema(schema.CELLS)
    return frame.select(
        pl.col(name).cast(text if dtype == pl.String else dtype) for name, dtype in types.items()
    )
