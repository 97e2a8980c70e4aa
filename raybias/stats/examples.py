"""Answered examples as arrays, and numbers of weighted sets of them: AUC, Wasserstein distance.

Shapes: B draws, N examples, S source examples, G groups, U distinct scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from raybias.stats.components import Doubles

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Examples of one run, each with as many weights as there are draws."""

    gold: Bools
    """Whether the label is the class [N]."""
    score: Doubles
    """Of the class [N]."""
    weights: Doubles
    """[B, N]."""

    def only(self, gold: bool) -> Examples:
        """Select the examples whose label is the class, or is not."""
        kept = self.gold == gold
        return Examples(self.gold[kept], self.score[kept], self.weights[:, kept])


def masses(*sets: Examples) -> tuple[Doubles, list[Doubles]]:
    """Return the distinct scores [U] of all sets, in order, and the weight of each [B, U]."""
    scores, place = np.unique(np.concatenate([each.score for each in sets]), return_inverse=True)
    ends = np.cumsum([len(each.score) for each in sets])[:-1]
    found = []
    for each, where in zip(sets, np.split(place, ends), strict=True):
        order = np.argsort(where, kind="stable")
        starts, at = np.unique(where[order], return_index=True)
        mass = np.zeros((len(each.weights), len(scores)))
        if len(starts):
            mass[:, starts] = np.add.reduceat(each.weights[:, order], at, axis=1)
        found.append(mass)
    return scores, found


def ratio(above: Doubles, below: Doubles) -> Doubles:
    """Divide; NaN where there is nothing below."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def auc(positive: Examples, negative: Examples) -> Doubles:
    """Compute how often a positive example scores higher than a negative one [B]; ties are half."""
    _, (up_BU, down_BU) = masses(positive, negative)
    below_BU = np.cumsum(down_BU, axis=1) - down_BU / 2
    return ratio((up_BU * below_BU).sum(axis=1), up_BU.sum(axis=1) * down_BU.sum(axis=1))


def wasserstein(one: Examples, other: Examples) -> Doubles:
    """Compute the distance (W1) between two distributions of scores [B]."""
    scores_U, (one_BU, other_BU) = masses(one, other)
    shares = [
        ratio(np.cumsum(mass, axis=1), mass.sum(axis=1, keepdims=True))
        for mass in (one_BU, other_BU)
    ]
    apart_B = np.abs(shares[0] - shares[1])[:, :-1] @ np.diff(scores_U)
    empty_B = np.minimum(one.weights.sum(axis=1), other.weights.sum(axis=1)) <= 0
    return np.where(empty_B, np.nan, apart_B)


@dataclass(frozen=True)
class Versions:
    """The versions of source examples in which groups are named; a group may have several."""

    source: Counts
    """Which source example a version is of [N], from 0."""
    group: Counts
    """[N]."""
    gold: Bools
    called: Counts
    """The predicted label [N]; -1 where none could be read."""
    score: Doubles
    """Of the class [N]."""
    copies: Doubles
    """How often each stands there [N]."""
    shape: tuple[int, int]
    """S and G."""

    def mean(self, values_N: Doubles) -> Doubles:
        """Average over the versions of a group [S, G]; NaN where it has none."""
        sums = self._sums(values_N * self.copies)
        return ratio(sums, self._sums(self.copies))

    def _sums(self, values_N: Doubles) -> Doubles:
        cell = self.source * self.shape[1] + self.group
        sums = np.bincount(cell, values_N, self.shape[0] * self.shape[1])
        return np.asarray(sums.reshape(self.shape), np.float64)

    def of_pairs(self, apart: Callable[[Doubles, Doubles], Doubles]) -> Doubles:
        """Average a distance between the scores of two groups' versions over pairs of groups [S].

        `apart` is given scores [S, versions] of each group and returns [S].
        """
        cells, place = self.source * self.shape[1] + self.group, self._ordered
        starts = np.searchsorted(cells[place], np.arange(np.prod(self.shape) + 1))
        many_SG = np.diff(starts).reshape(self.shape)
        first_SG = starts[:-1].reshape(self.shape)
        score_N = self.score[place]
        total, pairs = np.zeros(self.shape[0]), np.zeros(self.shape[0])
        for s, t in combinations(range(self.shape[1]), 2):
            # Sources that have as many versions of either group are computed at once.
            for sizes in np.unique(many_SG[:, [s, t]], axis=0):
                if sizes.min() == 0:
                    continue
                rows = np.flatnonzero((many_SG[:, [s, t]] == sizes).all(axis=1))
                scores = [
                    score_N[first_SG[rows, g][:, None] + np.arange(size)]
                    for g, size in zip((s, t), sizes, strict=True)
                ]
                total[rows] += apart(*scores)
                pairs[rows] += 1
        return ratio(total, pairs)

    @property
    def _ordered(self) -> Counts:
        return np.lexsort((self.score, self.group, self.source))


def sorted_wasserstein(one_SM: Doubles, other_SK: Doubles) -> Doubles:
    """Compute the distance (W1) between sorted scores [S, M] and [S, K] of each source [S]."""
    sizes = one_SM.shape[1], other_SK.shape[1]
    cuts = np.unique(np.concatenate([np.arange(1, size + 1) / size for size in sizes]).round(12))
    widths = np.diff(cuts, prepend=0)
    middle = cuts - widths / 2
    at = [np.minimum((middle * size).astype(np.int64), size - 1) for size in sizes]
    return np.asarray(np.abs(one_SM[:, at[0]] - other_SK[:, at[1]]) @ widths)


def mean_of_known(values: Doubles) -> Doubles:
    """Average the values [..., G] that are known."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0).sum(axis=-1), known.sum(axis=-1).astype(float))


def absolute(one: Doubles, other: Doubles) -> Doubles:
    """Take the absolute difference."""
    return np.abs(one - other)


def pairs_mean(values: Doubles) -> Doubles:
    """Average the absolute differences of all pairs of groups [..., G] that have values."""
    first, second = np.triu_indices(values.shape[-1], k=1)
    return mean_of_known(np.abs(values[..., first] - values[..., second]))


def spread(values: Doubles) -> Doubles:
    """Take the highest less the lowest value [..., G] of a group."""
    known = ~np.isnan(values)
    high = np.where(known, values, -np.inf).max(axis=-1, initial=-np.inf)
    low = np.where(known, values, np.inf).min(axis=-1, initial=np.inf)
    return np.where(known.sum(axis=-1) > 1, high - low, np.nan)


def deviation(values: Doubles) -> Doubles:
    """Take the standard deviation (ddof 0) of the values [..., G] of groups."""
    centre = mean_of_known(values)
    several = (~np.isnan(values)).sum(axis=-1) > 1
    return np.where(several, np.sqrt(mean_of_known((values - centre[..., None]) ** 2)), np.nan)


def least_ratio(values: Doubles) -> Doubles:
    """Divide the lowest by the highest value [..., G]; NaN where both are 0."""
    return ratio(values.min(axis=-1), values.max(axis=-1))


def mean(values: Doubles) -> Doubles:
    """Average the values [..., G] of groups."""
    return np.asarray(values.mean(axis=-1))


def total(values: Doubles) -> Doubles:
    """Add up the values [..., G] of groups."""
    return np.asarray(values.sum(axis=-1))
