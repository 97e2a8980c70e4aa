"""How often a corpus names each group, and whether gaps follow it.

Source: raybias's own, for Kohankhaki2024's conjecture that groups which are rarely named read as
unmarked. With the handful of groups of an attribute a rank correlation is weak
evidence, and its interval says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias import schema
from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.cells import without_extras

Doubles = npt.NDArray[np.float64]

#: Fewer groups than this have no rank correlation worth the name.
_FEWEST: Final = 4
_BY: Final = (*schema.KEYS, "attribute", "rate", "effect")
_COLUMNS: Final = pl.Schema(
    {
        **dict.fromkeys(_BY, pl.String),
        "rho": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "p_value": pl.Float64,
        "n_groups": pl.Int64,
    }
)


def marked_rates(corpus: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Compute the share of the probe's nouns in a corpus that each group's terms modify.

    Parameters
    ----------
    corpus: schema.CORPUS.
    where: its place, for messages.

    Returns
    -------
    attribute, group, marked (occurrences with one of the group's terms), nouns (all of the
    attribute's) and marked_rate; null where the corpus has none of the nouns.

    Raises
    ------
    DataError: negative or missing counts.
    """
    bad = corpus.filter(pl.any_horizontal(pl.all().is_null(), pl.col("marked", "bare") < 0))
    if bad.height:
        row = bad.row(0, named=True)
        raise DataError(
            f"{row['group']!r}, {row['term']!r}, {row['noun']!r} has no or negative counts",
            where=where,
            cure="count it again with `raybias probes corpus`",
        )
    bare = corpus.group_by("attribute", "noun").agg(pl.col("bare").max())
    nouns = (
        corpus.group_by("attribute")
        .agg(pl.col("marked").sum())
        .join(bare.group_by("attribute").agg(pl.col("bare").sum()), on="attribute")
        .select("attribute", nouns=pl.col("marked") + pl.col("bare"))
    )
    return (
        corpus.group_by("attribute", "group")
        .agg(pl.col("marked").sum())
        .join(nouns, on="attribute")
        .with_columns(
            marked_rate=pl.when(pl.col("nouns") > 0).then(pl.col("marked") / pl.col("nouns"))
        )
        .sort("attribute", "group")
    )


def corpus_correlations(
    rates: pl.DataFrame,
    gaps: pl.DataFrame,
    markedness: pl.DataFrame,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> pl.DataFrame:
    """Correlate corpus markedness with gaps and marking effects (Spearman's rank correlation).

    Over the groups of an attribute that the corpus knows, with a permutation p value (exact
    for seven groups and fewer) and a percentile interval of groups drawn anew.

    Parameters
    ----------
    rates: of `marked_rates`.
    gaps, markedness: schema.GAPS and schema.MARKEDNESS; their means over runs are used.

    Returns
    -------
    The keys, attribute, rate, effect (gap or marking_effect), rho, low, high, p_value,
    n_groups. Fewer than four groups, or equal values throughout, have no correlation.
    """
    of_gaps = gaps.with_columns(effect=pl.lit("gap"), estimate="gap")
    marking = without_extras(markedness).filter(effect="marking_effect")
    columns = [*_BY, "group", "estimate"]
    values = pl.concat([of_gaps.select(columns), marking.select(columns)]).drop_nulls("estimate")
    known = rates.drop_nulls("marked_rate").select("attribute", "group", "marked_rate")
    joined = values.join(known, on=["attribute", "group"]).sort(*_BY, "group")
    rows = list(_correlated(joined, level, draws, seed))
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


def _correlated(
    joined: pl.DataFrame, level: float, draws: int, seed: int
) -> Iterator[tuple[Any, ...]]:
    for key, part in joined.group_by(_BY, maintain_order=True):
        pair = part.select("marked_rate", "estimate").to_numpy().T
        if part.height < _FEWEST or np.ptp(pair, axis=1).min() == 0:
            continue
        name = tuple(map(str, key))
        rho, p_value = _tested(pair, generator(seed, "permutation", *name))
        ends = _interval(pair, level, draws, generator(seed, "groups", *name))
        yield (*key, rho, *ends, p_value, part.height)


def _tested(pair: Doubles, random: np.random.Generator) -> tuple[float, float]:
    left, right = stats.rankdata(pair, axis=1)

    def rho(permuted: Doubles, axis: int) -> Doubles:
        return _pearson(permuted, np.broadcast_to(right, permuted.shape))

    found = stats.permutation_test(
        (left,), rho, permutation_type="pairings", vectorized=True, n_resamples=9999, rng=random
    )
    return float(found.statistic), float(found.pvalue)


def _interval(
    pair: Doubles, level: float, draws: int, random: np.random.Generator
) -> tuple[float, float]:
    chosen_DN = random.integers(0, pair.shape[1], (draws, pair.shape[1]))
    rhos = _pearson(*(stats.rankdata(values[chosen_DN], axis=1) for values in pair))
    known = rhos[~np.isnan(rhos)]
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _pearson(left: Doubles, right: Doubles) -> Doubles:
    """Compute the correlation along the last axis; NaN where one side does not vary."""
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in (left, right))
    size = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Doubles = (x * y).sum(axis=-1) / size
    return found
