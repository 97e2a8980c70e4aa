"""Bootstrap over pairs: a pair is drawn whole, with all its styles, prompts and models.

Drawing N pairs with replacement is a row of draw counts, so every mean of a draw is one
matrix product. Shapes: X means at once, N pairs, B draws.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from raybias.stats.bootstrap import draw_counts, quantile
from raybias.stats.intervals import ROUNDING

Doubles = npt.NDArray[np.float64]

#: Draw counts held at once; 32 MiB in float64.
_CHUNK_ENTRIES: Final = 1 << 22


def drawn_means(values_XN: Doubles, draws: int, random: np.random.Generator) -> Doubles:
    """Means [X, B] when pairs are drawn anew; NaN is a pair that a mean does not have.

    A draw with no pair of a mean has NaN there.
    """
    absent_XN = np.isnan(values_XN)
    whole = not absent_XN.any()
    filled_XN = np.where(absent_XN, 0.0, values_XN)
    # Products of float32 are exact as long as they are integers below 2**24.
    integers = bool((filled_XN == np.rint(filled_XN)).all()) and filled_XN.shape[1] < 1 << 20
    exact = np.float32 if integers else np.float64
    filled_XN = filled_XN.astype(exact)
    pairs = values_XN.shape[1]
    means_XB = np.empty((len(values_XN), draws))
    step = max(1, _CHUNK_ENTRIES // max(pairs, 1))
    for start in range(0, draws, step):
        weights_BN = draw_counts(random, min(step, draws - start), pairs)
        sums_XB = (filled_XN @ weights_BN.T.astype(exact, copy=False)).astype(np.float64)
        if whole:
            means_XB[:, start : start + step] = sums_XB / pairs
            continue
        counts_XB = (~absent_XN).astype(np.float32) @ weights_BN.T
        with np.errstate(invalid="ignore", divide="ignore"):
            means_XB[:, start : start + step] = sums_XB / counts_XB
    means_XB[np.abs(means_XB) < ROUNDING] = 0
    return means_XB


def percentiles(drawn_XB: Doubles, n_X: npt.ArrayLike, level: float) -> tuple[Doubles, Doubles]:
    """Percentile intervals, expanded for few pairs; NaN where fewer than two pairs are.

    The percentiles are those at which a normal sample of n has a Student interval
    (Hesterberg 2015), since the plain ones are too narrow by sqrt((n - 1) / n) and more.
    """
    n = np.broadcast_to(np.asarray(n_X, dtype=np.float64), drawn_XB.shape[:1])
    known = n > 1
    freedom = np.maximum(n - 1, 1)
    tail = stats.norm.cdf(stats.t.ppf((1 - level) / 2, freedom) * np.sqrt((freedom + 1) / freedom))
    ordered = np.sort(drawn_XB, axis=1)  # NaN last
    there = np.count_nonzero(~np.isnan(ordered), axis=1)
    low, high = (
        np.where(known, quantile(ordered, there, share), np.nan) for share in (tail, 1 - tail)
    )
    return low, high
