"""Estimate crossed variance components, and how sure means of crossed cells or of clusters are.

In a balanced table of crossed facets (runs, templates) everything follows from the mean squares of
an analysis of variance (Brennan 2001, *Generalizability Theory*, chapter 3; with two facets the
variance of the mean is that of two-way clustered standard errors, Cameron, Gelbach and Miller
2011). Where cells are missing, `symmetric_sums` estimates the components without bias (Koch 1967).
Where observations come in clusters, such as pairs of one writer, the variance is CR2 with Bell and
McCaffrey's (2002) degrees of freedom (Pustejovsky and Tipton 2018).

Shapes: ... tables, A, B, ... the levels of their facets; G groups; X means at once, N observations,
T strata, C clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import stdtr, stdtrit

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
#: Facets that vary together: ("run",), ("template",), ("run", "template").
Facets = tuple[str, ...]
#: Below this a difference of rates, which are quotients of counts, is rounding; so is a standard
#: error: means that agree so closely are the same.
ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class MeanEstimate:
    """Means [...], the variances of these estimates, and the variances' degrees of freedom."""

    mean: Doubles
    variance: Doubles
    freedom: Doubles

    def interval(self, level: float) -> tuple[Doubles, Doubles]:
        """Compute two-sided t intervals [...]; NaN where nothing varies."""
        reach = stdtrit(self.freedom, (1 + level) / 2) * self._error()
        return self.mean - reach, self.mean + reach

    def p_value(self) -> Doubles:
        """Compute the two-sided p [...] of a true mean of 0; NaN where nothing varies."""
        score = np.where(self.mean == 0, 0.0, np.abs(self.mean) / self._error())
        return np.asarray(2 * stdtr(self.freedom, -score))

    def detectable(self, level: float) -> Doubles:
        """Compute the true means [...] that a test at `level` finds four times of five."""
        quantiles = stdtrit(self.freedom, (1 + level) / 2) + stdtrit(self.freedom, 0.8)
        return np.asarray(quantiles * self._error())

    def plus(self, variance: Doubles, freedom: Doubles) -> MeanEstimate:
        """Add an independent source of variance; a negative one only makes it less certain."""
        sources = [(self.variance, self.freedom), (variance, freedom)]
        return MeanEstimate(self.mean, *satterthwaite(sources, least=self.variance))

    def at_least(self, other: MeanEstimate) -> MeanEstimate:
        """Take the variance, and its degrees of freedom, of the other where that is as large."""
        larger = other.variance >= self.variance
        return MeanEstimate(
            self.mean,
            np.where(larger, other.variance, self.variance),
            np.where(larger, other.freedom, self.freedom),
        )

    def _error(self) -> Doubles:
        return np.sqrt(np.where(self.variance > ROUNDING**2, self.variance, np.nan))


@dataclass(frozen=True)
class MeanSquares:
    """Means [...] of crossed tables, and their mean squares [...] of every set of facets."""

    mean: Doubles
    squares: Mapping[Facets, Doubles]
    levels: Mapping[str, int]
    """Levels of each facet."""

    @cached_property
    def components(self) -> dict[Facets, Doubles]:
        """Variance components [...] of every set of facets; unbiased, so they can be negative."""
        found = {}
        for names in self.squares:
            signed = sum(
                (-1) ** (len(other) - len(names)) * square
                for other, square in self.squares.items()
                if set(names) <= set(other)
            )
            found[names] = signed / prod(n for f, n in self.levels.items() if f not in names)
        return found

    def estimate(self, drawn: Sequence[str] | None = None) -> MeanEstimate:
        """Estimate the means where the facets `drawn` (all by default) are random, others fixed.

        The variance is at least that of each drawn facet, since the difference of mean squares can
        by chance come out smaller; it then has that facet's degrees of freedom.
        """
        random = tuple(self.levels if drawn is None else drawn)
        cells = prod(self.levels.values())
        parts = {
            names: (self.squares[names] / cells, _freedom(self.levels, names))
            for names in _subsets(random)
        }
        terms = [((-1) ** (len(names) + 1) * part, n) for names, (part, n) in parts.items()]
        found = MeanEstimate(self.mean, *satterthwaite(terms))
        for name in random:
            alone, freedom = parts[name,]
            found = found.at_least(MeanEstimate(self.mean, alone, np.full_like(alone, freedom)))
        return found


def mean_squares(values: Doubles, facets: Facets) -> MeanSquares:
    """Compute mean squares of tables [..., A, B, ...] of crossed facets of two levels or more."""
    levels = dict(zip(facets, values.shape[-len(facets) :], strict=True))

    def axes(kept: Facets) -> tuple[int, ...]:
        return tuple(n - len(facets) for n, facet in enumerate(facets) if facet not in kept)

    effects: dict[Facets, Doubles] = {(): values.mean(axis=axes(()), keepdims=True)}
    squares = {}
    for names in _subsets(facets):
        means = values if names == facets else values.mean(axis=axes(names), keepdims=True)
        effects[names] = means - sum(effects[part] for part in ((), *_subsets(names)[:-1]))
        repeats = prod(n for name, n in levels.items() if name not in names)
        total = (effects[names] ** 2).sum(axis=axes(())) * repeats
        squares[names] = total / _freedom(levels, names)
    return MeanSquares(effects[()].reshape(values.shape[: -len(facets)]), squares, levels)


def symmetric_sums(table: pl.DataFrame, by: Sequence[str], facets: Facets) -> pl.DataFrame:
    """Estimate variance components of crossed facets from tables in which cells may be missing.

    `table` has the columns `by`, one for each facet, and `value`; a row per cell. Gives `by` with a
    column for each set of facets, such as "run" and "run x template"; NaN where its facets have one
    level.
    """
    every = _subsets(facets)
    # Sorted rows make the float sums the same for any order of the cells.
    table = table.sort(*by, *facets)
    raw: dict[Facets, pl.DataFrame] = {
        names: table.group_by(*by, *names, maintain_order=True)
        .agg(y=pl.col("value").sum(), n=pl.len())
        .group_by(by, maintain_order=True)
        .agg(y=(pl.col("y") ** 2).sum(), n=(pl.col("n").cast(pl.Float64) ** 2).sum())
        for names in ((), *every)
    }
    wide = raw[()].select(by)
    for names, sums in raw.items():
        renamed = sums.rename({kind: f"{kind} {name_of(names)}" for kind in ("y", "n")})
        wide = wide.join(renamed, on=by, nulls_equal=True, maintain_order="left")

    def between(kind: str, names: Facets) -> pl.Expr:
        return pl.sum_horizontal(
            (-1) ** (len(other) - len(names)) * pl.col(f"{kind} {name_of(other)}")
            for other in raw
            if set(names) <= set(other)
        )

    quotients = {names: between("y", names) / between("n", names) for names in raw}
    return wide.select(*by, *(
        pl.sum_horizontal(
            (-1) ** (len(names) - len(part)) * quotients[part]
            for part in raw
            if set(part) <= set(names)
        ).alias(name_of(names))
        for names in every
    ))  # fmt: skip


def places(column: pl.Series, levels: Sequence[str]) -> Places:
    """Return the place of each text of a column among its levels [N]."""
    return column.cast(pl.Enum(levels)).to_physical().to_numpy().astype(np.int64)


def _freedom(levels: Mapping[str, int], names: Facets) -> int:
    return prod(levels[name] - 1 for name in names)


def name_of(facets: Facets) -> str:
    """Name a set of facets for a table: run, template, run x template."""
    return " x ".join(facets)


def satterthwaite(
    terms: Sequence[tuple[Doubles, Doubles | float]], *, least: Doubles | float = -np.inf
) -> tuple[Doubles, Doubles]:
    """Add up independent (variance [...], degrees of freedom): their sum [...], and its freedom.

    A term that is taken away has a negative variance (Satterthwaite 1946). The sum is at least
    `least`.
    """
    total = np.maximum(sum(variance for variance, _ in terms), least)
    spread = np.asarray(sum(variance**2 / freedom for variance, freedom in terms))
    with np.errstate(divide="ignore", invalid="ignore"):
        return total, np.where(spread > 0, total**2 / spread, 1.0)


def word_shares(each_G: Doubles, in_mean_G: npt.NDArray[np.bool_]) -> Doubles:
    """Return the share of the variance of words in the variance of each gap [G].

    A group's mean over its words counts with 1 less its share in the mean of the groups in it.

    each_G: what the mean over each group's words leaves of a word's variance: 1 by their number.
    """
    share_G = in_mean_G / max(1, int(in_mean_G.sum()))
    return _of_contrasts(each_G, share_G, 2)


def less_mean_of_groups(each: MeanEstimate, in_mean_G: npt.NDArray[np.bool_]) -> MeanEstimate:
    """Estimate independent means [G] less the mean of those that are in it."""
    share_G = in_mean_G / in_mean_G.sum()
    variance_G = _of_contrasts(each.variance, share_G, 2)
    spread_G = _of_contrasts(each.variance**2 / each.freedom, share_G, 4)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom_G = np.where(spread_G > 0, variance_G**2 / spread_G, 1.0)
    return MeanEstimate(each.mean - share_G @ each.mean, variance_G, freedom_G)


def _of_contrasts(each_G: Doubles, share_G: Doubles, power: int) -> Doubles:
    """Add up `each_G`, for each group weighted by powers of its weights in that group's contrast.

    A group's own weight is 1 less its share in the mean, and that of any other its share. No
    matrix of groups by groups is held.
    """
    others_G = share_G**power * each_G
    return np.asarray(others_G.sum() - others_G + (1 - share_G) ** power * each_G)


def with_words(
    estimate: MeanEstimate,
    words_G: Doubles,
    noise_G: Doubles,
    freedom: Doubles | float,
    noise_freedom: Doubles | float,
) -> MeanEstimate:
    """Add the variance `words_G` [..., G] between means of words, with `noise_G` in it.

    The variance between the means of words holds the noise of their sentences. It is taken
    whole, as in a t test whose units are words, and what runs and templates vary beyond that
    noise is added. Where words agree more closely than their noise explains, the sum can be
    smaller than `estimate`; else intervals would hold the truth 98 times in 100, not 95. The
    degrees of freedom are Satterthwaite's, but no fewer than the fewest of those added.
    """
    variance_G, freedom_G = satterthwaite(
        [
            (words_G, freedom),
            (estimate.variance, estimate.freedom),
            (-noise_G, noise_freedom),
        ],
        least=words_G,
    )
    # Noise can explain all of the variance between words, which is then 0.
    left_G = variance_G > ROUNDING * estimate.variance
    known_G = np.where(left_G, variance_G, estimate.variance)
    least_G = np.minimum(estimate.freedom, freedom)
    return MeanEstimate(estimate.mean, known_G, np.maximum(freedom_G, least_G))


def _subsets(facets: Facets) -> list[Facets]:
    """List the sets of one facet or more, small ones first."""
    return [names for n in range(1, len(facets) + 1) for names in combinations(facets, n)]


def cluster_robust(values_XN: Doubles, cluster_N: Places, strata_N: Places) -> MeanEstimate:
    """Estimate means [X] of stratum means, each stratum of equal weight, when clusters are drawn.

    NaN in `values_XN` marks an observation that a mean does not have; a cluster may reach over
    strata. Degrees of freedom are NaN, and so all intervals and tests, of one cluster.
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
