"""Contrast outcomes of groups: error rates, scores and versions of one example, resampled.

An outcome is computed in each run and averaged over runs; a contrast is taken of these averages,
and a distance between two sets of scores in each run. With one run this is the textbook's metric.
The draws of templates and runs (`bootstrap`) weight the examples.

Shapes: B draws, N rows, G groups, R runs, T units (templates, else source examples, else items), S
source examples, U distinct scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.schema import TABLE
from raybias.stats.components import Doubles
from raybias.stats.metric import THE_CLASS, Contrast, masks

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


def mean(values: Doubles) -> Doubles:
    """Average the values [..., G] of groups."""
    return np.asarray(values.mean(axis=-1))


def deviation(values: Doubles) -> Doubles:
    """Take the standard deviation (ddof 0) of the values [..., G] of groups."""
    centre = mean_of_known(values)
    several = (~np.isnan(values)).sum(axis=-1) > 1
    return np.where(several, np.sqrt(mean_of_known((values - centre[..., None]) ** 2)), np.nan)


@dataclass(frozen=True, kw_only=True)
class Laid:
    """The examples of one classifier on one attribute, as arrays."""

    keys: tuple[str, ...]
    """Values of TABLE."""
    groups: tuple[str, ...]
    in_mean_G: Bools
    runs: int
    units: int
    """Whether units are templates, source examples or items is for the caller to know."""
    run_N: Counts
    group_N: Counts
    unit_N: Counts
    source_N: Counts | None
    """Which source example a row is a version of, counted in each run; None where not all are."""
    gold_N: Bools
    called_N: Bools
    label_N: Counts
    """The predicted label; -1 where none could be read."""
    score_N: Doubles
    """Of the class; NaN where there is none."""
    copies_N: Doubles
    """How often each row stands there."""
    masks: pl.DataFrame
    """`among NAME` and `holds NAME` of the shares that contrasts are taken of."""

    def drawn(
        self, parts: Contrast, against: str, runs_BR: Doubles, units_BT: Doubles
    ) -> tuple[Doubles, Doubles]:
        """Compute the values of groups [B, G] and of all [B] by these weights; NaN if undefined."""
        phi_KBG = np.stack([
            self._outcome(one, parts, against, runs_BR, units_BT) for one in parts.outcomes
        ])  # fmt: skip
        each_BG = phi_KBG[0]
        if parts.reduce is None:
            return each_BG, np.full(len(runs_BR), np.nan)
        compared = [group != against.removeprefix("reference:") for group in self.groups]
        all_KB = parts.reduce(phi_KBG[..., compared])
        all_KB = np.where(np.isnan(phi_KBG[..., compared]).any(axis=-1), np.nan, all_KB)
        all_B = all_KB[0] if parts.worst is None else parts.worst(all_KB, axis=0)
        return (each_BG if against else np.full_like(each_BG, np.nan)), all_B

    def lacks(self, parts: Contrast, against: str) -> str:
        """Say what of a metric's needs is not there; empty where nothing is lacking."""
        if parts.paired and parts.against and against == "mean_of_groups":
            return "it sets examples beside those of others, which a mean of groups does not have"
        if len(self.groups) < 2:
            return "there is one group, and nothing to compare it with"
        if parts.within == "source" and self.source_N is None:
            return "not all examples have a source_id or template_id"
        score_N = self.score_N
        if parts.needs != "counts" and np.isnan(score_N).any():
            return "not all examples have a score"
        if parts.needs == "probabilities" and not (0 <= score_N.min() <= score_N.max() <= 1):
            return "scores are not all from 0 to 1, as probabilities are"
        return ""

    def of_sources(self, parts: Contrast) -> tuple[Doubles, Doubles]:
        """Count sources in which groups meet, and sum their values, by run and unit [R, T]."""
        (outcome,) = parts.outcomes
        value_S = outcome(self) if callable(outcome) else np.empty(0)
        value_S = value_S if parts.reduce is None else parts.reduce(value_S)
        _, first = np.unique(self._version_N // len(self.groups), return_index=True)
        cell_S = self.run_N[first] * self.units + self.unit_N[first]
        known, size = ~np.isnan(value_S), self.runs * self.units
        items, sums = (
            np.bincount(cell_S[known], weights, size).reshape(self.runs, self.units).astype(float)
            for weights in (None, value_S[known])
        )
        return items, sums

    @cached_property
    def _version_N(self) -> Counts:
        """Which source and group a row is of [N], numbered through S x G."""
        sources = np.zeros_like(self.group_N) if self.source_N is None else self.source_N
        return sources * len(self.groups) + self.group_N

    def version_means(self, values_N: Doubles | Bools) -> Doubles:
        """Average over the versions in which a source names a group [S, G]; NaN of none."""
        size = (int(self._version_N.max()) // len(self.groups) + 1) * len(self.groups)
        sums, copies = (
            np.bincount(self._version_N, weights, size).astype(float).reshape(-1, len(self.groups))
            for weights in (values_N * self.copies_N, self.copies_N)
        )
        return ratio(sums, copies)

    def over_version_pairs(self, apart: Callable[[Doubles, Doubles], Doubles]) -> Doubles:
        """Average a distance [S] of two groups' scores [S, versions] over pairs of groups."""
        place, groups = np.lexsort((self.score_N, self._version_N)), len(self.groups)
        sources = int(self._version_N.max()) // groups + 1
        starts = np.searchsorted(self._version_N[place], np.arange(sources * groups + 1))
        many_SG, first_SG = (each.reshape(-1, groups) for each in (np.diff(starts), starts[:-1]))
        score_N, total, pairs = self.score_N[place], np.zeros(sources), np.zeros(sources)
        for s, t in combinations(range(groups), 2):
            # Sources that have as many versions of either group are computed at once.
            for sizes in np.unique(many_SG[:, [s, t]], axis=0):
                if sizes.min() == 0:
                    continue
                rows = np.flatnonzero((many_SG[:, [s, t]] == sizes).all(axis=1))
                total[rows] += apart(*(
                    score_N[first_SG[rows, g][:, None] + np.arange(size)]
                    for g, size in zip((s, t), sizes, strict=True)
                ))  # fmt: skip
                pairs[rows] += 1
        return ratio(total, pairs)

    def counts(self, mask: str | Bools) -> Doubles:
        """Count the rows of a mask by unit, run and group [T, R * G]."""
        held = self.masks[mask].to_numpy() if isinstance(mask, str) else mask
        shape = (self.units, self.runs, len(self.groups))
        cell = np.ravel_multi_index((self.unit_N, self.run_N, self.group_N), shape)
        sums = np.bincount(cell[held], self.copies_N[held], math.prod(shape))
        return np.asarray(sums.reshape(self.units, -1), np.float64)

    @cached_property
    def confusion(self) -> tuple[Doubles, ...]:
        """True positives, false positives, false negatives, true negatives, each [T, R * G]."""
        gold, called = self.gold_N, self.called_N
        masks = (gold & called, ~gold & called, gold & ~called, ~gold & ~called)
        return tuple(map(self.counts, masks))

    @cached_property
    def _rows(self) -> list[list[Counts]]:
        """Which rows are of each run and group."""
        return [
            [np.flatnonzero((self.run_N == r) & (self.group_N == g))
             for g in range(len(self.groups))]
            for r in range(self.runs)
        ]  # fmt: skip

    def _examples(self, rows: Counts, units_BT: Doubles) -> Examples:
        """Select rows, with the weights of their units."""
        weights = units_BT[:, self.unit_N[rows]] * self.copies_N[rows]
        return Examples(self.gold_N[rows], self.score_N[rows], weights)

    def _outcome(
        self, outcome: str | Callable[..., Doubles], parts: Contrast, against: str,
        runs_BR: Doubles, units_BT: Doubles,
    ) -> Doubles:  # fmt: skip
        """Compute the outcomes of groups [B, G], or their distances from the background's."""

        def over_runs(values_BRG: Doubles) -> Doubles:
            weights = np.where(np.isnan(values_BRG), 0, runs_BR[..., None])
            return ratio((np.nan_to_num(values_BRG) * weights).sum(axis=1), weights.sum(axis=1))

        if parts.needs == "counts":
            of_groups, of_others = self._of_counts(outcome, against, units_BT)
        elif callable(outcome):
            of_groups, of_others = self._of_scores(outcome, against, units_BT, paired=parts.paired)
        named = [g for g, name in enumerate(self.groups) if against == f"reference:{name}"]
        if against == "mean_of_groups":
            mean = mean_of_known(of_groups[..., self.in_mean_G])
            of_others = np.broadcast_to(mean[..., None], of_groups.shape)
        elif named:
            of_others = np.broadcast_to(of_groups[..., named], of_groups.shape)
        phi_BG = over_runs(of_groups)
        if parts.distance is not None and against:
            phi_BG = parts.distance(over_runs(of_others), phi_BG)
        phi_BG[:, named] = np.nan
        return phi_BG

    def _of_counts(
        self, outcome: str | Callable[..., Doubles], against: str, units_BT: Doubles
    ) -> tuple[Doubles, Doubles]:
        """Compute outcomes [B, R, G] of the groups, and of all groups or all others."""
        if callable(outcome):
            function, tables = outcome, self.confusion
        else:
            function = ratio
            tables = tuple(self.counts(f"{part} {outcome}") for part in ("holds", "among"))
        sums = [(units_BT @ table).reshape(-1, self.runs, len(self.groups)) for table in tables]
        own = against == "pooled_others"
        others = [np.broadcast_to(s.sum(axis=-1, keepdims=True), s.shape) - own * s for s in sums]
        return function(*sums), function(*others)

    def _of_scores(
        self, outcome: Callable[..., Doubles], against: str, units_BT: Doubles, *, paired: bool
    ) -> tuple[Doubles, Doubles]:
        """Compute outcomes [B, R, G] likewise; of the group beside others where it is `paired`."""
        values, others = np.full((2, len(units_BT), self.runs, len(self.groups)), np.nan)
        pooled = against.startswith("pooled")
        for run, rows in enumerate(self._rows):
            for group, own in enumerate(rows):
                examples = self._examples(own, units_BT)
                rest = [
                    each for name, each in zip(self.groups, rows, strict=True)
                    if (name != self.groups[group] or against == "pooled" if pooled
                        else against == f"reference:{name}")
                ]  # fmt: skip
                beside = [self._examples(np.concatenate(rest), units_BT)] if rest else []
                values[:, run, group] = outcome(examples, *(beside if paired else ()))
                if beside and not paired:
                    others[:, run, group] = outcome(*beside)
        return values, others


def by_classifier(table: pl.DataFrame) -> Iterator[tuple[dict[str, str], pl.DataFrame]]:
    """Part a table by classifier and attribute, in order; yield TABLE's values with each part."""
    parts = table.cast({pl.Categorical: pl.String}).partition_by(TABLE, as_dict=True)
    for keys, part in sorted(parts.items(), key=lambda item: tuple(map(str, item[0]))):
        yield dict(zip(TABLE, map(str, keys), strict=True)), part


def groups_in_mean(
    groups: Iterable[str], place: Mapping[str, str], inside: pl.DataFrame
) -> npt.NDArray[np.bool_]:
    """Return whether each group is in the mean [G].

    place: names the probe and the attribute.
    inside: probe, attribute, group and in_mean.
    """
    known = {row[:3]: row[3] for row in inside.iter_rows()}
    keys = [(place["probe"], place["attribute"], group) for group in groups]
    return np.array([known.get(key, False) for key in keys], bool)


def lay_out(
    examples: pl.DataFrame, outcomes: Sequence[str], inside: pl.DataFrame
) -> Iterator[Laid]:
    """Lay examples out as arrays, classifier by classifier and attribute by attribute.

    `examples` have TABLE, run_id, group, unit, label, pred and n; score and source where they are
    known; no extra groups. `outcomes` are the metrics of counts that contrasts are taken of.
    """
    for place, part in by_classifier(examples):
        (groups, group_N), (runs, run_N), (units, unit_N) = (
            np.unique(part[name].to_numpy(), return_inverse=True)
            for name in ("group", "run_id", "unit")
        )
        gold_N, called_N = (
            (part[name] == THE_CLASS).fill_null(False).to_numpy() for name in ("label", "pred")
        )
        score = part["score"] if "score" in part.columns else pl.Series([None] * part.height)
        sources = None
        if "source" in part.columns and not part["source"].null_count():
            ranked = part.select(pl.struct("run_id", "source").rank("dense").cast(pl.Int64) - 1)
            sources = ranked.to_series().to_numpy()
        yield Laid(
            keys=tuple(place.values()), groups=tuple(map(str, groups)),
            in_mean_G=groups_in_mean(groups, place, inside),
            runs=len(runs), units=len(units), run_N=run_N, group_N=group_N, unit_N=unit_N,
            source_N=sources, gold_N=gold_N, called_N=called_N,
            label_N=part["pred"].cast(pl.Int64).fill_null(-1).to_numpy(),
            score_N=score.cast(pl.Float64).fill_null(np.nan).to_numpy(),
            copies_N=part["n"].cast(pl.Float64).to_numpy(), masks=part.select(masks(outcomes)),
        )  # fmt: skip
