"""Compute any registered metric of any predictions, with intervals that say what they cover.

Differences of means have the crossed intervals of gaps (`scopes`); other metrics have the product-
weight bootstrap over runs and templates (Owen 2007). Noise alone moves many of these, such as
distances away from 0: an interval reaches as far as the percentiles of the draws and these turned
over at the estimate, whichever lie further out.

Shapes: B draws, G groups, R runs, T units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.schema import ALL, TABLE
from raybias.stats.bootstrap import Weights, percentile_interval
from raybias.stats.components import Doubles
from raybias.stats.contrasts import Laid, lay_out, ratio
from raybias.stats.count_arrays import CountArrays, linearised
from raybias.stats.metric import Contrast, Metric, metrics
from raybias.stats.scopes import GapTable, rate_table
from raybias.stats.units import UNITS

#: The background of differences of rates, unless another is asked for.
DEFAULT_BACKGROUND: Final = "mean_of_groups"
#: Ends the score of a value less what noise adds to it, or with what noise takes off a ratio of the
#: lowest to the highest.
LESS_NOISE: Final = "_less_noise"
#: An interval is given if no more than this share of draws leaves the metric undefined.
_UNDEFINED: Final = 0.05
#: Examples of a run times draws, and the fewest draws that this leaves.
_WEIGHED: Final = 10_000_000
_LEAST_DRAWS: Final = 400
_ENTRIES: Final = 1 << 22


@dataclass(frozen=True)
class Measured:
    """One metric of one classifier on one attribute: its rows, and what they are made of."""

    name: str
    laid: Laid
    each: Doubles
    """Values of groups [1 + B, G], as they are and as they are drawn; NaN where there are none."""
    whole: Doubles
    """Values of all groups together [1 + B]."""
    scope: str
    rows: list[dict[str, Any]]
    """Of schema.ESTIMATES; `condition` is the background."""


def measure(
    examples: pl.DataFrame,
    names: Sequence[str],
    inside: pl.DataFrame,
    rules: Statistics,
    *,
    against: str = "",
    wide: str = "sentences",
) -> Iterator[Measured]:
    """Compute metrics of counts, of a class, or of contrasts for every classifier and attribute.

    `examples` are as for `contrasts.lay_out`; `against` replaces the background of every metric
    that has one; `wide` is the scope of an interval over runs and units: sentences, or items.
    """
    parts = [metrics[name].contrast or Contrast(outcomes=(name,)) for name in names]
    outcomes = {one for each in parts for one in each.outcomes if isinstance(one, str)}
    for laid in lay_out(examples, sorted(outcomes), inside):
        drawing = _Drawing(laid, rules, against, wide)
        for name in names:
            entry = metrics[name]
            lacks = "" if entry.contrast is None else laid.lacks(entry.contrast, against)
            if lacks:
                (values, whole), rows = drawing.nothing(), [drawing.row(entry, reason=lacks)]
            elif entry.contrast is None:
                values, whole, rows = drawing.difference(entry)
            elif entry.contrast.within == "source":
                values, whole, rows = drawing.of_sources(entry, entry.contrast)
            else:
                values, whole, rows = drawing.contrast(entry, entry.contrast)
            yield Measured(name, laid, values, whole, drawing.scope, rows)


#: Values of groups and of all, and rows.
_Made = tuple[Doubles, Doubles, list[dict[str, Any]]]


@dataclass(frozen=True)
class _Drawing:
    laid: Laid
    rules: Statistics
    against: str
    wide: str

    @property
    def draws(self) -> int:
        """As many as asked for, but fewer of many examples."""
        rows = len(self.laid.run_N) // self.laid.runs
        return min(self.rules.bootstrap_draws, max(_LEAST_DRAWS, _WEIGHED // max(1, rows)))

    @property
    def scope(self) -> str:
        """What is drawn; empty where there is one run and one unit."""
        return self.wide if self.laid.units > 1 else "runs" if self.laid.runs > 1 else ""

    def difference(self, entry: Metric) -> _Made:
        """Take a group's share less that of the background: crossed intervals."""
        against = self.against or DEFAULT_BACKGROUND
        parts = Contrast(outcomes=(entry.name,), against=against, distance=lambda b, g: g - b)
        each, whole = self._drawn(parts, against)
        table = difference_table(self.laid, entry.name, against, UNITS.get(self.wide, ""))
        found = self._crossed(table, "not every run has examples of each group that count")
        values = zip(self.laid.groups, each[0], strict=True)
        rows = [self.row(entry, g, value, against, **found[g]) for g, value in values]
        return each, whole, rows

    def _crossed(self, table: GapTable | None, lacks: str) -> dict[str, dict[str, Any]]:
        """Return, by group, the widest scope and its interval; or the reason for none."""
        reason = self.unvaried if table is not None else lacks
        groups = (*self.laid.groups, ALL)
        found: dict[str, dict[str, Any]] = {group: {"reason": reason} for group in groups}
        if table is None:
            return found
        for scope, estimate in table.estimates(None).items():
            low_G, high_G = estimate.interval(self.rules.level)
            if not np.isnan(low_G).all():
                found = {group: {} for group in groups}
                drawn = self.wide if scope == "sentences" else scope
                for group, low, high in zip(table.groups, low_G, high_G, strict=True):
                    if not np.isnan(low):
                        found[group] = {"scope": drawn, "low": float(low), "high": float(high)}
        return found

    def contrast(self, entry: Metric, parts: Contrast) -> _Made:
        """Contrast the outcomes of groups: intervals from draws."""
        against = (self.against or parts.against) if parts.against else ""
        each, whole = self._drawn(parts, against)
        rows = []
        grouped = bool(against) or parts.reduce is None
        for g, group in enumerate(self.laid.groups if grouped else ()):
            if against != f"reference:{group}":
                rows += self._drawn_rows(entry, group, each[:, g], against)
        if parts.reduce is not None:
            found = self._drawn_rows(entry, ALL, whole, against)
            if grouped and np.isnan(whole[0]):
                undefined = [g for g, v in zip(self.laid.groups, each[0], strict=True)
                             if np.isnan(v)]  # fmt: skip
                found[0]["reason"] = f"not defined for {', '.join(undefined)}"
            rows += found
        return each, whole, rows

    def of_sources(self, entry: Metric, parts: Contrast) -> _Made:
        """Average over source examples: crossed intervals."""
        items_RT, sums_RT = self.laid.of_sources(parts)
        there, kept = items_RT.any(axis=1), items_RT.any(axis=0)
        items_RT, sums_RT = items_RT[np.ix_(there, kept)], sums_RT[np.ix_(there, kept)]
        (each, whole), table = self.nothing(), None
        if items_RT.size:
            whole[0] = np.mean(sums_RT.sum(axis=1) / items_RT.sum(axis=1))
            table = GapTable(self.laid.keys, entry.name, (ALL,), np.ones(1, bool),
                             linearised(items_RT[None], sums_RT[None]))  # fmt: skip
        found = self._crossed(table, "no source example has versions of two groups")
        rows = [self.row(entry, value=whole[0], **found[ALL])]
        for some, runs_BR, units_BT in self._weights():
            over = ratio(units_BT[:, kept] @ sums_RT.T, units_BT[:, kept] @ items_RT.T)
            weights = np.where(np.isnan(over), 0, runs_BR[:, there])
            summed = (np.nan_to_num(over) * weights).sum(axis=1)
            whole[1:][some] = ratio(summed, weights.sum(axis=1))
        return each, whole, rows

    def nothing(self) -> tuple[Doubles, Doubles]:
        """Make room for the values of groups [1 + B, G] and of all [1 + B]; NaN."""
        shape = 1 + self.draws, len(self.laid.groups)
        return np.full(shape, np.nan), np.full(shape[0], np.nan)

    def _drawn(self, parts: Contrast, against: str) -> tuple[Doubles, Doubles]:
        laid, (each, whole) = self.laid, self.nothing()
        ones = np.ones((1, laid.runs)), np.ones((1, laid.units))
        each[:1], whole[:1] = laid.drawn(parts, against, *ones)
        for some, runs_BR, units_BT in self._weights():
            each[1:][some], whole[1:][some] = laid.drawn(parts, against, runs_BR, units_BT)
        return each, whole

    def _weights(self) -> Iterator[tuple[slice, Doubles, Doubles]]:
        """Yield draws, so few at a time that those of all examples of a run can be held."""
        if not self.scope:
            return
        laid = self.laid
        key = (self.rules.bootstrap_seed, laid.keys[schema.KEYS.index("probe")], laid.keys[-1])
        step = max(1, _ENTRIES // max(1, len(laid.run_N) // laid.runs))
        weights = Weights((laid.runs, laid.units), self.draws, key, "sentences")
        for some, runs_BR, units_BT in weights.chunks():
            for start in range(0, len(runs_BR), step):
                part = slice(start, min(len(runs_BR), start + step))
                place = slice(some.start + part.start, some.start + part.stop)
                yield place, runs_BR[part].astype(float), units_BT[part].astype(float)

    def _drawn_rows(
        self, entry: Metric, group: str, values: Doubles, against: str
    ) -> list[dict[str, Any]]:
        """Give a value [1 + B] its interval; and the value less what noise alone does to it."""
        value, draws_B = float(values[0]), values[1:]
        known = draws_B[~np.isnan(draws_B)]
        bound = entry.contrast.bound if entry.contrast else None
        reason = None
        if np.isnan(value):
            reason = "not defined: no examples that count"
        elif self.scope and len(known) < (1 - _UNDEFINED) * len(draws_B):
            reason = f"not defined in {1 - len(known) / len(draws_B):.0%} of draws"
        elif not self.scope or np.ptp(known) == 0:
            reason = self.unvaried
        if reason is not None:
            return [self.row(entry, group, value, against, reason=reason)]
        first, last = percentile_interval(known, self.rules.level)
        low, high = min(first, 2 * value - last), max(last, 2 * value - first)
        if bound is None:
            return [self.row(entry, group, value, against, low=low, high=high)]
        clip = max if known.mean() >= bound else min
        row = self.row(entry, group, value, against, low=clip(low, bound), high=clip(high, bound))
        less = self.row(entry, group, clip(2 * value - known.mean(), bound), against)
        return [row, {**less, "score": f"{entry.name}{LESS_NOISE}"}]

    @property
    def unvaried(self) -> str:
        """Why nothing varies."""
        varies = "does not vary over what could be drawn"
        return varies if self.scope else "one run of one item: nothing to draw"

    def row(
        self, entry: Metric, group: str = ALL, value: float = np.nan, against: str = "",
        **found: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a row of schema.ESTIMATES, whose scope is that of its interval."""
        statistic = "gap" if entry.contrast is None else "score"
        if entry.contrast is not None and entry.name.endswith("_ratio"):
            statistic = "ratio"
        return {**dict(zip(TABLE, self.laid.keys, strict=True)), "score": entry.name,
                "statistic": statistic, "scope": self.scope if "low" in found else "",
                "group": group, "condition": against, "value": float(value), **found}  # fmt: skip


def difference_table(laid: Laid, name: str, against: str, unit: str = "") -> GapTable | None:
    """Lay a share less the background's out by run and unit; None where a run lacks a group.

    `unit` begins the names of units.
    """
    shape = (laid.units, laid.runs, len(laid.groups))
    items, hits = (
        laid.counts(f"{part} {name}").reshape(shape).transpose(2, 1, 0)
        for part in ("among", "holds")
    )
    if "pooled" not in against:
        reference = against.removeprefix("reference:")
        inside = laid.in_mean_G if reference == against else np.array(laid.groups) == reference
        counts = CountArrays(laid.keys, (name,), laid.groups,
                             tuple(f"{unit}{number}" for number in range(laid.units)),
                             items[None], hits[None])  # fmt: skip
        rates = rate_table(counts, 0, dict(zip(laid.groups, inside.tolist(), strict=True)))
        return None if rates is None else rates.less_mean()
    kept = items.any(axis=(0, 1))
    items, hits = items[..., kept], hits[..., kept]
    own = against == "pooled_others"
    if not items.any(axis=2).all() or (own and len(laid.groups) < 2):
        return None
    others = [table.sum(axis=0, keepdims=True) - own * table for table in (items, hits)]
    values = linearised(items, hits) - linearised(others[0], others[1])
    return GapTable(laid.keys, name, laid.groups, np.ones(len(laid.groups), bool), values)


def listed_metrics() -> pl.DataFrame:
    """List the metrics: metric, formula, background, needs, interval, source."""
    rows = []
    for name, entry in metrics.items():
        parts = entry.contrast or Contrast(outcomes=(name,), against=DEFAULT_BACKGROUND)
        drawn = entry.contrast is not None or entry.of == "classes"
        of_sources = parts.within == "source"
        rows.append({
            "metric": name,
            "formula": entry.formula or entry.about,
            "background": parts.against,
            "needs": "versions of source examples" if of_sources else parts.needs,
            "interval": "bootstrap" if drawn and not of_sources else "t",
            "source": entry.source,
        })  # fmt: skip
    return pl.DataFrame(rows)
