"""Judge scores that are no means, such as ratios, where other units of their items might be there.

Questions that were made from one template are alike. A score is computed of sums over such units,
and its standard error of its values without each of them (jackknife, Tukey 1958; too large rather
than too small, Efron and Stein 1981). The interval is Student's, with the degrees of freedom of as
many equal units as the unequal ones are worth (Kish 1965), on the logit scale of the score's range;
it holds the truth more often than the percentile bootstrap (`benchmarks/score_coverage.py`).

Shapes: U units, M scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import special, stats

from raybias.stats.components import Doubles, MeanEstimate, satterthwaite
from raybias.stats.intervals import ROUNDING, UNDEFINED

ONE_UNIT: Final = "one unit"
CARRIED: Final = "not defined without one unit"
ALIKE: Final = "units do not vary"
AT_END: Final = "at the end of its range"


def without_each(counts_U: Doubles) -> Doubles:
    """Add counts [U, ...] over all units but one: [U, ...]."""
    return np.asarray(counts_U.sum(axis=0) - counts_U)


def unit_intervals(
    value_M: Doubles,
    without_MU: Doubles,
    sizes_U: Doubles,
    bounds: tuple[float, float],
    level: float,
) -> tuple[Doubles, Doubles, str | None]:
    """Compute low and high [M] of scores, NaN where there is no interval, and why there is none.

    `without_MU` are the scores of `without_each`, `sizes_U` the items of each unit (a unit of none
    is not there), and `bounds` the least and the greatest that a score can be.
    """
    variance_M, freedom, reason = _variance(value_M, without_MU, sizes_U)
    found = MeanEstimate(value_M, variance_M, np.full(len(value_M), freedom))
    return _ends(found, reason, bounds, level)


def crossed_intervals(
    value_M: Doubles,
    facets: Sequence[tuple[Doubles, Doubles]],
    bounds: tuple[float, float],
    level: float,
) -> tuple[Doubles, Doubles, str | None]:
    """Compute the intervals of `unit_intervals` where two crossed facets are resampled.

    Their variances are added and that over their cells, the third of `facets`, is taken away
    (Cameron, Gelbach and Miller 2011); never less than the larger of the two.
    """
    found = [_variance(value_M, *each) for each in facets]
    reason = next((each[2] for each in found[:2] if each[2]), None)
    variances = [each[0] if each[2] is None else np.zeros(len(value_M)) for each in found]
    freedoms = [np.full(len(value_M), each[1]) for each in found]
    signed = [variances[0], variances[1], -variances[2]]
    whole = MeanEstimate(value_M, *satterthwaite([*zip(signed, freedoms, strict=True)]))
    for variance_M, freedom_M in zip(variances[:2], freedoms[:2], strict=True):
        whole = whole.at_least(MeanEstimate(value_M, variance_M, freedom_M))
    return _ends(whole, reason, bounds, level)


def student(
    value_M: Doubles, without_MU: Doubles, sizes_U: Doubles, level: float
) -> tuple[Doubles, Doubles, float, str | None]:
    """Compute Student's interval of a mean without bounds and its two-sided p, or why not."""
    variance_M, freedom, reason = _variance(value_M, without_MU, sizes_U)
    error_M = np.sqrt(variance_M)
    if reason is not None or not error_M[0] > ROUNDING:
        nothing = np.full(len(value_M), np.nan)
        return nothing, nothing, float("nan"), reason or ALIKE
    reach_M = stats.t.ppf((1 + level) / 2, freedom) * error_M
    p = float(2 * stats.t.sf(abs(value_M[0]) / error_M[0], freedom))
    return value_M - reach_M, value_M + reach_M, p, None


def _variance(
    value_M: Doubles, without_MU: Doubles, sizes_U: Doubles
) -> tuple[Doubles, float, str | None]:
    """Compute the jackknife's variance [M], its degrees of freedom, and why there is none."""
    there_U = sizes_U > 0
    without_MU, sizes_U = without_MU[:, there_U], sizes_U[there_U]
    units, nothing = len(sizes_U), np.full(len(value_M), np.nan)
    reason = None
    if units < 2:
        reason = ONE_UNIT
    elif np.isnan(value_M).any():
        reason = UNDEFINED
    elif np.isnan(without_MU).any():
        reason = CARRIED
    elif (np.ptp(without_MU, axis=1) < ROUNDING).any():
        reason = ALIKE
    if reason is not None:
        return nothing, 1.0, reason
    worth = sizes_U.sum() ** 2 / (sizes_U**2).sum()
    return without_MU.var(axis=1) * (units - 1), max(float(worth) - 1, 1.0), None


def _ends(
    found: MeanEstimate, reason: str | None, bounds: tuple[float, float], level: float
) -> tuple[Doubles, Doubles, str | None]:
    least, greatest = bounds
    nothing = np.full(len(found.mean), np.nan)
    if reason is not None:
        return nothing, nothing, reason
    place_M = (found.mean - least) / (greatest - least)
    if ((place_M < ROUNDING) | (place_M > 1 - ROUNDING)).any():
        return nothing, nothing, AT_END
    slope_M = place_M * (1 - place_M) * (greatest - least)
    reach_M = stats.t.ppf((1 + level) / 2, found.freedom) * np.sqrt(found.variance) / slope_M
    low_M, high_M = (
        least + (greatest - least) * special.expit(special.logit(place_M) + sign * reach_M)
        for sign in (-1, 1)
    )
    return low_M, high_M, None
