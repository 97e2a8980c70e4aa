"""Keep the gaps of rare outcomes from looking surer than they are.

A group of which two sentences in forty are labelled so has, by chance, often one or none. The
variance between its templates is then far too small, or 0, and its gap is "found": in 13 to 39% of
simulated studies in which all groups are alike (`benchmarks/few_events.py`). The other groups of
the attribute tell how much such a rate varies.

Shapes: G groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from raybias.stats.components import ROUNDING, Doubles, MeanEstimate

#: Outcomes of either kind, of fewer of which a group's own variance is not relied on.
FEWEST: Final = 10


@dataclass(frozen=True)
class Events:
    """Outcomes that the rates of groups rest on, in units, which are templates or items."""

    units_G: Doubles
    """Units that have items of the group, at least 1."""
    hits_G: Doubles
    """How many of them have the outcome: the units times the rate."""

    @property
    def few_G(self) -> npt.NDArray[np.bool_]:
        """Whether a group has too few outcomes of one kind."""
        return np.minimum(self.hits_G, self.units_G - self.hits_G) < FEWEST

    def exchanged(self, among_G: npt.NDArray[np.bool_]) -> Events:
        """Return what groups rest on if their outcomes change places: what they do on average."""
        units_G = self.units_G[among_G]
        hits_G = self.hits_G[among_G]
        return Events(np.full_like(units_G, units_G.mean()), np.full_like(hits_G, hits_G.mean()))

    def floored(self, gaps: MeanEstimate) -> MeanEstimate:
        """Give gaps [..., G] with few events at least the variance that gaps have on average.

        The average is that of variances by unit, so that a group with fewer units has a larger
        one. A gap that is the same in every unit stays so: there is nothing that varies.
        """
        by_unit = gaps.variance.sum(axis=-1, keepdims=True) / (1 / self.units_G).sum()
        concerned = self.few_G & (gaps.variance > ROUNDING**2)
        least = np.where(concerned, by_unit / self.units_G, 0.0)
        return replace(gaps, variance=np.maximum(gaps.variance, least))

    def least_variances(self) -> Doubles:
        """Compute the least variance [G] of rates of independent groups; 0 of many events.

        It is that of a binomial rate of all groups together, with one more outcome of each kind
        (Laplace), in as many units as the group has.
        """
        rate = (self.hits_G.sum() + 1) / (self.units_G.sum() + 2)
        return np.where(self.few_G, rate * (1 - rate) / self.units_G, 0.0)
