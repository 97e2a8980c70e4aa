"""Judge scores that are no means, such as ratios, where other units of their items might be there.

Questions that were made from one template are alike, as are sentences about one target term, so
another test of the kind would have other templates or terms. A score is computed of sums over such
units, and its standard error of its values without each of them (jackknife, Tukey 1958; too large
rather than too small, Efron and Stein 1981). The interval is Student's, with the degrees of freedom
of as many equal units as the unequal ones are worth (Kish 1965), on the logit scale of the score's
range, where a share near its end is less skewed. `benchmarks/unit_coverage.py` compares it with the
percentile bootstrap, which holds the truth less often.

Shapes: U units, M scores.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import special, stats

from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, UNDEFINED

#: Reasons for no interval, beside `UNDEFINED`.
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

    Parameters
    ----------
    without_MU: the scores of `without_each`.
    sizes_U: items of each unit; a unit of none is not there.
    bounds: the least and the greatest that a score can be.
    """
    there_U = sizes_U > 0
    without_MU, sizes_U = without_MU[:, there_U], sizes_U[there_U]
    units, nothing = len(sizes_U), np.full(len(value_M), np.nan)
    if units < 2:
        return nothing, nothing, ONE_UNIT
    if np.isnan(value_M).any():
        return nothing, nothing, UNDEFINED
    if np.isnan(without_MU).any():
        return nothing, nothing, CARRIED
    if (np.ptp(without_MU, axis=1) < ROUNDING).any():
        return nothing, nothing, ALIKE
    variance_M = without_MU.var(axis=1) * (units - 1)
    worth = sizes_U.sum() ** 2 / (sizes_U**2).sum()
    quantile = stats.t.ppf((1 + level) / 2, max(worth - 1, 1))
    least, greatest = bounds
    place_M = (value_M - least) / (greatest - least)
    if ((place_M < ROUNDING) | (place_M > 1 - ROUNDING)).any():
        return nothing, nothing, AT_END
    slope_M = place_M * (1 - place_M) * (greatest - least)
    reach_M = quantile * np.sqrt(variance_M) / slope_M
    low_M, high_M = (
        least + (greatest - least) * special.expit(special.logit(place_M) + sign * reach_M)
        for sign in (-1, 1)
    )
    return low_M, high_M, None
