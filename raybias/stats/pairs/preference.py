"""Preference scores of CrowS-Pairs and their like: Tables 2, 8 and 9 of Zhao2025.

A score is 100 k / n, ties in the denominator. Deltas are between equal definitions. The figures
of two peers that count otherwise stand beside it, under names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from raybias.stats.pairs.outcomes import (
    AVERAGES,
    METRIC,
    ORIGINAL,
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
    return in_order(with_deltas(table, [*METRIC, "bias_type", "part"]))


def with_intervals(
    preferences: pl.DataFrame, judged: Mapping[str, tuple[pl.DataFrame, pl.DataFrame]]
) -> pl.DataFrame:
    """Add the intervals of `value` (low, high) and of `delta` (delta_low, delta_high).

    Parameters
    ----------
    preferences: of `preferences`.
    judged: by part, what `bias_scores` and `effects` make of its pairs.
    """
    on = [*METRIC, "style", "bias_type", "part"]
    for place, ends in enumerate((("low", "high"), ("delta_low", "delta_high"))):
        found = pl.concat(
            tables[place].select(
                *on[:-1], pl.lit(part).alias("part"), low=pl.col("low"), high=pl.col("high")
            )
            for part, tables in judged.items()
        )
        found = found.rename(dict(zip(("low", "high"), ends, strict=True)))
        preferences = preferences.join(found, on=on, how="left", maintain_order="left")
    shown = pl.when(pl.col("delta").is_not_null()).then(pl.col("delta_low", "delta_high"))
    return preferences.with_columns(shown)


def with_deltas(table: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Add `delta`: the change of `value` against the style `original` of the same `by` and n."""
    base = table.filter(style=ORIGINAL).select(*by, "n", base="value")
    joined = table.join(base, on=[*by, "n"], how="left", maintain_order="left")
    return joined.with_columns(delta=pl.col("value") - pl.col("base")).drop("base")


def summary(preferences: pl.DataFrame, effects: pl.DataFrame, *, strict: bool) -> pl.DataFrame:
    """Table 2: scores of `original`; per style the extreme changes over types, and AVG's.

    Parameters
    ----------
    preferences: of `with_intervals`.
    effects: of `effects`, for the marks.
    strict: mark by McNemar's test after the correction, else by the paper's z test.

    Returns
    -------
    The metric, style, statistic, bias_type, value, its interval low to high, and `marked` (of
    AVG_delta; `avg_unweighted` has none in strict, where it has no test). Statistics: "score";
    over bias types the change of least and greatest size with its sign, "MIN" and "MAX" (so the
    paper's own numbers go), and the "lowest" and "highest" change; "AVG_delta". The interval of
    an extreme is that of its type alone: it does not know that the type was chosen.
    """
    whole = preferences.filter(part="all")
    columns = [*METRIC, "style", "statistic", "bias_type", "value", "low", "high"]
    score = whole.filter(style=ORIGINAL).with_columns(statistic=pl.lit("score"))
    changed = whole.filter(pl.col("style") != ORIGINAL, pl.col("delta").is_not_null())
    names = {"delta": "value", "delta_low": "low", "delta_high": "high"}
    changed = changed.drop(names.values()).rename(names)
    kinds = changed.filter(~pl.col("bias_type").is_in(AVERAGES)).sort("bias_type")
    ends = [
        kinds.sort(order, maintain_order=True, descending=name in ("MAX", "highest"))
        .group_by(*METRIC, "style", maintain_order=True)
        .first()
        .with_columns(statistic=pl.lit(name))
        for order, names in (
            (pl.col("value").abs(), ("MIN", "MAX")),
            (pl.col("value"), ("lowest", "highest")),
        )
        for name in names
    ]
    averages = changed.filter(pl.col("bias_type").is_in(AVERAGES))
    averages = averages.with_columns(statistic=pl.lit("AVG_delta"))
    joined = pl.concat([part.select(columns) for part in (score, *ends, averages)])
    rule = pl.when(pl.col("p_value").is_not_null()).then("survives") if strict else pl.col("paper")
    marks = effects.select(
        *METRIC, "style", "bias_type", marked=rule, statistic=pl.lit("AVG_delta")
    )
    on = [*METRIC, "style", "bias_type", "statistic"]
    return in_order(joined.join(marks, on=on, how="left", maintain_order="left"))
