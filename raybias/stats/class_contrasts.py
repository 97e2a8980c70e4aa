"""Sum up the recall gaps of all classes: their root mean square and their range.

The recall of a group on a class is computed in each run and averaged over runs. A group's gap on a
class is its recall less the mean recall of the groups in the mean; for all groups together the gaps
of a pair count, the recall of one less that of the other, and the pair with the largest value. A
class counts if both sides of the gap have rows.

Noise alone moves both statistics away from 0, the more the rarer the classes are; bootstrap draws
(`bootstrap.Weights`, those of other contrasts) contain it twice. The interval of the mean square
reaches from the percentiles of its draws to their mirror images about the estimate, whichever are
further out, since the noise of squares adds up; its ends are square roots of these. A range is a
seminorm, so it differs from the true one by no more than the range of the errors of the gaps: the
interval is the estimate plus and minus the percentile of the range of the draws' deviations.

Draws of a few rows that are nearly all alike vary too little by chance. Where rows are independent
items, a recall with fewer than five rows of either outcome varies in the draws at least as one with
one more row of each (Laplace), as it does in the intervals of rates (`scopes`).

Shapes: B draws, K classes, G groups, R runs, T units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.seeding import generator
from raybias.stats.bootstrap import Weights, percentile_interval
from raybias.stats.components import Doubles
from raybias.stats.contrasts import (
    by_classifier,
    groups_in_mean,
    mean_of_known,
    ratio,
    spread,
)
from raybias.stats.units import BLOCK

#: Products of weights and counts of all draws, and the fewest draws that this leaves.
_PRODUCTS: Final = 4_000_000_000
_LEAST_DRAWS: Final = 400
#: Outcomes of either kind, of fewer of which draws of a recall are not relied on.
_FEW: Final = 5
#: Rates held at once.
_ENTRIES: Final = 1 << 22


@dataclass(frozen=True)
class Recalls:
    """Counts of recalls of one classifier on one attribute."""

    keys: tuple[str, ...]
    """Values of schema.TABLE."""
    groups: tuple[str, ...]
    in_mean_G: npt.NDArray[np.bool_]
    are_items: bool
    """Whether units are blocks of independent items."""
    items_TRGK: Doubles
    """Rows of each class."""
    hits_TRGK: Doubles
    """Rows that are rightly called the class."""

    @property
    def scope(self) -> str:
        """What is drawn: `sentences`, `runs`, or nothing."""
        units, runs, *_ = self.items_TRGK.shape
        return "sentences" if units > 1 else "runs" if runs > 1 else ""

    @cached_property
    def rows_G(self) -> npt.NDArray[np.int64]:
        """The rows of each group in a run."""
        runs = self.items_TRGK.shape[1]
        return np.asarray(self.items_TRGK.sum(axis=(0, 1, 3)) / runs, np.int64)

    def drawn(self, rules: Statistics) -> Doubles:
        """Compute recalls [1 + B, G, K]: those of the table, then those of the draws."""
        units, runs, *_ = self.items_TRGK.shape
        table_1GK = self._recalls(np.ones((1, runs)), np.ones((1, units)))
        if not self.scope:
            return table_1GK
        draws_BGK = np.concatenate([*self._draws(rules)])
        if self.are_items:
            draws_BGK += self._missing_noise(draws_BGK, rules.bootstrap_seed)
        return np.concatenate([table_1GK, draws_BGK])

    def _draws(self, rules: Statistics) -> Iterator[Doubles]:
        """Yield recalls [B, G, K] of some draws each."""
        units, runs, groups, classes = self.items_TRGK.shape
        most = max(_LEAST_DRAWS, _PRODUCTS // self.items_TRGK.size)
        key = (rules.bootstrap_seed, *self._place)
        weights = Weights((runs, units), min(rules.bootstrap_draws, most), key, "sentences")
        step = max(1, _ENTRIES // (runs * groups * classes))
        for _, runs_BR, units_BT in weights.chunks():
            for start in range(0, len(runs_BR), step):
                some = slice(start, start + step)
                yield self._recalls(runs_BR[some].astype(float), units_BT[some].astype(float))

    @property
    def _place(self) -> tuple[str, str]:
        """The probe and the attribute, which name the random state of draws."""
        return self.keys[schema.KEYS.index("probe")], self.keys[-1]

    def _missing_noise(self, draws_BGK: Doubles, seed: int) -> Doubles:
        """Draw what recalls of few rows vary less than with one more row of each outcome."""
        runs = self.items_TRGK.shape[1]
        items_GK, hits_GK = (
            counts.sum(axis=(0, 1)) / runs for counts in (self.items_TRGK, self.hits_TRGK)
        )
        share_GK = (hits_GK + 1) / (items_GK + 2)
        least_GK = share_GK * (1 - share_GK) / np.maximum(items_GK, 1)
        few_GK = np.minimum(hits_GK, items_GK - hits_GK) < _FEW
        with warnings.catch_warnings():
            # A class that no draw has keeps no recall.
            warnings.simplefilter("ignore", RuntimeWarning)
            variance_GK = np.nan_to_num(np.nanvar(draws_BGK, axis=0))
        missing_GK = np.where(few_GK, np.maximum(least_GK - variance_GK, 0), 0)
        random = generator(seed, "bootstrap", *self._place, "few rows")
        return random.standard_normal(draws_BGK.shape) * np.sqrt(missing_GK)

    def _recalls(self, runs_BR: Doubles, units_BT: Doubles) -> Doubles:
        """Average the recalls of runs [B, G, K] by these weights; NaN without rows."""
        units, *shape = self.items_TRGK.shape
        hits_BRGK, items_BRGK = (
            (units_BT @ counts.reshape(units, -1)).reshape(-1, *shape)
            for counts in (self.hits_TRGK, self.items_TRGK)
        )
        recall_BRGK = ratio(hits_BRGK, items_BRGK)
        weight_BRGK = np.where(items_BRGK > 0, runs_BR[:, :, None, None], 0)
        sums_BGK = (np.nan_to_num(recall_BRGK) * weight_BRGK).sum(axis=1)
        return ratio(sums_BGK, weight_BRGK.sum(axis=1))


def lay_out_recalls(counts: pl.DataFrame, inside: pl.DataFrame, classes: int) -> Iterator[Recalls]:
    """Lay out the counts of `class_counts.recalls_by_unit`, by classifier and attribute.

    `inside` says which groups are in the mean: probe, attribute, group and in_mean.
    """
    for names, part in by_classifier(counts):
        (units, unit_N), (runs, run_N), (groups, group_N) = (
            np.unique(part[column].to_numpy(), return_inverse=True)
            for column in ("unit", "run_id", "group")
        )
        shape = (len(units), len(runs), len(groups), classes)
        cell_N = np.ravel_multi_index((unit_N, run_N, group_N, part["code"].to_numpy()), shape)
        items, hits = (
            np.bincount(cell_N, part[column].to_numpy(), int(np.prod(shape))).reshape(shape)
            for column in ("items", "hits")
        )
        yield Recalls(
            tuple(names.values()),
            tuple(map(str, groups)),
            groups_in_mean(groups, names, inside),
            all(unit.startswith(BLOCK) for unit in units),
            items.astype(float),
            hits.astype(float),
        )


@dataclass(frozen=True)
class ClassSummary:
    """A statistic of the gaps of all classes, of one group or of all together."""

    name: str
    group: int | None
    """The place of the group; None for all together."""
    value: float
    low: float | None
    high: float | None
    less_noise: float | None
    classes: int
    """How many classes count."""


def summaries(recalls: Recalls, rules: Statistics) -> Iterator[ClassSummary]:
    """Summarise the recall gaps of a classifier on an attribute over classes.

    Yields `rms_tpr_gap` and `range_tpr_gap` of each group and of all groups. There is no interval
    if nothing varies, and no value if no class has a gap.
    """
    recall_BGK = recalls.drawn(rules)
    alone = recalls.in_mean_G.sum() == 1
    for group in range(len(recalls.groups)):
        if not (alone and recalls.in_mean_G[group]):
            gap_BK = _group_gaps(recall_BGK, recalls.in_mean_G, group)
            yield from _summarise(iter([gap_BK]), group, rules.level)
    pairs = combinations(range(len(recalls.groups)), 2)
    differences = (recall_BGK[:, one] - recall_BGK[:, other] for one, other in pairs)
    yield from _summarise(differences, None, rules.level)


def _group_gaps(recall_BGK: Doubles, in_mean_G: npt.NDArray[np.bool_], group: int) -> Doubles:
    """Subtract the mean recall of groups in the mean; NaN if no other of them has rows."""
    inside_BMK = recall_BGK[:, in_mean_G]
    mean_BK = mean_of_known(np.moveaxis(inside_BMK, 1, -1))
    others_BK = (~np.isnan(inside_BMK)).sum(axis=1) - int(in_mean_G[group])
    return np.where(others_BK > 0, recall_BGK[:, group] - mean_BK, np.nan)


@dataclass
class _Largest:
    """The largest value of a statistic over pairs of groups, in the table and in each draw."""

    values_B: Doubles
    errors_B: Doubles
    classes: int = 0

    def add(self, values_B: Doubles, errors_B: Doubles, classes: int) -> None:
        """Take in one pair: its values, the sizes of its errors, and the classes that count."""
        if not self.classes or values_B[0] > self.values_B[0]:
            self.classes = classes
        self.values_B = np.fmax(self.values_B, values_B)
        self.errors_B = np.fmax(self.errors_B, errors_B)


def _summarise(gaps: Iterator[Doubles], group: int | None, level: float) -> Iterator[ClassSummary]:
    """Summarise gaps [1 + B, K] of a group, or of the pair of groups with the largest value.

    The first row is the table's, the others are draws.
    """
    nothing = np.array(np.nan)
    squares, ranges = _Largest(nothing, nothing), _Largest(nothing, nothing)
    for gap_BK in gaps:
        known_K = ~np.isnan(gap_BK[0])
        # A draw can lose classes, and has no others than the table.
        if known_K.any():
            squares.add(mean_of_known(gap_BK**2), nothing, int(known_K.sum()))
        if known_K.sum() > 1:
            errors_B = spread(gap_BK[1:] - gap_BK[:1])
            ranges.add(spread(gap_BK), errors_B, int(known_K.sum()))
    if squares.classes:
        ends = _of_squares(squares.values_B, level)
        yield ClassSummary("rms_tpr_gap", group, *ends, squares.classes)
    if ranges.classes:
        ends = _of_range(ranges.values_B, ranges.errors_B, level)
        yield ClassSummary("range_tpr_gap", group, *ends, ranges.classes)


#: A value, the ends of its interval, and the value less noise.
_Ends = tuple[float, float | None, float | None, float | None]


def _of_squares(values_B: Doubles, level: float) -> _Ends:
    """Return the root of a mean square, of the ends of its interval, and of it less noise."""
    value, draws_B = float(values_B[0]), values_B[1:]
    draws_B = draws_B[~np.isnan(draws_B)]
    if not len(draws_B) or np.ptp(draws_B) == 0:
        return math.sqrt(value), None, None, None
    first, last = percentile_interval(draws_B, level)
    low, high = min(first, 2 * value - last), max(last, 2 * value - first)
    less = 2 * value - float(draws_B.mean())
    return _root(value), _root(low), _root(high), _root(less)


def _root(square: float) -> float:
    """Return the root of an estimate of a square, which noise can make negative."""
    return math.sqrt(max(square, 0.0))


def _of_range(values_B: Doubles, errors_B: Doubles, level: float) -> _Ends:
    """Return a range, the ends of its interval, and the range less noise."""
    value, draws_B = float(values_B[0]), values_B[1:]
    draws_B = draws_B[~np.isnan(draws_B)]
    if not len(draws_B) or np.ptp(draws_B) == 0:
        return value, None, None, None
    reach = float(np.nanquantile(errors_B, level))
    less = max(2 * value - float(draws_B.mean()), 0.0)
    return value, max(value - reach, 0.0), min(value + reach, 2.0), less
