"""Judge scores that are no means, such as ratios, where the units of their items are drawn anew.

Questions that were made from one template are alike, as are sentences about one target term, so
another test of the kind would have other templates or terms. A score is computed of sums over
units, and drawing units with replacement is a weight for each: the product-weight bootstrap
(Owen 2007) with one facet. A draw has one unit fewer than there are, which makes its variance
unbiased (Rao and Wu 1988), and its percentiles are those at which a normal sample has a Student
interval (Hesterberg 2015), whose degrees of freedom are those of as many equal units as the
unequal ones are worth (Kish 1965).

Shapes: U units, B draws, M scores; [...] any axes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raybias.seeding import generator
from raybias.stats.bootstrap import draw_counts, gap_intervals
from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, UNDEFINED

#: Reasons for no interval; `UNDEFINED` is the third.
ONE_UNIT = "one unit"
ALIKE = "units do not vary"


def ratio(part: Doubles, whole: Doubles) -> Doubles:
    """Divide; NaN where the whole is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def drawn_sums(counts_U: Doubles, draws: int, *key: str | int) -> Doubles:
    """Add counts [U, ...] over drawn units: [B, ...].

    Parameters
    ----------
    counts_U: units in an order of their own, such as by name.
    key: of the draws; the same for all models, so that they are drawn alike.
    """
    units = len(counts_U)
    weights_BU = draw_counts(generator(*key), draws, units, max(units - 1, 1))
    flat_BX = weights_BU @ counts_U.reshape(units, -1)
    return np.asarray(flat_BX.reshape(draws, *counts_U.shape[1:]), dtype=np.float64)


def unit_intervals(
    value_M: Doubles, drawn_MB: Doubles, sizes_MU: Doubles, level: float
) -> tuple[Doubles, Doubles, list[str | None]]:
    """Compute low and high [M], NaN where there is no interval, and why there is none.

    Parameters
    ----------
    drawn_MB: the scores of `drawn_sums`; NaN where a draw has none.
    sizes_MU: items of each unit.
    """
    square_M = (sizes_MU**2).sum(axis=1)
    worth_M = sizes_MU.sum(axis=1) ** 2 / np.where(square_M > 0, square_M, 1)
    ordered_MB = np.sort(drawn_MB, axis=1)
    low_M, high_M, _ = gap_intervals(ordered_MB, np.maximum(worth_M - 1, 1), level)
    reasons: list[str | None] = []
    for value, drawn_B, sizes_U in zip(value_M, ordered_MB, sizes_MU, strict=True):
        known_B = drawn_B[~np.isnan(drawn_B)]
        reason = None
        if np.count_nonzero(sizes_U) < 2:
            reason = ONE_UNIT
        elif np.isnan(value) or len(known_B) < level * len(drawn_B):
            reason = UNDEFINED
        elif np.ptp(known_B) < ROUNDING:
            reason = ALIKE
        reasons.append(reason)
    none_M: npt.NDArray[np.bool_] = np.array([reason is not None for reason in reasons])
    return np.where(none_M, np.nan, low_M), np.where(none_M, np.nan, high_M), reasons
