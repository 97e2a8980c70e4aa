"""Bound a mean by the units that were sampled, without assuming a distribution.

Student's intervals cannot know what no unit has shown yet: a harm that sits in a few whole
templates, none of which was sampled.

Shapes: U units, V distinct values of units, P points of an integral, E its possible ends.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.optimize import brentq

from raybias.stats.components import ROUNDING, Doubles

#: Where an integral over half a line is evaluated: the hyperbolic sines of these, in units of the
#: width of what is integrated.
_NODES: Final = np.linspace(0.0, 8.0, 241)
_ENDS: Final = np.array([60, 80, 100, 140])
#: Logarithm of how many times smaller than at its start an integrand is nothing.
_NOTHING: Final = 35.0


def largest_mean(values_U: Doubles, most: float, level: float) -> float:
    """Bound the size of a mean by the sampled units, whatever their distribution.

    Both ends are one-sided bounds at `level`, of the sample with one more unit at the extreme
    (Gaffke 2005; Learned-Miller and Thomas 2019, who find no distribution for which the bound
    fails, and have no proof). For units that are 0 or `most` it is Clopper and Pearson's exact
    bound of a share: for n units that are all 0, `most` (1 - (1 - level)^(1 / n)). For large
    samples without rare values it is Student's interval.

    Parameters
    ----------
    values_U: what each unit adds to the mean, which is their average.
    most: the size of what one unit can add; what a unit did add counts if that is more.
    level: of each end, such as 0.95.
    """
    towards_U = values_U if values_U.mean() >= 0 else -values_U
    found = _upper_bound(*_with_extreme(towards_U, most), level)
    backwards = _with_extreme(-towards_U, most)
    if _share_above(found, *backwards) <= 1 - level:
        return found
    return _upper_bound(*backwards, level)


def units_needed(values_U: Doubles, most: float, level: float, margin: float) -> int:
    """Return how many units would bound the mean by the margin if they vary as those sampled do.

    The sampled mean must lie within the margin, and its bound beyond.
    """
    ends = [_with_extreme(sign * values_U, most) for sign in (1, -1)]

    def excess(times: float) -> float:
        """Compute the share beyond the margin if each unit counts so often."""
        each = (
            _share_above(margin, values, np.append(counts[:-1] * times, 1.0))
            for values, counts in ends
        )
        return max(each) - (1 - level)

    enough = 2.0
    while excess(enough) > 0:
        enough *= 2
    number = len(values_U)
    return math.ceil(number * brentq(excess, 1 / (number + 1), enough, xtol=0.01 / number))


def _with_extreme(values_U: Doubles, most: float) -> tuple[Doubles, Doubles]:
    """Return distinct values [V] and how often each counts, with one more unit at the extreme."""
    values_V, counts_V = np.unique(values_U, return_counts=True)
    extreme = max(most, values_V[-1])
    return np.append(values_V, extreme), np.append(counts_V, 1.0)


def _upper_bound(values_V: Doubles, counts_V: Doubles, level: float) -> float:
    """Return the upper end of `largest_mean` for a sample `_with_extreme`."""
    lowest, highest = float(values_V[0]), float(values_V[-1])
    if highest - lowest < ROUNDING:
        return highest
    if len(values_V) == 2:
        # All units are alike: a beta distribution with a power as its quantile.
        return float(highest - (highest - lowest) * (1 - level) ** (1 / counts_V[0]))

    def excess(mean: float) -> float:
        return _share_above(mean, values_V, counts_V) - (1 - level)

    return float(brentq(excess, lowest, highest, xtol=1e-7))


def _share_above(mean: float, values_V: Doubles, counts_V: Doubles) -> float:
    """Compute how much of the distribution of a Dirichlet mean of values lies above `mean`.

    It is the probability that a sum of gamma variables (shapes `counts_V`) times distances from
    `mean` is positive, by the saddle point's inversion integral (Daniels 1987).
    """
    factors_V = values_V - mean
    if factors_V.max() <= ROUNDING or factors_V.min() >= 0:
        return float(factors_V.max() > ROUNDING)
    factors_V = factors_V / factors_V.max()

    def slope(point: float) -> float:
        return float((counts_V * factors_V / (1 - factors_V * point)).sum() - 1 / point)

    # The line may pass beside the saddle point, at the cost of some digits.
    saddle = brentq(slope, 1e-12, 1 - 1e-12, xtol=1e-4)
    curvature = (counts_V * (factors_V / (1 - factors_V * saddle)) ** 2).sum() + saddle**-2
    width = 1 / math.sqrt(curvature)
    line_P = saddle + 1j * width * np.sinh(_NODES)
    # Most integrands end early.
    falls_E = np.abs(1 - factors_V[:, None] * line_P[_ENDS])
    falls_E = counts_V @ (np.log(falls_E) - np.log(1 - factors_V * saddle)[:, None])
    ends = _ENDS[falls_E > _NOTHING]
    end = int(ends[0]) if len(ends) else len(_NODES)
    line_P, nodes_P = line_P[:end], _NODES[:end]
    logs_P = -(counts_V @ np.log1p(-factors_V[:, None] * line_P))
    heights_P = (np.exp(logs_P) / line_P).real * width * np.cosh(nodes_P)
    return float(np.trapezoid(heights_P, nodes_P)) / math.pi
