"""Cluster-robust means: how sure a mean is where its observations come in clusters that are alike.

Pairs of one writer, or sentences of one template, resemble one another. Another sample would have
other clusters, so the sums of clusters vary and not single observations. The variance is CR2 with
Bell and McCaffrey's (2002) degrees of freedom, which few and very unequal clusters need
(Pustejovsky and Tipton 2018): those of equal clusters are their number less one.

Shapes: X means at once, N observations, T strata, C clusters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raybias.stats.components import Doubles, MeanEstimate

Places = npt.NDArray[np.int64]


def cluster_robust(values_XN: Doubles, cluster_N: Places, strata_N: Places) -> MeanEstimate:
    """Estimate means [X] of stratum means, each stratum of equal weight, when clusters are drawn.

    Parameters
    ----------
    values_XN: NaN where a mean does not have an observation.
    cluster_N: from 0; a cluster may reach over strata.
    strata_N: from 0; all 0 for a plain mean.

    Returns
    -------
    Degrees of freedom are NaN, and so all intervals and tests, where there is one cluster.
    """
    strata, clusters = int(strata_N.max()) + 1, int(cluster_N.max()) + 1
    there_XN = ~np.isnan(values_XN)
    sums = np.zeros((2, strata * clusters, len(values_XN)))
    for total, each_XN in zip(sums, (there_XN, np.where(there_XN, values_XN, 0.0)), strict=True):
        np.add.at(total, strata_N * clusters + cluster_N, each_XN.T)
    n_XTC, sum_XTC = sums.transpose(0, 2, 1).reshape(2, -1, strata, clusters)
    n_XT = n_XTC.sum(axis=2)
    weight_XT = (n_XT > 0) / np.maximum((n_XT > 0).sum(axis=1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_XT = np.where(n_XT > 0, sum_XTC.sum(axis=2) / n_XT, 0.0)
        share_XTC = np.where(n_XT[..., None] > 0, n_XTC / n_XT[..., None], 0.0)
        # A stratum of one cluster says nothing of others.
        scale_XTC = np.where(share_XTC < 1, weight_XT[..., None] / np.sqrt(1 - share_XTC), 0.0)
        left_XTC = (sum_XTC - n_XTC * mean_XT[..., None]) / np.maximum(n_XT, 1)[..., None]
        variance = ((scale_XTC * left_XTC).sum(axis=1) ** 2).sum(axis=1)
        # The variance is a quadratic form in the observations; of independent ones its expected
        # value and spread are traces of these matrices [C, C]: diagonal less crossed.
        one_XTC = scale_XTC**2 * share_XTC / np.maximum(n_XT, 1)[..., None]
        half_XTC = scale_XTC * share_XTC / np.sqrt(np.maximum(n_XT, 1))[..., None]
        diagonal_XC, squares_XC = one_XTC.sum(axis=1), (half_XTC**2).sum(axis=1)
        crossed_XTT = half_XTC @ half_XTC.swapaxes(1, 2)
        spread = (diagonal_XC**2 - 2 * diagonal_XC * squares_XC).sum(axis=1)
        spread = spread + (crossed_XTT**2).sum(axis=(1, 2))
        freedom = (diagonal_XC - squares_XC).sum(axis=1) ** 2 / spread
    return MeanEstimate((weight_XT * mean_XT).sum(axis=1), variance, freedom)


def wilson(share: Doubles, n: Doubles, quantile: Doubles) -> tuple[Doubles, Doubles]:
    """Compute Wilson's intervals of shares of n, which have a width even where a share is 0 or 1.

    Parameters
    ----------
    n: observations, or as many independent ones as clusters are worth (Dean and Pagano 2015).
    quantile: of the normal distribution, or of Student's t where n is estimated.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        square = quantile**2 / n
        middle = share + square / 2
        reach = quantile * np.sqrt(share * (1 - share) / n + square / (4 * n))
        return (middle - reach) / (1 + square), (middle + reach) / (1 + square)
