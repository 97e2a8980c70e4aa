"""Test each score of pairs against the value that means no bias, by bias type and over all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.stats.intervals import ROUNDING, Adjust, false_discovery
from raybias.stats.pairs import paired_tests
from raybias.stats.pairs.means import lay_out, means
from raybias.stats.pairs.outcomes import METRIC, NEUTRAL, UNWEIGHTED, in_order

_NUMBERS: Final = ("value", "low", "high", "neutral", "p_value", "resolvable")
_TYPES: Final = {
    **dict.fromkeys((*METRIC, "bias_type", "style", "test"), pl.String),
    **dict.fromkeys(("n", "clusters", "ties"), pl.Int64),
    **dict.fromkeys(_NUMBERS, pl.Float64),
}
#: How a score is tested, by how its changes are.
_TESTS: Final = {"mcnemar": "sign", "paired_t": "t"}
CLUSTERED: Final = "t by clusters"


def bias_scores(
    outcomes: pl.DataFrame,
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    adjust: Adjust = "benjamini_hochberg",
) -> pl.DataFrame:
    """Compute every metric's score under every style with an interval and a test of no bias.

    Parameters
    ----------
    outcomes: of `pair_outcomes` or `coreference_outcomes`, or both joined.
    level: of the intervals and of the tests.
    draws, seed: of the bootstrap over pairs.
    adjust: whether `survives` asks for the correction for many tests.

    Returns
    -------
    A row per metric, bias_type (and `avg_weighted`: over pairs; `avg_unweighted`: the mean over
    bias types) and style: `n` pairs in `clusters` (null where pairs are drawn alone), `ties` (null
    for coreference), `value` in percent or points, its interval `low` to `high`, and `neutral`, the
    value that means no bias.

    Preferences: `value` is 100 k / n, ties in the denominator; the interval is Wilson's, and
    `test` "sign" is the exact binomial test of k against the untied pairs that prefer sent_less.
    Coreference: `value` is pro less anti, in points; the interval is a percentile bootstrap, and
    `test` "t" is Student's; differences that do not vary have neither. The mean
    over bias types has a bootstrap interval and no test. Where pairs come in clusters, intervals
    and the test "t by clusters" are cluster-robust (`stats.clusters`), Wilson's of as many pairs
    as the clusters are worth.

    `q_value`: Benjamini-Hochberg over the whole table. `significant`: the interval excludes
    `neutral` and p <= 1 - level; `survives`: after the correction too. `resolvable`: the
    distance from `neutral` that these n pairs show with 80% power.
    """
    rows: list[dict[str, Any]] = []
    for _, part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        rows += _probe_rows(part, level=level, draws=draws, seed=seed)
    table = pl.DataFrame(rows, _TYPES).with_columns(pl.col(_NUMBERS).fill_nan(None))
    outside = (pl.col("low") > pl.col("neutral")) | (pl.col("high") < pl.col("neutral"))
    corrected = "q_value" if adjust == "benjamini_hochberg" else "p_value"
    tested = pl.col("p_value").is_not_null() & pl.col("low").is_not_null()
    return in_order(
        table.with_columns(q_value=false_discovery(table["p_value"])).with_columns(
            significant=pl.when(tested).then(outside & (pl.col("p_value") <= 1 - level)),
            survives=pl.when(tested).then(outside & (pl.col(corrected) <= 1 - level)),
        )
    )


def _probe_rows(
    part: pl.DataFrame, *, level: float, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    laid = lay_out(part)
    values, binary = laid.values_MSN, laid.binary_M11
    found = means(values, laid, binary, level=level, draws=draws, seed=seed)
    tied = laid.states_MSN == 2
    ties, more = laid.sums(tied), laid.sums(np.where(binary, np.nan_to_num(values), 0))
    neutral_M1 = np.array([NEUTRAL[test] for *_, test in laid.metrics])[:, None]
    # Of a preference the mean of squared distances from no bias is that of 0 and 1: a quarter.
    square = np.where(binary[..., 0], 0.25, found.square) * found.design_effect
    resolvable = paired_tests.resolvable(square, np.maximum(found.n, 1), level=level)
    if laid.cluster_N is None:
        sign = paired_tests.mcnemar(more, np.where(binary[..., 0], found.n - more - ties, 0))
        student = paired_tests.paired_t(found.mean, found.square, found.n)
        p_value = np.where(binary[..., 0], sign, student)
    else:
        p_value = laid.p_values(np.where(binary, np.where(tied, 0, 2 * values - 1), values))
    # Values that do not vary say nothing of others.
    flat = ~(found.high - found.low > ROUNDING)
    # A preference is a share, and coreference a difference of shares.
    least_M1 = np.where(neutral_M1 > 0, 0.0, -1.0)
    low, high = (
        np.where(flat, np.nan, np.clip(end, least_M1, 1.0)) for end in (found.low, found.high)
    )
    for k, m, s in zip(*np.nonzero(found.n), strict=True):
        model, score, test = laid.metrics[m]
        row = {
            "model": model, "score": score, "probe": laid.probe, "bias_type": laid.rows[k],
            "style": laid.styles[s], "n": int(found.n[k, m, s]),
            "test": _TESTS[test] if laid.cluster_N is None else CLUSTERED,
            "clusters": None if laid.cluster_N is None else int(found.clusters[k, m, s]),
            "ties": int(ties[k, m, s]) if test == "mcnemar" else None,
            "value": 100 * float(found.mean[k, m, s]), "neutral": float(neutral_M1[m, 0]),
            "low": 100 * float(low[k, m, s]), "high": 100 * float(high[k, m, s]),
        }  # fmt: skip
        if laid.rows[k] != UNWEIGHTED:
            row["p_value"] = float(p_value[k, m, s])
            row["resolvable"] = 100 * float(resolvable[k, m, s])
        yield row
