"""Estimate paired outcomes: scores under styles, effects of styles, means over styles, trends.

A style's effect is the mean paired difference from `original`. Values are in percent and points.

Shapes: M metrics, S styles, N pairs, U units that are drawn (clusters, or pairs); K bias types and
two averages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.measures.kind import Table
from raybias.measures.pair_means import (
    AVERAGES,
    NEUTRAL,
    ORIGINAL,
    SCORES,
    UNWEIGHTED,
    Layout,
    in_order,
    layouts,
    mcnemar,
    means,
    paired_t,
    resolvable,
    two_proportions,
)
from raybias.schema import ALL, ESTIMATES
from raybias.stats.components import ROUNDING, Doubles, mean_squares
from raybias.stats.intervals import Rules, false_discovery, from_rows, verdicts
from raybias.stats.size_trends import sizes_in_names, trend, trend_rows

#: Points; smaller effects are of no concern.
_MARGIN: Final = 5.0
_TYPES: Final = pl.Schema(ESTIMATES)
#: What is corrected together: the bias types by one score under one style.
_FAMILY: Final = ("model", "method", "probe", "style", "score", "scope")
#: What rows know beside an estimate: the value that means no bias; of an effect, on which side of
#: that its score lies before and after (0 where the interval holds it), and the paper's p and z.
_MORE: Final = ("neutral", "before", "after", "paper_p", "paper_z", "flips")
_NUMBERS: Final = ("value", "low", "high", "p", "mde", "units")
_TREND: Final = ("method", "probe", "attribute", "style")


def paired_rows(outcomes: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    """Estimate scores, effects of styles, means over styles, and trends with model size."""
    scores, effects = score_rows(outcomes, rules), effect_rows(outcomes, rules)
    yield from (scores, effects, style_rows(outcomes, rules))
    by = ["model", *_TREND]
    changes = effects.filter(statistic="difference").select(*by, effect="value")
    both = scores.select(*by, "value").join(changes, on=by, how="left")
    yield size_trends(both, sizes_in_names(scores["model"]) | rules.sizes, level=rules.level)


def _table(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(
        [pl.DataFrame(schema={**_TYPES, **dict.fromkeys(_MORE, pl.Float64)}), *frames],
        how="diagonal_relaxed",
    )


def score_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate every score under every style, with a test of no bias.

    Preferences have Wilson's interval and the exact sign test; `pro_less_anti` has a percentile
    bootstrap and Student's test, and neither where differences do not vary. The mean over bias
    types has a bootstrap interval and no test. With clusters, intervals and tests are
    cluster-robust. `significant`: the interval excludes no bias, and p <= 1 - level. `mde`: the
    distance from no bias that these pairs show with 80% power.
    """
    table = _table(_scores(laid, rules) for laid in layouts(outcomes))
    scores = table.with_columns(statistic=pl.lit("score"))
    return in_order(_judged(scores, rules, pl.col("neutral")))


def _judged(table: pl.DataFrame, rules: Rules, neutral: pl.Expr) -> pl.DataFrame:
    """Give the rows with a test and an interval a verdict: both must exclude `neutral`."""
    tested = pl.col("p").is_not_null() & pl.col("low").is_not_null()
    outside = (pl.col("low") > neutral) | (pl.col("high") < neutral)
    seen = pl.when(tested).then(outside & (pl.col("p") <= 1 - rules.level))
    found = verdicts(table, rules, seen, family=_FAMILY)
    return found.with_columns(survives=pl.when(tested).then("survives"))


def _scores(laid: Layout, rules: Rules) -> pl.DataFrame:
    values, binary = laid.values_MSN, laid.binary_M1
    found = means(values, laid, binary, np.zeros_like(binary), rules)
    # Ties prefer neither side.
    preferred = np.where(laid.states_MSN == 2, 0, 2 * values - 1)
    p = _p(laid, np.where(binary[..., None], preferred, values), found.mean, found.square, found.n)
    # Of a preference the mean of squared distances from no bias is that of 0 and 1: a quarter.
    square = np.where(binary, 0.25, found.square) * found.design_effect
    # Without variance there is no interval.
    flat = ~(found.high - found.low > ROUNDING)
    # A preference is a share, and coreference a difference of shares.
    least_M1 = np.where(laid.neutral_M1 > 0, 0.0, -1.0)
    low, high = (
        np.where(flat, np.nan, np.clip(end, least_M1, 1.0)) for end in (found.low, found.high)
    )
    detectable = 100 * resolvable(square, np.maximum(found.n, 1), level=rules.level)
    return laid.estimates(
        found.n, laid.styles,
        {
            "value": 100 * found.mean, "low": 100 * low, "high": 100 * high, "p": p,
            "mde": np.where(laid.tested_K11, detectable, np.nan),
            "units": found.units, "neutral": laid.neutral_M1,
        },
    )  # fmt: skip


def _p(laid: Layout, values: Doubles, mean: Doubles, square: Doubles, n: Doubles) -> Doubles:
    """Test that means [K, M, S] of values [M, S, N] are 0; NaN for the mean over bias types."""
    if laid.cluster_N is None:
        signs = mcnemar(laid.sums(values > 0), laid.sums(values < 0))
        p = np.where(laid.binary_M1, signs, paired_t(mean, square, n))
    else:
        p = laid.robust(values, laid.cluster_N).p_value()
    return np.where(laid.tested_K11, p, np.nan)


def effect_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate the effect of each style, how many preferences flip, and how many styles matter.

    Effects on preferences have Tango's interval and McNemar's exact test, those on coreference a
    bootstrap interval and Student's paired test; with clusters intervals and tests are
    cluster-robust. The mean of types has a bootstrap or cluster-robust interval and no test.
    `significant`: the interval excludes 0, and p <= 1 - level. Without strict rules, p is of the
    paper's test of two proportions, which ignores pairing.

    Gives estimates over the pairs that a style and `original` have: the statistic `difference`; the
    score `flips`, the percentage of preferences that change (a tie is one of its own); and
    `styles_that_move_it`, how many effects survive, with the verdict as `reason`: "changes sign"
    (both intervals exclude no bias), "loses its sign" or "gains a sign" (one of them does), "moves,
    sign kept", "stable" (no effect survives, all intervals lie within 5 points, and there are so
    many pairs or clusters that if as many changed as the margin allows, some would be there) or
    "within noise".
    """
    several = (laid for laid in layouts(outcomes) if len(laid.styles) > 1)
    table = _table(_effects(laid, rules) for laid in several)
    effects = table.with_columns(statistic=pl.lit("difference"))
    changes = found = in_order(_judged(effects, rules, pl.lit(0.0)))
    if not rules.strict:
        marked, p = pl.col("paper_z").abs() > 1.96, pl.coalesce("paper_p", "p")
        changes = found.with_columns(p=p, significant=marked, survives=marked)
    flips = found.drop_nulls("flips").select(
        *("model", "method", "probe", "attribute", "style", "scope", "n", "units"),
        score=pl.lit("flips"), statistic=pl.lit("rate"), value=100 * pl.col("flips"),
    )  # fmt: skip
    # The mean of types has no test, and so no verdict.
    moved = (
        found.filter(pl.col("attribute") != UNWEIGHTED)
        .group_by("model", "method", "probe", "attribute", maintain_order=True)
        .agg(
            pl.col("survives").fill_null(value=False).sum().cast(pl.Float64).alias("value"),
            n=pl.len().cast(pl.Int64), units=pl.len().cast(pl.Int64), reason=_verdict(rules.level),
        )
        .with_columns(style=pl.lit(ALL), score=pl.lit("styles_that_move_it"),
                      statistic=pl.lit("score"))
    )  # fmt: skip
    return pl.concat([changes, flips, moved], how="diagonal_relaxed")


def _effects(laid: Layout, rules: Rules) -> pl.DataFrame:
    base = laid.styles.index(ORIGINAL)
    others = [place for place in range(len(laid.styles)) if place != base]
    arms = laid.values_MSN[:, others], laid.values_MSN[:, [base]]
    d_MSN = arms[0] - arms[1]
    both = ~np.isnan(d_MSN)
    stacked = np.stack([d_MSN, *(np.where(both, arm, np.nan) for arm in arms)])
    binary = laid.binary_M1
    arm_311 = np.array([False, True, True])[:, None, None]
    found = means(stacked, laid, binary & arm_311, binary & ~arm_311, rules)
    # Without variance there is no interval.
    flat = ~(found.high[:, 0] - found.low[:, 0] > ROUNDING)
    low, high = (np.where(flat, np.nan, 100 * end[:, 0]) for end in (found.low, found.high))
    n, square = np.maximum(found.n[:, 0], 1), found.square[:, 0]
    # Means over prompts are sixths: what is left of two equal ones is no effect.
    effect = np.round(found.mean[:, 1] - found.mean[:, 2], 12)
    flips = laid.sums(np.abs(laid.states_MSN[:, others] - laid.states_MSN[:, [base]]) > 0)
    z, z_p = two_proportions(found.mean[:, 2], found.mean[:, 1], n / laid.repeats)
    detectable = resolvable(square * found.design_effect[:, 0], n, level=rules.level)
    after, before = (
        1.0 * (100 * found.low[:, place] > laid.neutral_M1)
        - (100 * found.high[:, place] < laid.neutral_M1)
        for place in (1, 2)
    )
    return laid.estimates(
        found.n[:, 0], [laid.styles[place] for place in others],
        {
            "value": 100 * effect, "low": low, "high": high,
            "p": _p(laid, d_MSN, effect, square, n), "mde": 100 * detectable,
            "units": found.units[:, 0], "before": before, "after": after,
            "paper_p": np.where(binary, z_p, np.nan), "paper_z": np.where(binary, z, np.nan),
            "flips": np.where(binary, flips / n, np.nan),
        },
    )  # fmt: skip


def _verdict(level: float) -> pl.Expr:
    """Judge whether a conclusion holds under every style; the gravest reason comes first."""
    # Fewer units show no change by chance, more often than a test errs, if the margin is reached.
    enough = math.ceil(math.log(1 - level) / math.log(1 - _MARGIN / 100))
    moved = pl.col("survives").fill_null(value=False)
    before, after = pl.col("before"), pl.col("after")
    reasons = {
        "changes sign": (moved & (before * after < 0)).any(),
        "loses its sign": (moved & (before != 0) & (after == 0)).any(),
        "gains a sign": (moved & (before == 0) & (after != 0)).any(),
        "moves, sign kept": moved.any(),
        "stable": (
            (pl.col("low") >= -_MARGIN) & (pl.col("high") <= _MARGIN) & (pl.col("units") >= enough)
        ).fill_null(value=False).all(),
    }  # fmt: skip
    found = [pl.when(holds).then(pl.lit(name)) for name, holds in reasons.items()]
    return pl.coalesce(*found, pl.lit("within noise"))


def style_rows(outcomes: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Estimate means over styles, if pairs are redrawn, or pairs and styles.

    They cover the pairs that a metric has in all of its styles, at least two of each. Estimates
    have the style `all`; tests of the two scopes are corrected together.
    """
    tables: dict[str, list[pl.DataFrame]] = {"": [], ", styles": []}
    for laid in layouts(outcomes):
        unit_N = np.arange(len(laid.type_N)) if laid.cluster_N is None else laid.cluster_N
        n_KM1 = np.zeros((len(laid.rows), len(laid.metrics), 1))
        numbers = np.full((len(tables), len(_NUMBERS), *n_KM1.shape), np.nan)
        for m, (_, _, test) in enumerate(laid.metrics):
            read_SN = ~np.isnan(laid.values_MSN[m])
            styles = read_SN.any(axis=1)
            least, most = -NEUTRAL[test] or -100.0, 100 - NEUTRAL[test]
            for k, of_row_N in enumerate(laid.own_KN[:-1]):
                own_N = read_SN[styles].all(axis=0) & of_row_N
                values_NS = laid.values_MSN[m][styles][:, own_N].T
                units, place_N = np.unique(unit_N[own_N], return_inverse=True)
                if min(len(units), values_NS.shape[1]) < 2:
                    continue
                # Sums of units are scaled so that their mean is the mean over pairs.
                mean_S, parts_US = values_NS.mean(axis=0), np.zeros((len(units), styles.sum()))
                np.add.at(parts_US, place_N, values_NS - mean_S)
                table_US = mean_S + len(units) * parts_US / len(values_NS)
                crossed = mean_squares(100 * table_US - NEUTRAL[test], ("unit", "style"))
                n_KM1[k, m] = own_N.sum()
                for place, drawn in enumerate((("unit",), None)):
                    mean = crossed.estimate(drawn)
                    low, high = (np.clip(end, least, most) for end in mean.interval(rules.level))
                    numbers[place, :, k, m, 0] = (
                        mean.mean, low, high, mean.p_value(), mean.detectable(rules.level),
                        len(units),
                    )  # fmt: skip
        for (scope, found), each in zip(tables.items(), numbers, strict=True):
            if not n_KM1.any():
                continue
            columns = dict(zip(_NUMBERS, each, strict=True)) | {"neutral": laid.neutral_M1}
            table = laid.estimates(n_KM1, [ALL], columns)
            found.append(table.with_columns(pl.col("scope") + scope, statistic=pl.lit("score")))
    distances = pl.concat(
        verdicts(_table(found), rules, family=_FAMILY) for found in tables.values()
    )
    return in_order(distances.with_columns(pl.col("value", "low", "high") + pl.col("neutral")))


def size_trends(
    scores: pl.DataFrame, sizes: Mapping[str, float], *, level: float = 0.95
) -> pl.DataFrame:
    """Estimate trends over models of a score, and of a style's effect, with model size.

    An interval covers other models like these. Fewer than four models, or equal values, have no
    trend. `scores` have method, probe, attribute, style, model, value and effect (null for
    `original`); `sizes` are parameters by model, and models without are left out.

    Gives estimates for the model `all`, by quantity (`group`: "value" under the style, "effect" of
    it, or its size "absolute_effect"): the score `slope`, in points for each tenfold of parameters,
    by least squares; and `rank_correlation` (Spearman) with its two-sided permutation p (all orders
    up to eight models, else 9,999 seeded ones) and q.
    """
    sized = scores.filter(pl.col("model").is_in(list(sizes))).with_columns(
        size=pl.col("model").replace_strict(dict(sizes), return_dtype=pl.Float64),
        absolute_effect=pl.col("effect").abs(),
    )
    rows: list[dict[str, Any]] = []
    for names, part in sized.sort(*_TREND, "model").group_by(_TREND, maintain_order=True):
        for quantity in ("value", "effect", "absolute_effect"):
            known = part.select("size", quantity).drop_nulls()
            size, values = (known[name].to_numpy() for name in ("size", quantity))
            found = trend(size, values, level)
            if found is None:
                continue
            place = {**dict(zip(_TREND, names, strict=True)), "group": quantity, "n": len(size)}
            rows += trend_rows(place, found)
    table = from_rows(rows)
    listed = in_order(table.with_columns(q=false_discovery(table["p"])))
    return listed.sort(pl.col("score") != "slope", maintain_order=True).with_columns(
        model=pl.lit(ALL), statistic=pl.lit("score"), scope=pl.lit("models"), units="n"
    )


_NAMED: Final = pl.col("score").is_in([*SCORES.values()])
SCORE: Final = _NAMED & (pl.col("statistic") == "score")
EFFECT: Final = _NAMED & (pl.col("statistic") == "difference")
MOVED: Final = pl.col("score") == "styles_that_move_it"
#: Over all pairs, or all types of them.
OVER_PAIRS: Final = pl.col("attribute").is_in(AVERAGES)


def paired_tables(types: str, *, neutral: float) -> Iterator[Table]:
    """Yield the tables of a kind whose score without bias is `neutral`; its pairs have `types`."""
    whole = pl.col("condition") == ""
    for title, where in (
        ("over all pairs", OVER_PAIRS & (pl.col("style") != ALL) & whole),
        (f"by {types}, original style", ~OVER_PAIRS & (pl.col("style") == ORIGINAL) & whole),
        ("mean over styles, over all pairs", OVER_PAIRS & (pl.col("style") == ALL)),
    ):
        yield Table(title, SCORE & where, signed=not neutral, neutral=neutral)
    yield Table("effects of styles over all pairs, in points", EFFECT & OVER_PAIRS & whole,
                signed=True, neutral=0)  # fmt: skip
    yield Table("styles that move it, and whether its conclusion holds under every style",
                MOVED & OVER_PAIRS & whole, digits=0)  # fmt: skip


def check_styles(
    frame: pl.DataFrame, metric: Sequence[str], cell: Sequence[str], where: str
) -> None:
    """Refuse a style without the same cells under `original`."""
    keys = [*metric, *cell, "style"]
    styles = frame.group_by(metric).agg(
        (pl.col("style") == ORIGINAL).any(), first=pl.col("style").min()
    )
    for row in styles.filter(~pl.col("style")).sort(metric).head(1).iter_rows(named=True):
        raise DataError(
            f"{row['model']!r} has the style {row['first']!r} but not {ORIGINAL!r}",
            where=where,
            cure="score the original sentences too; effects are taken from them",
        )
    base = frame.filter(style=ORIGINAL).select(*metric, *cell)
    alone = frame.join(base, on=[*metric, *cell], how="anti").sort(keys).head(1)
    for row in alone.iter_rows(named=True):
        raise DataError(
            f"pair {row['pair_id']!r} of {row['model']!r} is there under {row['style']!r} but not "
            f"under {ORIGINAL!r}",
            where=where,
            cure="a style's pairs must be among those of the original",
        )
