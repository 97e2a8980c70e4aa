"""Average outcomes over pairs: by bias type, over all pairs, and over types of equal weight.

The unit of sampling is the pair, or the cluster where that is known: pairs of one writer are
alike, and another sample would have other writers. An interval covers such a sample, read by the
same model in the same words; `over_styles` has those that cover other wordings.

Shapes: M metrics, S styles, N pairs; [...] any axes before N; K = T bias types and two averages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.seeding import generator
from raybias.stats.clusters import Places, cluster_robust, wilson
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.pairs.outcomes import UNWEIGHTED, WEIGHTED, style_order
from raybias.stats.pairs.resampling import drawn_means, percentiles

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """The outcomes of one probe as arrays; NaN where a metric has no such pair."""

    probe: str
    metrics: list[tuple[str, str, str]]
    """(model, score, test) of each of the M metrics."""
    styles: list[str]
    types: list[str]
    values_MSN: Doubles
    states_MSN: Doubles
    type_N: Places
    cluster_N: Places | None
    """None where no pair has a cluster; a pair without one, of pairs that have, is its own."""

    @property
    def rows(self) -> list[str]:
        """The K bias types and averages."""
        return [*self.types, WEIGHTED, UNWEIGHTED]

    @property
    def binary_M11(self) -> Flags:
        """Metrics whose outcomes are 0 or 1."""
        return np.array([test == "mcnemar" for *_, test in self.metrics])[:, None, None]

    def sums(self, values: npt.NDArray[np.generic]) -> Doubles:
        """Add values [..., N] over the pairs of each bias type, and of all: [K, ...]."""
        kinds = [values[..., self.type_N == t].sum(axis=-1) for t in range(len(self.types))]
        whole = np.sum(kinds, axis=0)
        return np.array([*kinds, whole, whole], dtype=np.float64)

    def robust(self, values: Doubles) -> list[MeanEstimate]:
        """Estimate the K means of values [..., N] when clusters are drawn; none without."""
        if self.cluster_N is None:
            return []
        flat_XN, alike_N = values.reshape(-1, values.shape[-1]), np.zeros_like(self.type_N)
        own = [self.type_N == t for t in range(len(self.types))]
        parts = [(flat_XN[:, mask], self.cluster_N[mask], alike_N[mask]) for mask in own]
        parts += [(flat_XN, self.cluster_N, strata_N) for strata_N in (alike_N, self.type_N)]
        return [cluster_robust(*part) for part in parts]

    def p_values(self, values: Doubles) -> Doubles:
        """Test that the K means of values [..., N] are 0 when clusters are drawn."""
        shape = (len(self.rows), *values.shape[:-1])
        return np.array([found.p_value() for found in self.robust(values)]).reshape(shape)


def lay_out(part: pl.DataFrame) -> Layout:
    """Lay out the outcomes of one probe (`pair_outcomes`, `coreference_outcomes`, or both)."""
    metrics = part.select("model", "score", "test").unique().sort("model", "score")
    styles = style_order(part["style"])
    # Numbered by name, so that the draws are the same for any order of the rows.
    pairs = (
        part.group_by("bias_type", "pair_id")
        .agg(pl.col("cluster").drop_nulls().first())
        .sort("bias_type", "pair_id")
        .with_row_index("n")
    )
    types = pairs["bias_type"].unique(maintain_order=True)
    alone = pl.format("pair {} {}", "bias_type", "pair_id")
    clusters = pairs.select(pl.coalesce("cluster", alone)).to_series().rank("dense")
    rows = (
        part.join(pairs, on=["bias_type", "pair_id"], maintain_order="left")
        .join(metrics.with_row_index("m"), on=["model", "score"], maintain_order="left")
        .with_columns(s=pl.col("style").cast(pl.Enum(styles)).to_physical())
    )
    place = tuple(rows[name].to_numpy().astype(np.int64) for name in ("m", "s", "n"))
    held = np.full((2, metrics.height, len(styles), pairs.height), np.nan)
    for layer, column in zip(held, ("value", "state"), strict=True):
        layer[place] = rows[column].fill_null(np.nan).to_numpy()
    known = pairs["cluster"].null_count() < pairs.height
    return Layout(
        str(part["probe"][0]), metrics.rows(), styles, types.to_list(), held[0], held[1],
        pairs["bias_type"].cast(pl.Enum(types)).to_physical().to_numpy().astype(np.int64),
        clusters.to_numpy().astype(np.int64) - 1 if known else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Means:
    """Means over pairs [K, ...] of what `means` was given; NaN where there is no interval."""

    n: Doubles
    clusters: Doubles
    """How many are drawn; NaN where pairs are drawn alone."""
    mean: Doubles
    square: Doubles
    """Mean of the squares."""
    low: Doubles
    high: Doubles
    design_effect: Doubles
    """How many times the variance is that of as many pairs drawn alone."""


def means(
    values: Doubles, layout: Layout, binary: Flags, *, level: float, draws: int, seed: int
) -> Means:
    """Average values [..., N] over the pairs of each bias type, all pairs, and types.

    Pairs in clusters have a cluster-robust interval, pairs alone the percentile bootstrap; means
    of 0 and 1 have Wilson's, of as many pairs as the clusters are worth. The mean over types,
    which is no share, never has Wilson's.

    Parameters
    ----------
    binary: [..., 1], whether the values are 0 or 1.
    """
    there = ~np.isnan(values)
    n, total, square = (layout.sums(part) for part in (
        there, np.where(there, values, 0), np.where(there, values, 0) ** 2))  # fmt: skip
    mean, square = (part / np.maximum(n, 1) for part in (total, square))
    kinds = np.maximum((n[:-2] > 0).sum(axis=0), 1)
    mean[-1], square[-1] = (part[:-2].sum(axis=0) / kinds for part in (mean, square))
    clusters, effect = np.full(n.shape, np.nan), np.ones(n.shape)
    quantile: Doubles = np.full(n.shape, stats.norm.ppf((1 + level) / 2))
    robust = layout.robust(values)
    if layout.cluster_N is not None:
        one_NC = layout.cluster_N[:, None] == np.arange(layout.cluster_N.max() + 1)
        clusters = np.array([
            ((there & own) @ one_NC).sum(axis=-1) for own in _own(layout)])  # fmt: skip
        variance, freedom = (
            np.array([getattr(each, name) for each in robust]).reshape(n.shape)
            for name in ("variance", "freedom")
        )
        quantile = np.asarray(stats.t.ppf((1 + level) / 2, freedom))
        reach = quantile * np.sqrt(variance)
        low, high = mean - reach, mean + reach
        effect = _design_effect(n, mean, square, variance, freedom)
    else:
        low, high = _bootstrap(values, layout, n, level=level, draws=draws, seed=seed)
    share = np.broadcast_to(binary[..., 0], n.shape).copy()
    share[-1] = False
    own_low, own_high = wilson(np.where(share, mean, 0), n / effect, quantile)
    low, high = np.where(share, own_low, low), np.where(share, own_high, high)
    return Means(n, clusters, mean, square, low, high, effect)


def _own(layout: Layout) -> list[Flags]:
    """Pairs of each of the K rows."""
    whole = np.ones(len(layout.type_N), dtype=bool)
    return [*(layout.type_N == t for t in range(len(layout.types))), whole, whole]


def _design_effect(
    n: Doubles, mean: Doubles, square: Doubles, variance: Doubles, freedom: Doubles
) -> Doubles:
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = variance * (n - 1) / (square - mean**2)
        # Pairs that all agree do not say how alike clusters are: each counts as one pair.
        effect = np.where(variance > 0, effect, n / (freedom + 1))
    # The variance of a mean of types is no one's of pairs.
    effect[-1] = effect[-2]
    return effect


def _bootstrap(
    values: Doubles, layout: Layout, n: Doubles, *, level: float, draws: int, seed: int
) -> tuple[Doubles, Doubles]:
    """Percentile intervals [K, ...] when pairs are drawn anew within their bias type."""
    flat_XN, n_KX = values.reshape(-1, values.shape[-1]), n.reshape(len(n), -1)
    whole_XB, even_XB = (np.zeros((len(flat_XN), draws)) for _ in range(2))
    ends = []
    for t, name in enumerate(layout.types):
        random = generator(seed, "pairs", layout.probe, name)
        drawn_XB = np.nan_to_num(drawn_means(flat_XN[:, layout.type_N == t], draws, random))
        ends.append(percentiles(drawn_XB, n_KX[t], level))
        whole_XB += drawn_XB * n_KX[t][:, None]
        even_XB += drawn_XB
    whole_XB /= np.maximum(n_KX[-1], 1)[:, None]
    even_XB /= np.maximum((n_KX[:-2] > 0).sum(axis=0), 1)[:, None]
    ends += [percentiles(drawn_XB, n_KX[-1], level) for drawn_XB in (whole_XB, even_XB)]
    low, high = (np.array(end).reshape(n.shape) for end in zip(*ends, strict=True))
    return low, high
