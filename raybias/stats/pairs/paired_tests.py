"""The tests of a change between two styles: the paper's, and those that know pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from raybias.stats.intervals import ROUNDING

Doubles = npt.NDArray[np.float64]


def two_proportions(
    before: npt.ArrayLike, after: npt.ArrayLike, n: npt.ArrayLike
) -> tuple[Doubles, Doubles]:
    """Two-sided z test of two proportions over n pairs each, as if samples were apart (Zhao2025).

    Parameters
    ----------
    before, after: shares from 0 to 1.

    Returns
    -------
    z (positive where the share rises; 0 where both are all or none) and p.
    """
    first, second, size = (np.asarray(x, dtype=np.float64) for x in (before, after, n))
    pooled = (first + second) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (second - first) / np.sqrt(2 * pooled * (1 - pooled) / size)
    z = np.where(first == second, 0.0, z)
    return z, 2 * stats.norm.sf(np.abs(z))


def mcnemar(up: npt.ArrayLike, down: npt.ArrayLike) -> Doubles:
    """Exact two-sided p that as many pairs go up as down: `scipy.stats.binomtest` at once."""
    more, less = (np.asarray(x, dtype=np.int64) for x in (up, down))
    p: Doubles = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(more, less), more + less, 0.5))
    return p


def paired_t(mean: npt.ArrayLike, mean_square: npt.ArrayLike, n: npt.ArrayLike) -> Doubles:
    """Two-sided p of Student's paired test, from moments; 1 where no difference is seen.

    NaN where differences do not vary: from equal ones nothing says how far another pair's lies.
    """
    centre, square, size = (np.asarray(x, dtype=np.float64) for x in (mean, mean_square, n))
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.maximum(square - centre**2, 0)
        error = np.sqrt(spread / (size - 1))
        p = 2 * stats.t.sf(np.abs(centre) / error, size - 1)
    varies = (size > 1) & (spread > ROUNDING)
    found: Doubles = np.where(square == 0, 1.0, np.where(varies, p, np.nan))
    return found


def pairs_needed(
    effect: npt.ArrayLike, mean_square: npt.ArrayLike, *, level: float, power: float = 0.8
) -> Doubles:
    """Pairs that a paired test needs to resolve an effect (Connor 1987, for McNemar's test).

    Parameters
    ----------
    effect: mean paired difference, not 0 (infinite pairs there).
    mean_square: mean of the squared differences; for outcomes of 0 and 1 the share of
        pairs that change.
    """
    mean, square = (np.asarray(x, dtype=np.float64) for x in (effect, mean_square))
    sure, likely = stats.norm.ppf((1 + level) / 2), stats.norm.ppf(power)
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        n = ((sure * np.sqrt(square) + likely * spread) / mean) ** 2
    found: Doubles = np.where(mean == 0, np.inf, np.ceil(n))
    return found


def resolvable(
    mean_square: npt.ArrayLike, n: npt.ArrayLike, *, level: float, power: float = 0.8
) -> Doubles:
    """About the smallest effect that n pairs resolve: the inverse of `pairs_needed`."""
    square, size = (np.asarray(x, dtype=np.float64) for x in (mean_square, n))
    sure, likely = stats.norm.ppf((1 + level) / 2), stats.norm.ppf(power)
    reach = (sure + likely) ** 2 * square / (size + likely**2)
    found: Doubles = np.sqrt(reach)
    return found
