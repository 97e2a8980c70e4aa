"""Files of predictions to counts, piece by piece, without holding them all.

It goes over the rows once: cells, term cells and answers are counted together. A
million cells as plain strings cost more time than all that is computed from them,
so texts are categorical.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.cells import CELL_KEYS, ITEM, RUN_KEYS, TERM, Codes, as_schema, codes, summed
from raybias.stats.likelihood_readout import answers, with_likelihood
from raybias.stats.predictions import pieces, read_predictions, sources
from raybias.stats.run_checks import checked_runs, fingerprints

#: An odd number without pattern (2**64 by the golden ratio), for mixing runs into hashes.
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Counts:
    """What statistics need of predictions."""

    cells: pl.DataFrame
    """schema.CELLS."""
    terms: pl.DataFrame
    """schema.TERM_CELLS, without rows where no term is known."""
    answers: pl.DataFrame
    """schema.ANSWERS."""


def read_cells(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Count the predictions in files: `cells` of `with_readouts` of `read_predictions`.

    Returns
    -------
    schema.CELLS with categorical texts.

    Raises
    ------
    DataError: as `read_counts`.
    """
    return read_counts(paths).cells


def read_counts(paths: Sequence[str | Path]) -> Counts:
    """Count the predictions in files, with both readings of prompted ones.

    Raises
    ------
    DataError: as `read_predictions`; or an item whose label, attribute, group, template or term
        is not the same in all runs, or runs of one classifier that hold different items.

    Warns
    -----
    StatisticsWarning: runs that gave the same predictions.
    """
    columns = (*CELL_KEYS, "term", "item_id")
    files = sources(paths)
    runs: dict[tuple[str, ...], int] = {}
    parts: list[pl.DataFrame] = []
    terms: list[pl.DataFrame] = []
    seen: list[npt.NDArray[np.uint64]] = []
    prints: list[pl.DataFrame] = []
    asked: list[pl.DataFrame] = []
    for raw in _ahead(pieces(files, columns=columns)):
        piece = raw
        if "answer" in raw.columns:
            texts = raw.cast({pl.Categorical: pl.String})
            asked.append(count_answers(texts))
            piece = with_likelihood(texts)
        run = _numbered(piece, runs)
        prints.append(fingerprints(piece.with_columns(run=run), ["run"]))
        seen.append(piece["item_id"].hash().to_numpy() + run.astype(np.uint64) * _MIX)
        items = piece.select(*ITEM, "term").cast({pl.String: pl.Categorical})
        items = items.with_columns(run=run, n=1)
        parts.append(summed(items, ("run", *ITEM)))
        if items["term"].null_count() < items.height:
            terms.append(summed(items.filter(pl.col("term").is_not_null()), ("run", *TERM)))
    ordered = np.sort(np.concatenate(seen))
    if (ordered[1:] == ordered[:-1]).any():
        # Names a repeated prediction; where two hashes were equal by chance it goes on.
        read_predictions(paths)
    left_out = checked_runs(
        _with_names(pl.concat(prints), runs),
        lambda: pieces(files, columns=columns),
        where=", ".join(map(str, paths)),
        uneven="refuse",
    )
    drop = [runs[row] for row in left_out.iter_rows()]
    return Counts(
        _named(parts, runs, drop, ITEM, pl.Schema(schema.CELLS)),
        _named(terms, runs, drop, TERM, pl.Schema(schema.TERM_CELLS)),
        answers(pl.concat(asked)) if asked else pl.DataFrame(schema=pl.Schema(schema.ANSWERS)),
    )


def _ahead(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The same frames, the next of them read while one is counted."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, frames, None)
        while (frame := coming.result()) is not None:
            coming = reader.submit(next, frames, None)
            yield frame


def count_answers(predictions: pl.DataFrame) -> pl.DataFrame:
    """Predictions and unparsed ones of each prompted run, for `answers`."""
    return (
        predictions.filter(pl.col("answer").is_not_null())
        .group_by(RUN_KEYS)
        .agg(
            predictions=pl.len().cast(pl.Int64),
            unparsed=(~pl.col("parsed").fill_null(True)).sum().cast(pl.Int64),
        )
    )


def _named(
    parts: Sequence[pl.DataFrame],
    runs: dict[tuple[str, ...], int],
    drop: Sequence[int],
    by: Sequence[str],
    types: pl.Schema,
) -> pl.DataFrame:
    """The counts of all pieces with their runs' names, less those of the runs to drop."""
    if not parts:
        return pl.DataFrame(schema=types).cast({pl.String: pl.Categorical})
    # Runs that were cut between pieces have some cells twice.
    table = summed(pl.concat(parts), ("run", *by))
    if drop:
        table = table.filter(~pl.col("run").is_in(drop))
    return as_schema(_with_names(table, runs), types, pl.Categorical())


def _with_names(table: pl.DataFrame, runs: dict[tuple[str, ...], int]) -> pl.DataFrame:
    """The table with RUN_KEYS beside its column `run`, the number of each row's run."""
    names = pl.DataFrame(list(runs), schema=dict.fromkeys(RUN_KEYS, pl.String), orient="row")
    return pl.concat([names[table["run"]], table], how="horizontal")


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
