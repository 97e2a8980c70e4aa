"""Judge scores that are no means, such as ratios, where other units of their items might be there.

The standard error is that of the score without each unit, such as the questions of one template
(jackknife, Tukey 1958; too large rather than too small, Efron and Stein 1981). The interval is
Student's, with the degrees of freedom of as many equal units as the unequal ones are worth (Kish
1965), on the logit scale of the score's range; it holds the truth more often than the percentile
bootstrap (`benchmarks/score_coverage.py`).

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
    facets: Sequence[tuple[Doubles, Doubles]],
    bounds: tuple[float, float] | None,
    level: float,
) -> tuple[Doubles, Doubles, float, str | None]:
    """Compute low and high [M] of scores, p, and why there is no interval (NaN).

    `facets` are resampled: of each the scores of `without_each` [M, U] and the items of each unit
    [U] (a unit of none is not there). Of two crossed ones a third gives their cells: the variances
    of both are added and that of the cells is taken away (Cameron, Gelbach and Miller 2011), never
    less than the larger of the two. `bounds` are the least and the greatest that a score can be;
    without them it is a mean, tested against 0.
    """
    nothing = np.full(len(value_M), np.nan)
    parts = [_jackknifed(value_M, *facet) for facet in facets]
    reason = next((why for _, why in parts[:2] if why), None)
    found, *others = (estimate for estimate, _ in parts)
    if others and reason is None:
        cells = -np.nan_to_num(others[1].variance)
        terms = [(each.variance, each.freedom) for each in (found, others[0])]
        whole = MeanEstimate(value_M, *satterthwaite([*terms, (cells, others[1].freedom)]))
        found = whole.at_least(found).at_least(others[0])
    if bounds is None:
        if reason is None and not found.variance[0] > ROUNDING**2:
            reason = ALIKE
        ends = (nothing, nothing) if reason else found.interval(level)
        return *ends, float("nan") if reason else float(found.p_value()[0]), reason
    least, greatest = bounds
    place_M = (value_M - least) / (greatest - least)
    if reason is None and ((place_M < ROUNDING) | (place_M > 1 - ROUNDING)).any():
        reason = AT_END
    if reason is not None:
        return nothing, nothing, float("nan"), reason
    slope_M = place_M * (1 - place_M) * (greatest - least)
    reach_M = stats.t.ppf((1 + level) / 2, found.freedom) * np.sqrt(found.variance) / slope_M
    low_M, high_M = (
        least + (greatest - least) * special.expit(special.logit(place_M) + sign * reach_M)
        for sign in (-1, 1)
    )
    return low_M, high_M, float("nan"), None


def _jackknifed(
    value_M: Doubles, without_MU: Doubles, sizes_U: Doubles
) -> tuple[MeanEstimate, str | None]:
    """Estimate scores [M] by the jackknife; or say why there is no variance."""
    there_U = sizes_U > 0
    without_MU, sizes_U = without_MU[:, there_U], sizes_U[there_U]
    units, ones_M = len(sizes_U), np.ones(len(value_M))
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
        return MeanEstimate(value_M, np.nan * ones_M, ones_M), reason
    freedom = max(float(sizes_U.sum() ** 2 / (sizes_U**2).sum()) - 1, 1.0)
    return MeanEstimate(value_M, without_MU.var(axis=1) * (units - 1), freedom * ones_M), None
