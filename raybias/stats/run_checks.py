"""Check what runs must have in common before their rates are averaged, by a few sums per run.

A run's predictions are reduced to sums of hashes that add up over pieces in any order: of its
items, of what the items are (label, attribute, group, template, term) and of what was
predicted. Runs with equal sums hold the same, so the checks cost one pass and no memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.stats.cells import LIKELIHOOD, RUN_KEYS
from raybias.stats.reference_groups import StatisticsWarning, UnevenRuns

#: What an item is; the last two may be unknown to some files.
_FACTS: Final = ("label", "attribute", "group", "template_id", "term")
_ITEMS: Final = ("n", "items")
_SUMS: Final = (*_ITEMS, "facts", "preds")

Frames = Callable[[], Iterable[pl.DataFrame]]


def fingerprints(predictions: pl.DataFrame, by: Sequence[str] = RUN_KEYS) -> pl.DataFrame:
    """Sum up what each run holds and predicts; `merged` adds the sums of pieces.

    Parameters
    ----------
    predictions: schema.PREDICTIONS, without `scores` and `parsed`, and with or without `answer`.
    by: what names a run.

    Returns
    -------
    `by`, n (predictions), items, facts and preds (sums of hashes, modulo 2**64) and prompted.
    """
    item = predictions["item_id"].hash().to_numpy()
    # Categories, so that texts hash alike however a file was read.
    facts = predictions.select(_FACTS).cast({pl.String: pl.Categorical})
    label = predictions["pred"].cast(pl.Int8).fill_null(-1)
    prompted = pl.col("method").cast(pl.String).str.ends_with(LIKELIHOOD)
    if "answer" in predictions.columns:
        prompted |= pl.col("answer").is_not_null()
    each = predictions.select(*by, prompted=prompted).with_columns(
        items=item,
        # Products keep two items that change places apart from what they were.
        facts=item * (facts.hash_rows().to_numpy() | 1),
        preds=item * (label.hash().to_numpy() | 1),
    )
    sums = pl.col("items", "facts", "preds").sum()
    return each.group_by(by).agg(pl.col("prompted").any(), sums, n=pl.len().cast(pl.UInt64))


def merged(prints: pl.DataFrame) -> pl.DataFrame:
    """Add up the fingerprints of pieces to those of whole runs."""
    return prints.group_by(RUN_KEYS).agg(pl.col("prompted").any(), pl.col(_SUMS).sum())


def checked_runs(
    prints: pl.DataFrame, frames: Frames, *, where: str, uneven: Literal["refuse", "warn"]
) -> pl.DataFrame:
    """Check that runs can be averaged, and find those that are copies of another.

    Parameters
    ----------
    prints: of `fingerprints`.
    frames: reads the predictions again; called only where runs hold different items.
    where: the files, for messages.
    uneven: what to do where the runs of a classifier do not hold the same items.

    Returns
    -------
    RUN_KEYS of the runs to leave out: of prompted runs that all are the same, all but the first.

    Raises
    ------
    DataError: an item that is not the same in all runs, or uneven runs.

    Warns
    -----
    UnevenRuns, or StatisticsWarning where runs are the same.
    """
    whole = merged(prints)
    _check_items(whole, frames, where)
    for problem in _uneven(whole):
        if uneven == "refuse":
            raise DataError(
                problem,
                where=where,
                cure="give whole runs: finish the study with the same `raybias run`, or leave "
                "out what is not whole",
            )
        warnings.warn(problem, UnevenRuns, stacklevel=3)
    return left_out(whole)


def left_out(prints: pl.DataFrame) -> pl.DataFrame:
    """Find the prompted runs to leave out: all but the first where every run is the same.

    Parameters
    ----------
    prints: of `fingerprints`.

    Returns
    -------
    RUN_KEYS.

    Warns
    -----
    StatisticsWarning: runs, prompted or tuned, that gave the same predictions.
    """
    prints = merged(prints)
    same = pl.col("preds").n_unique().over(schema.KEYS) == 1
    first = pl.col("run_id") == pl.col("run_id").min().over(schema.KEYS)
    dropped = prints.filter("prompted", same, ~first).select(RUN_KEYS).sort(RUN_KEYS)
    for row in dropped.group_by(schema.KEYS).len().sort(schema.KEYS).iter_rows(named=True):
        warnings.warn(
            f"all {row['len'] + 1} runs of {row['model']} {row['method']} on {row['probe']} gave "
            "the same predictions: they count as one run, without an interval",
            StatisticsWarning,
            stacklevel=4,
        )
    others = prints.join(dropped.select(schema.KEYS), on=schema.KEYS, how="anti", nulls_equal=True)
    copies = others.group_by(*schema.KEYS, *_ITEMS, "preds").agg(pl.col("run_id").sort())
    copies = copies.filter(pl.col("run_id").list.len() > 1).sort(*schema.KEYS, "run_id")
    for row in copies.iter_rows(named=True):
        warnings.warn(
            f"{_named(row['run_id'])} of {row['model']} {row['method']} on {row['probe']} gave "
            f"the same {row['n']:,} predictions: copies of one run, or seeds that change nothing; "
            "they count as different runs",
            StatisticsWarning,
            stacklevel=4,
        )
    return dropped


def _uneven(prints: pl.DataFrame) -> Iterable[str]:
    """Yield a sentence for each classifier whose runs do not hold the same items."""
    sets = prints.group_by(*schema.KEYS, *_ITEMS).agg(pl.col("run_id").sort())
    several = sets.filter(pl.len().over(schema.KEYS) > 1).sort(*schema.KEYS, "n", "run_id")
    for key, part in several.group_by(schema.KEYS, maintain_order=True):
        names = dict(zip(schema.KEYS, key, strict=True))
        held = "; ".join(
            f"{_named(runs)} {'holds' if len(runs) == 1 else 'hold'} {n:,}"
            for n, runs in part.select("n", "run_id").iter_rows()
        )
        others = "" if part["n"].is_unique().all() else ", but not the same ones"
        yield (
            f"the runs of {names['model']} {names['method']} on {names['probe']} do not hold the "
            f"same items, so their mean compares different sentences: {held}{others}"
        )


def _check_items(prints: pl.DataFrame, frames: Frames, where: str) -> None:
    """Refuse an item whose label, attribute, group, template or term differs between runs."""
    # One run for all that hold the same; where each probe has one, nothing can differ.
    first = prints.sort(RUN_KEYS).unique(
        ["probe", *_ITEMS, "facts"], keep="first", maintain_order=True
    )
    few = first.filter(pl.len().over("probe") > 1).select(RUN_KEYS)
    if few.is_empty():
        return
    columns = [*RUN_KEYS, "item_id", *_FACTS]
    found = pl.concat(
        frame.select(pl.col(columns).exclude("label").cast(pl.String), "label")
        .select(columns)
        .join(few, on=RUN_KEYS, how="semi", nulls_equal=True)
        for frame in frames()
    )
    item = ["probe", "item_id"]
    # A template or term that some files do not have is unknown, and nothing else.
    differs = [pl.col(name).drop_nulls().n_unique() > 1 for name in _FACTS]
    broken = found.group_by(item).agg(differs).filter(pl.any_horizontal(_FACTS)).sort(item)
    if broken.is_empty():
        return
    worst = broken.row(0, named=True)
    name = next(fact for fact in _FACTS if worst[fact])
    rows = found.filter(probe=worst["probe"], item_id=worst["item_id"]).drop_nulls(name)
    one, other = rows.unique(name, keep="first", maintain_order=True).head(2).iter_rows(named=True)
    more = f" (and {broken.height - 1:,} more items)" if broken.height > 1 else ""
    raise DataError(
        f"item {worst['item_id']!r} of probe {worst['probe']!r} has the {name} {one[name]!r} in "
        f"run {one['run_id']!r} and {other[name]!r} in run {other['run_id']!r}{more}",
        where=where,
        cure="give predictions on one version of the probe, and each probe its own name",
    )


def _named(runs: Sequence[str]) -> str:
    return f"run{'s' * (len(runs) > 1)} {', '.join(runs)}"
