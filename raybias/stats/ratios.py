"""Divide the rates of groups by the highest one, or by that of a group that was named.

The group with the highest rate is found in the same data. So intervals hold for all pairs of
groups at once (Tukey's studentised range, for pairs of unequal variance as Kramer has it), and the
ratio to the rate that is highest in truth lies between the lowest of the lower ends and the lowest
of the upper ends (Edwards and Hsu 1983). Of groups that are all alike, some interval excludes 1 in
at most 5% of tables (`benchmarks/ratios.py`). For a group that is named before the data are seen,
the intervals of all ratios to it hold at once (Sidak), which takes less.

A ratio is taken on the logarithmic scale, linearised, with the variances that gaps have: of seeds,
sentences, words, and at least that of few events.

Shapes: G groups, P pairs of groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, satterthwaite
from raybias.stats.intervals import REFERENCE, Rules, from_rows
from raybias.stats.metric import metrics
from raybias.stats.scopes import GapTable, Scope
from raybias.stats.share_intervals import wilson
from raybias.stats.word_variance import WordVariance

#: Begins the condition of a ratio, before the group that the others are divided by.
BY: Final = "by "
#: Why a ratio has no value or no verdict.
NO_RATE: Final = "a rate is 0"
#: A group with a smaller share of the rows is not divided by, unless it is named; the rules on New
#: York City's Local Law 144 leave such groups out too.
SMALL: Final = 0.02

#: Values that are held at once; 32 MiB.
_ENTRIES: Final = 1 << 22

Places = npt.NDArray[np.int64]


def ratios(
    tables: Sequence[GapTable],
    words: Mapping[tuple[str, ...], WordVariance],
    rules: Rules,
) -> pl.DataFrame:
    """Divide the rates of `tables` (`scopes.rate_tables`) under every scope that they allow.

    Gives columns of schema.ESTIMATES; `condition` names the group that is divided by. Nothing is
    `significant`: whether groups differ is told by their gaps.
    """
    rows: list[dict[str, Any]] = []
    for table in tables:
        if len(table.groups) < 2 or metrics[table.score].share is None:
            continue
        named = _named(table, rules)
        compared = Compared.of(table, named)
        if compared is not None:
            rows += compared.rows(words.get(table.place), rules.level)
    return from_rows(rows).with_columns(statistic=pl.lit("ratio"))


def _named(table: GapTable, rules: Rules) -> int | None:
    """Return the place of the one group that others are compared with, if it was named."""
    chosen = rules.groups_of(table.probe, table.keys[-1]) or ()
    return table.groups.index(chosen[0]) if len(chosen) == 1 and chosen[0] in table.groups else None


@dataclass(frozen=True)
class Compared:
    """Rates of the groups of one table, and the groups that each may be divided by."""

    table: GapTable
    rate_G: Doubles
    reference: int
    """The group that all are divided by."""
    named: bool
    """Whether it was named, and not found."""
    rivals: Places
    """Groups that may have the highest rate; the reference alone if it was named."""

    @classmethod
    def of(cls, table: GapTable, named: int | None) -> Compared | None:
        """Choose the group to divide by; None where no rate is above 0."""
        rate_G = table.values_GRT.mean(axis=(1, 2))
        if named is not None:
            return cls(table, rate_G, named, True, np.array([named])) if rate_G[named] > 0 else None
        items_G = np.ones(len(rate_G)) if table.items_G is None else table.items_G
        large_G = items_G >= SMALL * items_G.sum()
        rivals = np.flatnonzero(large_G & (rate_G > 0))
        if not len(rivals):
            return None
        return cls(table, rate_G, int(rivals[rate_G[rivals].argmax()]), False, rivals)

    def rows(self, words: WordVariance | None, level: float) -> Iterator[dict[str, Any]]:
        """Yield a row for each group and scope, and one for the group that is divided by."""
        condition = f"{BY}{self.table.groups[self.reference]}"
        names = {**self.table.names, "condition": condition}
        each = self.level_of_each(level)
        pairs = self.pairs()
        scopes = self.estimates(pairs, words)

        for g, group in enumerate(self.table.groups):
            row = {**names, "group": group, "value": self.rate_G[g] / self.rate_G[self.reference]}
            if g == self.reference:
                yield row | {"reason": REFERENCE}
                continue
            if self.rate_G[g] <= 0:
                none = {"low": 0.0, "high": self._most(g, each), "reason": NO_RATE}
                units = self.table.values_GRT.shape[2]
                yield row | {"scope": "sentences", "units": units} | none
                continue
            own = pairs[:, 0] == g
            for scope, found in scopes.items():
                units = int(self.table.units_under(scope)[g])
                ends = self._ends(g, found, own, each)
                yield row | {"scope": scope, "units": units} | ends
            if not scopes:
                yield row

    def _ends(
        self, g: int, found: MeanEstimate, own: npt.NDArray[np.bool_], each: float
    ) -> dict[str, float]:
        """Compute the ends of a ratio from its `own` pairs; none where none of them varies.

        A group that may itself have the highest rate ends at 1.
        """
        ends = [end[own] for end in found.interval(each)]
        if np.isnan(ends[0]).all():
            return {}
        # A pair that is the same in every unit is known.
        logs = [float(np.where(np.isnan(end), found.mean[own], end).min()) for end in ends]
        most = 0.0 if g in self.rivals else np.inf
        low, high = (float(np.exp(min(end, most))) for end in logs)
        return {"low": low, "high": high}

    def _most(self, g: int, each: float) -> float | None:
        """Divide what a rate of 0 may be by the rate of the reference."""
        if self.table.events is None:
            return None
        n = self.table.events.units_G[g]
        _, high = wilson(np.zeros(1), np.array([n]), np.array([stats.norm.ppf((1 + each) / 2)]))
        most = float(high[0] / self.rate_G[self.reference])
        return min(most, 1.0) if g in self.rivals or not self.named else most

    def level_of_each(self, level: float) -> float:
        """Return the level of single intervals that hold at once."""
        if self.named:
            return float(level ** (1 / max(1, len(self.table.groups) - 1)))
        return _level_of_pairs(len(self.table.groups), level)

    def pairs(self) -> Places:
        """List the pairs [P, 2] of a group with a rate, and one that it is divided by."""
        known = np.flatnonzero(self.rate_G > 0)
        grid = np.stack(np.meshgrid(known, self.rivals, indexing="ij"), axis=-1).reshape(-1, 2)
        return np.asarray(grid[grid[:, 0] != grid[:, 1]])

    def estimates(self, pairs: Places, words: WordVariance | None) -> dict[Scope, MeanEstimate]:
        """Estimate the logarithms of ratios [P] under every scope that the design allows."""
        _, runs, templates = self.table.values_GRT.shape
        step = max(1, _ENTRIES // (runs * templates))
        parts = [self._some(pairs[n : n + step], words) for n in range(0, len(pairs), step)]
        found: dict[Scope, MeanEstimate] = {}
        for scope in dict.fromkeys(scope for part in parts for scope in part):
            # Pairs that do not vary over runs have no scope of runs.
            each = [part.get(scope, _still(part)) for part in parts]
            found[scope] = MeanEstimate(
                np.concatenate([one.mean for one in each]),
                np.concatenate([one.variance for one in each]),
                np.concatenate([one.freedom for one in each]),
            )
        return found

    def _some(self, pairs: Places, words: WordVariance | None) -> dict[Scope, MeanEstimate]:
        table, rate_G = self.table, self.rate_G
        one, other = pairs.T
        logs_P = np.log(rate_G[one] / rate_G[other])
        parts_GRT = table.values_GRT / np.where(rate_G > 0, rate_G, np.nan)[:, None, None]
        differences = replace(
            table,
            groups=tuple(map(str, range(len(one)))),
            in_mean_G=np.ones(len(one), bool),
            values_GRT=parts_GRT[one] - parts_GRT[other] + logs_P[:, None, None],
            apart=self._independent(one, other, logs_P),
            events=None,
        )
        found = differences.estimates(None)
        least_P = self._least(one, other)
        for scope, estimate in found.items():
            # Groups that are the same on every template stay so: there is nothing that varies.
            varies_P = estimate.variance > ROUNDING**2
            floored = np.where(varies_P, np.maximum(estimate.variance, least_P), 0.0)
            found[scope] = replace(estimate, variance=floored)
        if words is not None and "sentences" in found:
            share_G = words.by_word(table.groups) / np.where(rate_G > 0, rate_G, np.nan) ** 2
            found["wording"] = words.added(found["sentences"], share_G[one] + share_G[other])
        return found

    def _independent(self, one: Places, other: Places, logs_P: Doubles) -> MeanEstimate | None:
        """Estimate the logarithms from groups that no template pairs."""
        apart = self.table.apart
        if apart is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            relative_G = apart.variance / apart.mean**2
        terms = [(relative_G[each], apart.freedom[each]) for each in (one, other)]
        return MeanEstimate(logs_P, *satterthwaite(terms))

    def _least(self, one: Places, other: Places) -> Doubles:
        """Compute the least variance [P] of a logarithm, of groups with few events."""
        if self.table.events is None:
            return np.zeros(len(one))
        rate_G = np.where(self.rate_G > 0, self.rate_G, np.nan)
        relative_G = self.table.events.least_variances() / rate_G**2
        return np.asarray(relative_G[one] + relative_G[other])


def _still(estimates: Mapping[Scope, MeanEstimate]) -> MeanEstimate:
    """Estimate pairs that do not vary: there is no interval."""
    known = next(iter(estimates.values()))
    return replace(known, variance=np.zeros_like(known.variance))


@lru_cache
def _level_of_pairs(groups: int, level: float) -> float:
    """Return the level of single differences at which those of all pairs of groups hold at once."""
    reach = stats.studentized_range.ppf(level, groups, np.inf) / np.sqrt(2)
    return float(2 * stats.norm.cdf(reach) - 1)
