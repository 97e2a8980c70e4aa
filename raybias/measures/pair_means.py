"""Outcomes of pairs as arrays, their means with intervals, and the tests of paired differences.

An outcome is one number for each pair and style (`Kind.outcomes`). The unit of sampling is the
pair, with all its styles, prompts and models, or its cluster (such as a writer).

Shapes: M metrics, S styles, N pairs; [...] any axes before N; K = T bias types and two averages; X
means at once, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.columns import DIRECTIONS
from raybias.registry import registry_of
from raybias.schema import REPEAT
from raybias.seeding import generator
from raybias.stats.bootstrap import draw_counts, student_percentiles
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, Places, cluster_robust, places
from raybias.stats.intervals import Rules
from raybias.stats.share_intervals import tango, wilson

Flags = npt.NDArray[np.bool_]

ORIGINAL: Final = "original"
#: The two definitions of an average: over pairs, and the mean over bias types.
WEIGHTED: Final = "avg_weighted"
UNWEIGHTED: Final = "avg_unweighted"
AVERAGES: Final = (WEIGHTED, UNWEIGHTED)
#: The value that means no bias, and what a score is called, by how paired differences are tested.
NEUTRAL: Final = {"mcnemar": 50.0, "paired_t": 0.0}
SCORES: Final = {"mcnemar": "preference", "paired_t": "pro_less_anti"}

_DIRECTIONS: Final = ("", *DIRECTIONS)
#: Draw counts held at once; 32 MiB in float64.
_CHUNK_ENTRIES: Final = 1 << 22


def style_order(styles: pl.Series) -> list[str]:
    """Sort styles as they are registered, `original` first; others by name, last."""
    present = {*styles}
    known = registry_of("style")
    return [*filter(present.__contains__, known), *sorted(present - known.keys())]


def in_order(table: pl.DataFrame) -> pl.DataFrame:
    """Sort estimates by metric, style as registered, and bias type with the averages last."""
    keys: list[pl.Expr] = [pl.col(c) for c in ("model", "method", "probe") if c in table.columns]
    keys += [_place("style", list(registry_of("style")))] if "style" in table.columns else []
    keys += [_place("attribute", ("", *AVERAGES)), pl.col("attribute")]
    keys += [_place("condition", _DIRECTIONS)] if "condition" in table.columns else []
    return table.sort(keys, maintain_order=True)


def _place(column: str, order: Sequence[str]) -> pl.Expr:
    places = {name: place for place, name in enumerate(order)}
    unknown = 0 if "" in places else len(order)
    return pl.col(column).replace_strict(places, default=unknown, return_dtype=pl.Int64)


@dataclass(frozen=True)
class Layout:
    """The outcomes of one probe as arrays; NaN where a metric has no such pair."""

    probe: str
    metrics: list[tuple[str, str, str]]
    """(model, score, test) of each of the M metrics."""
    styles: list[str]
    rows: list[str]
    """The K bias types and averages."""
    values_MSN: Doubles
    states_MSN: Doubles
    type_N: Places
    cluster_N: Places | None
    """None where no pair has a cluster; a pair without one, of pairs that have, is its own."""
    binary_M1: Flags
    """Whether the outcomes of a metric are 0 or 1."""
    neutral_M1: Doubles
    """The values that mean no bias, in percent and points."""
    repeats: int
    """How often each pair is there, as pairs of one cluster; `estimates` counts each once."""
    tested_K11: Flags
    """Whether a row has a test: all but the mean over bias types."""

    @cached_property
    def own_KN(self) -> Flags:
        """Which pairs are of a row."""
        k_K1 = np.arange(len(self.rows))[:, None]
        return np.asarray((self.type_N == k_K1) | (k_K1 >= len(self.rows) - 2))

    def sums(self, values: npt.NDArray[np.generic]) -> Doubles:
        """Add values [..., N] over the pairs of each bias type, and of all: [K, ...]."""
        kinds = [values[..., own_N].sum(axis=-1) for own_N in self.own_KN[:-2]]
        whole = np.sum(kinds, axis=0)
        return np.array([*kinds, whole, whole], dtype=np.float64)

    def robust(self, values: Doubles, cluster_N: Places) -> MeanEstimate:
        """Estimate the means [K, ...] of values [..., N] when clusters are drawn."""
        flat_XN, alike_N = values.reshape(-1, values.shape[-1]), np.zeros_like(self.type_N)
        strata = [*[alike_N] * (len(self.rows) - 1), self.type_N]
        found = [
            cluster_robust(flat_XN[:, own_N], cluster_N[own_N], strata_N[own_N])
            for own_N, strata_N in zip(self.own_KN, strata, strict=True)
        ]
        shape = (len(found), *values.shape[:-1])
        return MeanEstimate(*(
            np.array([getattr(each, name) for each in found]).reshape(shape)
            for name in ("mean", "variance", "freedom")
        ))  # fmt: skip

    def estimates(
        self, n_KMS: Doubles, styles: Sequence[str], columns: Mapping[str, npt.NDArray[np.generic]]
    ) -> pl.DataFrame:
        """Lay columns [K, M, S] out as estimates, a row where there are pairs; NaN becomes null."""
        k, m, s = place = np.nonzero(n_KMS)
        models, methods, tests = (np.array(names) for names in zip(*self.metrics, strict=True))
        return pl.DataFrame({
            "model": models[m], "method": methods[m], "probe": self.probe,
            "attribute": np.array(self.rows)[k], "style": np.array(styles)[s],
            "score": np.array([SCORES[test] for test in tests])[m],
            "scope": "pairs" if self.cluster_N is None else "clusters",
            "n": n_KMS[place] / self.repeats,
            **{name: np.broadcast_to(array, n_KMS.shape)[place] for name, array in columns.items()},
        }).fill_nan(None)  # fmt: skip


def layouts(outcomes: pl.DataFrame) -> Iterator[Layout]:
    """Lay out the outcomes of each probe, probes by name."""
    for _, part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        metrics = part.select("model", "score", "test").unique().sort("model", "score")
        styles = style_order(part["style"])
        # Numbered by name, so that the draws are the same for any order of the rows.
        pairs = (
            part.group_by("bias_type", "pair_id")
            .agg(pl.col("cluster").drop_nulls().first())
            .sort("bias_type", "pair_id")
        )
        types = pairs["bias_type"].unique(maintain_order=True)
        once = pairs.filter(~pl.col("pair_id").str.contains(REPEAT)).height
        alone = pl.format("pair {} {}", "bias_type", "pair_id")
        clusters = pairs.select(pl.coalesce("cluster", alone).rank("dense").cast(pl.Int64) - 1)
        # Structs rank as their fields sort.
        m, n = (
            part.select(pl.struct(names).rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
            for names in (("model", "score"), ("bias_type", "pair_id"))
        )
        held = np.full((2, metrics.height, len(styles), pairs.height), np.nan)
        held[:, m, places(part["style"], styles), n] = (
            part.select(pl.col("value", "state").cast(pl.Float64).fill_null(np.nan)).to_numpy().T
        )
        tests, rows_K = [*metrics["test"]], [*types, WEIGHTED, UNWEIGHTED]
        yield Layout(
            probe=str(part["probe"][0]),
            metrics=metrics.rows(),
            styles=styles,
            rows=rows_K,
            values_MSN=held[0],
            states_MSN=held[1],
            type_N=places(pairs["bias_type"], types.to_list()),
            cluster_N=clusters.to_series().to_numpy() if pairs["cluster"].count() else None,
            binary_M1=np.array([test == "mcnemar" for test in tests])[:, None],
            neutral_M1=np.array([NEUTRAL[test] for test in tests])[:, None],
            repeats=pairs.height // max(1, once),
            tested_K11=np.array([name != UNWEIGHTED for name in rows_K])[:, None, None],
        )


@dataclass(frozen=True)
class Means:
    """Means over pairs [K, ...] of what `means` was given; NaN where there is no interval."""

    n: Doubles
    units: Doubles
    """How many pairs or clusters are drawn."""
    mean: Doubles
    square: Doubles
    """Mean of the squares."""
    low: Doubles
    high: Doubles
    design_effect: Doubles
    """How many times the variance is that of as many pairs drawn alone."""


def means(values: Doubles, layout: Layout, binary: Flags, signs: Flags, rules: Rules) -> Means:
    """Average values [..., N] over the pairs of each bias type, all pairs, and types.

    Clustered pairs have a cluster-robust interval, others the percentile bootstrap. Except over
    types, means of 0 and 1 (`binary` [..., M, 1]) have Wilson's interval, and means of -1, 0 and 1
    (`signs`), the differences of such shares, have Tango's, at the clusters' effective sample size.
    """
    there = ~np.isnan(values)
    n, total, square = (layout.sums(part) for part in (
        there, np.where(there, values, 0), np.where(there, values, 0) ** 2))  # fmt: skip
    mean, square = (part / np.maximum(n, 1) for part in (total, square))
    kinds = np.maximum((n[:-2] > 0).sum(axis=0), 1)
    mean[-1], square[-1] = (part[:-2].sum(axis=0) / kinds for part in (mean, square))
    units, effect = n, np.ones(n.shape)
    normal: Doubles = np.full(n.shape, stats.norm.ppf((1 + rules.level) / 2))
    if layout.cluster_N is None:
        low, high = _bootstrap(values, layout, n, rules)
    else:
        one_NC = layout.cluster_N[:, None] == np.arange(layout.cluster_N.max() + 1)
        units = np.array([((there & own_N) @ one_NC).sum(axis=-1) for own_N in layout.own_KN])
        robust = layout.robust(values, layout.cluster_N)
        normal = np.asarray(stats.t.ppf((1 + rules.level) / 2, robust.freedom))
        reach = normal * np.sqrt(robust.variance)
        low, high = mean - reach, mean + reach
        with np.errstate(divide="ignore", invalid="ignore"):
            effect = robust.variance * (n - 1) / (square - mean**2)
            # Pairs that all agree do not say how alike clusters are: each counts as one pair.
            effect = np.where(robust.variance > 0, effect, n / (robust.freedom + 1))
        # The variance of a mean of types is no one's of pairs.
        effect[-1] = effect[-2]
    share, sign = (np.broadcast_to(flags, n.shape).copy() for flags in (binary, signs))
    share[-1] = sign[-1] = False
    own_low, own_high = wilson(np.where(share, mean, 0), n / effect, normal)
    low, high = np.where(share, own_low, low), np.where(share, own_high, high)
    up, down = (layout.sums(part) / effect for part in (values > 0, values < 0))
    own_low, own_high = tango(up, down, n / effect, normal)
    low, high = np.where(sign, own_low, low), np.where(sign, own_high, high)
    return Means(n, units, mean, square, low, high, effect)


def _bootstrap(
    values: Doubles, layout: Layout, n: Doubles, rules: Rules
) -> tuple[Doubles, Doubles]:
    """Percentile intervals [K, ...] when pairs are resampled within their bias type."""
    flat_XN, n_KX = values.reshape(-1, values.shape[-1]), n.reshape(len(n), -1)
    whole_XB, even_XB = (np.zeros((len(flat_XN), rules.bootstrap_draws)) for _ in range(2))
    ends = []
    for name, own_N, n_X in zip(layout.rows[:-2], layout.own_KN, n_KX, strict=False):
        random = generator(rules.bootstrap_seed, "pairs", layout.probe, name)
        drawn_XB = np.nan_to_num(drawn_means(flat_XN[:, own_N], rules.bootstrap_draws, random))
        ends.append(percentiles(drawn_XB, n_X, rules.level))
        whole_XB += drawn_XB * n_X[:, None]
        even_XB += drawn_XB
    whole_XB /= np.maximum(n_KX[-1], 1)[:, None]
    even_XB /= np.maximum((n_KX[:-2] > 0).sum(axis=0), 1)[:, None]
    ends += [percentiles(drawn_XB, n_KX[-1], rules.level) for drawn_XB in (whole_XB, even_XB)]
    low, high = (np.array(end).reshape(n.shape) for end in zip(*ends, strict=True))
    return low, high


def drawn_means(values_XN: Doubles, draws: int, random: np.random.Generator) -> Doubles:
    """Compute means [X, B] of resampled pairs; NaN marks a pair that lacks, and an empty draw."""
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
    """Compute percentile intervals, wider for few pairs (Hesterberg 2015); NaN for one."""
    n = np.broadcast_to(np.asarray(n_X, dtype=np.float64), drawn_XB.shape[:1])
    freedom = np.maximum(n - 1, 1)
    wider = np.sqrt((freedom + 1) / freedom)
    low, high, _ = student_percentiles(drawn_XB.copy(), freedom, level, wider)
    return np.where(n > 1, low, np.nan), np.where(n > 1, high, np.nan)


def two_proportions(
    before: npt.ArrayLike, after: npt.ArrayLike, n: npt.ArrayLike
) -> tuple[Doubles, Doubles]:
    """Test two shares over n pairs each as if independent (Zhao2025): z and two-sided p."""
    first, second, size = (np.asarray(x, dtype=np.float64) for x in (before, after, n))
    pooled = (first + second) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (second - first) / np.sqrt(2 * pooled * (1 - pooled) / size)
    z = np.where(first == second, 0.0, z)
    return z, 2 * stats.norm.sf(np.abs(z))


def mcnemar(up: npt.ArrayLike, down: npt.ArrayLike) -> Doubles:
    """Compute the exact two-sided p that as many pairs go up as down."""
    more, less = (np.asarray(x, dtype=np.int64) for x in (up, down))
    return np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(more, less), more + less, 0.5))


def paired_t(mean: npt.ArrayLike, mean_square: npt.ArrayLike, n: npt.ArrayLike) -> Doubles:
    """Compute Student's two-sided paired p from moments: 1 if all are 0, NaN if all are equal."""
    centre, square, size = (np.asarray(x, dtype=np.float64) for x in (mean, mean_square, n))
    spread = np.maximum(square - centre**2, 0)
    varies, freedom = (size > 1) & (spread > ROUNDING), np.maximum(size - 1, 1)
    p = MeanEstimate(centre, np.where(varies, spread, np.nan) / freedom, freedom).p_value()
    return np.where(square == 0, 1.0, np.where(varies, p, np.nan))


def resolvable(mean_square: npt.ArrayLike, n: npt.ArrayLike, *, level: float) -> Doubles:
    """Compute about the smallest mean difference that n pairs show with 80% power (Connor 1987)."""
    sure, likely = stats.norm.ppf((1 + level) / 2), stats.norm.ppf(0.8)
    square = (sure + likely) ** 2 * np.asarray(mean_square) / (np.asarray(n) + likely**2)
    return np.asarray(np.sqrt(square))
