"""Ask of a mean over styles whether other pairs, or other ways of writing them, would show it too.

Every pair is read in every style, so pairs and styles are crossed, and a score over all of them
varies with both. Its interval covers other pairs (scope `pairs`), or other pairs in other styles
(scope `styles`, which takes the styles of a study as a sample of those that there are). How much
of a single answer is the pair, the style, and the pair's own way with that style are the components
of its variance.

Shapes: S styles, N pairs, U units that are drawn (clusters, or pairs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl

from raybias.stats.components import Balanced, Doubles, symmetric_sums
from raybias.stats.intervals import Adjust, verdicts
from raybias.stats.pairs.means import Layout, lay_out
from raybias.stats.pairs.outcomes import METRIC, NEUTRAL, WEIGHTED, in_order

PairScope = Literal["pairs", "styles"]
PAIR_SCOPES: Final[tuple[PairScope, ...]] = get_args(PairScope)

#: The question that an interval of each scope answers.
REDRAWN: Final[Mapping[PairScope, str]] = {
    "pairs": "pairs are redrawn, in these very styles",
    "styles": "pairs and styles are redrawn",
}

_NUMBERS: Final = ("value", "low", "high", "neutral", "p_value", "detectable")
_TYPES: Final = {
    **dict.fromkeys((*METRIC, "bias_type", "scope"), pl.String),
    **dict.fromkeys(("n", "clusters", "n_styles"), pl.Int64),
    **dict.fromkeys(_NUMBERS, pl.Float64),
}
_FACETS: Final = ("pair", "style")


def style_scopes(
    outcomes: pl.DataFrame, *, level: float = 0.95, adjust: Adjust = "benjamini_hochberg"
) -> pl.DataFrame:
    """Judge every metric's mean over styles under both scopes, by bias type and over all pairs.

    Parameters
    ----------
    outcomes: of `pair_outcomes` or `coreference_outcomes`, or both joined. The pairs enter that a
        metric has in all of its styles; two styles and two pairs are the least.
    level: of the intervals and of the tests.
    adjust: with benjamini_hochberg, what `survives` has q <= 1 - level over all rows of its scope.

    Returns
    -------
    A row per metric, bias_type (and `avg_weighted`) and scope: `n` pairs in `clusters` (null where
    pairs are drawn alone), `n_styles`, `value` in percent or points, its interval `low` to `high`,
    `neutral`, the value that means no bias, `p_value`, `detectable` (the distance from `neutral`
    that this design shows with 80% power), `q_value`, `significant` and `survives`.
    """
    rows: list[dict[str, Any]] = []
    for _, part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        rows += _probe_rows(lay_out(part), level)
    table = pl.DataFrame(rows, _TYPES).with_columns(pl.col(_NUMBERS).fill_nan(None))
    judged = pl.concat(
        verdicts(table.filter(scope=scope), level=level, adjust=adjust) for scope in PAIR_SCOPES
    )
    return in_order(judged.with_columns(pl.col("low", "high", "value") + pl.col("neutral")))


def _probe_rows(laid: Layout, level: float) -> Iterator[dict[str, Any]]:
    """Yield rows whose value and interval are distances from `neutral`."""
    for m, (model, score, test) in enumerate(laid.metrics):
        read_SN = ~np.isnan(laid.values_MSN[m])
        styles = read_SN.any(axis=1)
        for name in laid.rows[:-1]:
            own_N = read_SN[styles].all(axis=0)
            if name != WEIGHTED:
                own_N &= laid.type_N == laid.types.index(name)
            unit_N = np.arange(len(own_N)) if laid.cluster_N is None else laid.cluster_N
            table_US = _by_unit(laid.values_MSN[m][styles][:, own_N].T, unit_N[own_N])
            if min(table_US.shape) < 2:
                continue
            crossed = Balanced(100 * table_US - NEUTRAL[test], ("unit", "style"))
            for scope, drawn in zip(PAIR_SCOPES, (("unit",), None), strict=True):
                found = crossed.estimate(drawn)
                least = -NEUTRAL[test] or -100.0
                low, high = (
                    np.clip(end, least, 100 - NEUTRAL[test]) for end in found.interval(level)
                )
                yield {
                    "model": model, "score": score, "probe": laid.probe, "bias_type": name,
                    "scope": scope, "n": int(own_N.sum()), "n_styles": table_US.shape[1],
                    "clusters": None if laid.cluster_N is None else len(table_US),
                    "value": float(found.mean), "low": float(low), "high": float(high),
                    "neutral": NEUTRAL[test], "p_value": float(found.p_value()),
                    "detectable": float(found.detectable(level)),
                }  # fmt: skip


def _by_unit(values_NS: Doubles, unit_N: np.ndarray) -> Doubles:
    """Give each unit its part in the means over pairs, so that the mean of the parts is theirs."""
    units, place_N = np.unique(unit_N, return_inverse=True)
    mean_S = values_NS.mean(axis=0) if len(values_NS) else np.zeros(values_NS.shape[1])
    parts_US = np.zeros((len(units), values_NS.shape[1]))
    np.add.at(parts_US, place_N, values_NS - mean_S)
    return mean_S + len(units) * parts_US / max(len(values_NS), 1)


def style_components(scores: pl.DataFrame) -> pl.DataFrame:
    """Take the variance of a single answer apart: by pair, by style, and what is left of both.

    Parameters
    ----------
    scores: schema.PAIR_SCORES; cells may be missing.

    Returns
    -------
    The metric, bias_type ("all" over all types), quantity, n_styles, n_pairs, and three standard
    deviations: `sd_pair`, `sd_style` and `sd_pair_x_style` (a pair's own answer to a style); 0
    where the estimated variance is negative. Quantities: "preference" (0 or 100, so in points),
    "margin" (score_more less score_less) and "level" (their mean), the last two in units of the
    score, of its logarithm where scores are probabilities.
    """
    by = [*METRIC, "bias_type", "quantity"]
    cells = _quantities(scores)
    cells = pl.concat([cells.with_columns(bias_type=pl.lit("all")), cells]).drop_nulls("value")
    several = cells.filter(*(pl.col(facet).n_unique().over(by) > 1 for facet in _FACETS))
    counts = several.group_by(by).agg(
        n_styles=pl.col("style").n_unique().cast(pl.Int64),
        n_pairs=pl.col("pair").n_unique().cast(pl.Int64),
    )
    found = symmetric_sums(several, by, _FACETS).unnest("components")
    names = {"pair": "sd_pair", "style": "sd_style", "pair x style": "sd_pair_x_style"}
    spread = (pl.col(old).clip(lower_bound=0).sqrt().alias(new) for old, new in names.items())
    table = counts.join(found, on=by, how="left").select(*by, "n_styles", "n_pairs", *spread)
    return table.sort(*METRIC, pl.col("bias_type") != "all", "bias_type", "quantity")


def _quantities(scores: pl.DataFrame) -> pl.DataFrame:
    more, less = pl.col("score_more"), pl.col("score_less")
    # A probability is positive; a log-likelihood is not, but for a sentence that is certain.
    likely = pl.min_horizontal("score_more", "score_less").min().over(METRIC) > 0
    high, low = (pl.when(likely).then(x.log()).otherwise(x) for x in (more, less))
    return scores.select(
        *METRIC, "bias_type", "style", pair="pair_id",
        preference=100 * (pl.col("preference") == 1).fill_null(False).cast(pl.Float64),
        margin=high - low,
        level=(high + low) / 2,
    ).unpivot(
        ["preference", "margin", "level"], index=[*METRIC, "bias_type", "style", "pair"],
        variable_name="quantity",
    )  # fmt: skip
