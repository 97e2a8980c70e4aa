"""Measure associations of embeddings: WEAT (Caliskan et al. 2017) and SEAT (May et al. 2019).

Targets X and Y (such as names of two groups) are compared by how much closer each lies to the
attributes A than to B (such as pleasant and unpleasant words). WEAT embeds words, SEAT sentences
that contain them; the statistics are the same:

    s(w) = mean over a in A of cos(w, a) - mean over b in B of cos(w, b)
    d = (mean over X of s - mean over Y of s) / standard deviation of s over X and Y (ddof 1)

Shapes: N targets, M attributes, H dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import comb
from typing import Any, Final

import numpy as np
from scipy import stats

from raybias.seeding import generator
from raybias.stats.components import ROUNDING, Doubles
from raybias.stats.intervals import ALIKE, ONE_UNIT

#: Partitions of the targets up to which the test is exact; of more, so many are drawn.
EXACT: Final = 20_000
DRAWS: Final = 10_000


def associations(targets_NH: Doubles, a_MH: Doubles, b_MH: Doubles) -> Doubles:
    """Compute how much closer targets lie to A than to B: s [N], from -2 to 2."""
    unit_NH, unit_a, unit_b = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (targets_NH, a_MH, b_MH)
    )
    # The mean of cosines is the product with the mean of unit vectors.
    return np.asarray(unit_NH @ (unit_a.mean(axis=0) - unit_b.mean(axis=0)))


def effect_size(x_N: Doubles, y_N: Doubles, axis: int = -1) -> Doubles:
    """Compute d of associations [..., N]; NaN if none differs from another."""
    spread = np.concatenate([x_N, y_N], axis=axis).std(axis=axis, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x_N.mean(axis=axis) - y_N.mean(axis=axis)) / spread)


def estimate(sets: Mapping[str, Doubles], level: float, *key: str) -> dict[str, Any]:
    """Estimate d with its interval and test, as columns of schema.ESTIMATES.

    The interval is the BCa bootstrap's (Efron 1987) with 10,000 draws: targets of X and of Y are
    redrawn, each in its set, and attributes are not. `p` is the two-sided permutation test of which
    targets are X; it is exact up to 20,000 partitions, and else of 10,000 draws. The papers' is
    one-sided, half of it where X and Y are of one size.

    Parameters
    ----------
    sets: embeddings [N, H] of X, Y, A and B, none of length 0.
    level: of the interval, such as .95.
    key: names the draws.
    """
    size = len(sets["X"])
    both_N = associations(np.concatenate([sets["X"], sets["Y"]]), sets["A"], sets["B"])
    x_N, y_N = both_N[:size], both_N[size:]
    row: dict[str, Any] = {"n": len(both_N), "units": len(both_N)}
    if np.ptp(both_N) <= ROUNDING:
        return {**row, "value": None, "reason": ALIKE}
    row["value"] = float(effect_size(x_N, y_N))
    if min(len(x_N), len(y_N)) < 2:
        return {**row, "reason": ONE_UNIT}
    partitions = comb(len(both_N), size)
    exact = partitions <= EXACT
    tested = stats.permutation_test(
        (x_N, y_N),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=partitions if exact else DRAWS - 1,
        rng=generator("associations", "permutations", *key),
    )
    with warnings.catch_warnings():
        # Of few targets some draws have one alone, whose deviation is 0.
        warnings.simplefilter("ignore")
        drawn = stats.bootstrap(
            (x_N, y_N),
            effect_size,
            vectorized=True,
            n_resamples=DRAWS,
            confidence_level=level,
            method="BCa",
            rng=generator("associations", "bootstrap", *key),
        )
    low, high = map(float, drawn.confidence_interval)
    known = np.isfinite([low, high]).all()
    ends = {"low": low, "high": high} if known else {"reason": ALIKE}
    return {**row, **ends, "p": float(tested.pvalue)}
