"""Compute intervals of shares and of their differences, which have a width where nothing differs.

The counts, and the number that they are out of, may be as many as clusters are worth (Dean and
Pagano 2015).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from raybias.stats.components import Doubles

#: Of the range of a difference of shares, so that the end of its interval is known to 1e-12.
_HALVINGS: Final = 41


def wilson(share: Doubles, n: Doubles, quantile: Doubles) -> tuple[Doubles, Doubles]:
    """Compute Wilson's intervals of shares of n, which have a width even where a share is 0 or 1.

    `n` are independent observations, or as many as clusters are worth (Dean and Pagano 2015);
    `quantile` is of the normal distribution, or of Student's t where n is estimated.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        square = quantile**2 / n
        middle = share + square / 2
        reach = quantile * np.sqrt(share * (1 - share) / n + square / (4 * n))
        return (middle - reach) / (1 + square), (middle + reach) / (1 + square)


def tango(up: Doubles, down: Doubles, n: Doubles, quantile: Doubles) -> tuple[Doubles, Doubles]:
    """Compute Tango's (1998) score intervals of differences of two shares of the same n pairs.

    `up` pairs are in the second share alone and `down` ones in the first. Where no pair differs the
    interval reaches as far as Wilson's of a share of 0 does. `n` and the counts may be as many as
    clusters are worth, with a `quantile` of Student's t. NaN where n is 0.
    """
    ends = []
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = (up - down) / n
        for bound in (-1.0, 1.0):
            inner, outer = difference, np.full_like(difference, bound)
            for _ in range(_HALVINGS):
                middle = (inner + outer) / 2
                # What a true difference of `middle` leaves of pairs in the first share alone.
                linear = (2 * n - up + down) * middle - up - down
                constant = -down * middle * (1 - middle)
                root = np.sqrt(np.maximum(linear**2 - 8 * n * constant, 0))
                alone = (root - linear) / (4 * n)
                variance = np.maximum(2 * alone + middle * (1 - middle), 0) / n
                held = np.abs(difference - middle) <= quantile * np.sqrt(variance)
                inner, outer = np.where(held, middle, inner), np.where(held, outer, middle)
            ends.append(inner)
    low, high = ends
    return low, high
