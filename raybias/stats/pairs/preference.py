"""Preference scores of CrowS-Pairs and their like: Tables 2, 8 and 9 of Zhao2025.

A score is 100 k / n, ties in the denominator. Deltas are between equal definitions. The figures
of two peers that count otherwise stand beside it, under names of their own.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.stats.pairs.outcomes import (
    METRIC,
    UNWEIGHTED,
    WEIGHTED,
    in_order,
)

#: What a score counts among: all pairs; those without ties, as nyu-mll and Bias-Bench do by
#: direction; those that the rule can score, as Bias-Bench does over all.
_AMONG: Final = {
    "value": pl.col("n"),
    "of_untied": pl.col("n") - pl.col("ties"),
    "of_scored": pl.col("n") - pl.col("unscored"),
}


def preferences(scores: pl.DataFrame) -> pl.DataFrame:
    """Preference scores per bias type and over all, whole and by direction (Tables 8, 9).

    Parameters
    ----------
    scores: schema.PAIR_SCORES.

    Returns
    -------
    A row per metric, style, bias_type (and `avg_weighted`: over pairs; `avg_unweighted`: the
    mean over bias types) and part ("all", "stereo", "antistereo"): n pairs, k preferring
    sent_more, ties, `unscored` (those of the ties that the rule has nothing to score in), `turned`
    (those whose preference is another with the other begin token; null where there is none),
    `value` = 100 k / n, `of_untied` = 100 k / (n - ties), which nyu-mll and Bias-Bench print by
    direction, `of_scored` = 100 k / (n - unscored), which Bias-Bench prints over all, and
    `delta`, the change of `value` against `original` (null where the style lacks pairs: see
    `effects`). In the stereo part sent_more is the stereotype, in the antistereo part it is the
    anti-stereotype.
    """
    tied = pl.col("preference").is_null()
    by = [*METRIC, "style", "bias_type", "part"]
    counts = (
        pl.len().cast(pl.Int64).alias("n"),
        (pl.col("preference") == 1).sum().cast(pl.Int64).alias("k"),
        tied.sum().cast(pl.Int64).alias("ties"),
        (tied & pl.col("score_more").is_null()).sum().cast(pl.Int64).alias("unscored"),
        pl.when(pl.col("turned").is_not_null().any())
        .then(pl.col("turned").sum().cast(pl.Int64))
        .alias("turned"),
    )
    directed = scores.with_columns(part=pl.col("direction"))
    both = pl.concat([scores.with_columns(part=pl.lit("all")), directed])
    figures = {name: 100 * pl.col("k") / pl.when(n > 0).then(n) for name, n in _AMONG.items()}
    kinds = both.group_by(by).agg(*counts).with_columns(**figures)
    over = [name for name in by if name != "bias_type"]
    sums = kinds.group_by(over).agg(
        pl.col("n", "k", "ties", "unscored").sum(),
        # A sum of nothing is no count.
        pl.when(pl.col("turned").is_not_null().any()).then(pl.col("turned").sum()).alias("turned"),
        pl.col(list(figures)).sort_by("bias_type").mean(),
    )
    unweighted = sums.with_columns(bias_type=pl.lit(UNWEIGHTED))
    weighted = sums.with_columns(bias_type=pl.lit(WEIGHTED), **figures)
    table = pl.concat([kinds, *(f.select(kinds.columns) for f in (weighted, unweighted))])
    return in_order(table)
