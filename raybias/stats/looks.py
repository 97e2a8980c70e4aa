"""Look at growing samples before all is read, with one error over all looks (Pocock 1977).

Each look has twice the sample of the one before, and all are judged at one level, planned before
the first. Statistics of samples that contain each other are a Markov chain, along which the chance
that none leaves its bounds is integrated (Armitage, McPherson and Rowe 1969). What further
sentences do not make more certain, such as runs, makes looks more alike and errors rarer.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

#: Nodes of the quadrature; the error is below 1e-9.
_NODES: Final = 64
_STEP: Final = math.sqrt(0.5)
"""Correlation of a statistic with that of a sample twice as large."""


def error_over(looks: int, level: float) -> float:
    """Return how often any of so many looks at `level` finds a difference that is not there."""
    bound = norm.ppf((1 + level) / 2)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    at, weights = bound * nodes, bound * weights
    moves = norm.pdf(at[:, None], loc=_STEP * at, scale=_STEP)
    density = norm.pdf(at)
    for _ in range(looks - 1):
        density = moves @ (weights * density)
    return 1 - float(weights @ density)


@lru_cache
def level_of_each(looks: int, level: float = 0.95) -> float:
    """Return the level of each look under which all together err as one look at `level` does.

    It is rounded up to four digits, so that they err no more often.
    """
    if looks == 1:
        return level
    each = brentq(lambda each: error_over(looks, each) + level - 1, level, 1 - 1e-6)
    return math.ceil(each * 1e4) / 1e4
