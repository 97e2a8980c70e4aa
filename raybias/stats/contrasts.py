"""Contrast outcomes of groups: error rates, scores and versions of one example, drawn anew.

An outcome is computed in each run and averaged over runs; a contrast is taken of these averages,
and a distance between two sets of scores in each run. With one run this is the textbook's metric.
Templates and runs that are drawn anew (`bootstrap`) weight the examples.

Shapes: B draws, N rows, G groups, R runs, T units (templates, else source examples, else items).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.stats.components import Doubles
from raybias.stats.examples import Bools, Counts, Examples, Versions, mean_of_known, ratio
from raybias.stats.metric import Contrast, metrics

#: What names the examples of one classifier on one attribute.
TABLE: Final = (*schema.KEYS, "attribute")


@dataclass(frozen=True)
class Laid:
    """The examples of one classifier on one attribute, as arrays."""

    keys: tuple[str, ...]
    """Values of TABLE."""
    groups: tuple[str, ...]
    runs: int
    units: int
    """Whether units are templates, source examples or items is for the caller to know."""
    at: Mapping[str, Counts]
    """Which group, run, unit and source each row is of [N]; the source is counted in each run."""
    columns: pl.DataFrame
    """gold, called, pred, n, the masks of shares and, where they are known, score and source."""
    in_mean_G: Bools

    def drawn(
        self, parts: Contrast, against: str, runs_BR: Doubles, units_BT: Doubles
    ) -> tuple[Doubles, Doubles]:
        """Compute the values of groups [B, G] and of all [B] where rows have these weights.

        NaN where an outcome is not defined, for the groups of `against` itself, and for what the
        metric has not.
        """
        draws = _Draws(self, runs_BR, units_BT)
        phi_KBG = np.stack([draws.outcome(one, parts, against) for one in parts.outcomes])
        each_BG = phi_KBG[0]
        if parts.reduce is None:
            return each_BG, np.full(len(runs_BR), np.nan)
        compared = [group != against.removeprefix("reference:") for group in self.groups]
        all_KB = parts.reduce(phi_KBG[..., compared])
        all_KB = np.where(np.isnan(phi_KBG[..., compared]).any(axis=-1), np.nan, all_KB)
        all_B = all_KB[0] if parts.worst is None else parts.worst(all_KB, axis=0)
        return (each_BG if against else np.full_like(each_BG, np.nan)), all_B

    def lacks(self, parts: Contrast) -> str:
        """Say what of a metric's needs is not there; empty where nothing is lacking."""
        if len(self.groups) < 2:
            return "there is one group, and nothing to compare it with"
        if parts.within == "source" and "source" not in self.at:
            return "not all examples have a source_id or template_id"
        if parts.needs != "counts" and np.isnan(self.score).any():
            return "not all examples have a score"
        if parts.needs == "probabilities" and not (0 <= self.score.min() <= self.score.max() <= 1):
            return "scores are not all from 0 to 1, as probabilities are"
        return ""

    def of_sources(self, parts: Contrast) -> tuple[Doubles, Doubles]:
        """Count source examples in which groups meet, and sum their values, by run and unit [R, T].

        For a mean over source examples.
        """
        (outcome,) = parts.outcomes
        versions = Versions(
            self.at["source"], self.at["group"], self._gold, self._pred, self.score, self._copies,
            (int(self.at["source"].max()) + 1, len(self.groups)),
        )  # fmt: skip
        value_S = outcome(versions) if callable(outcome) else np.empty(0)
        value_S = value_S if parts.reduce is None else parts.reduce(value_S)
        _, first = np.unique(self.at["source"], return_index=True)
        cell_S = self.at["run"][first] * self.units + self.at["unit"][first]
        known, size = ~np.isnan(value_S), self.runs * self.units
        items, sums = (
            np.bincount(cell_S[known], weights, size).reshape(self.runs, self.units).astype(float)
            for weights in (None, value_S[known])
        )
        return items, sums

    @cached_property
    def rows(self) -> list[list[Counts]]:
        """Which rows are of each run and group."""
        return [
            [
                np.flatnonzero((self.at["run"] == run) & (self.at["group"] == group))
                for group in range(len(self.groups))
            ]
            for run in range(self.runs)
        ]

    @cached_property
    def score(self) -> Doubles:
        """Scores of the class [N]; NaN where there are none."""
        if "score" not in self.columns.columns:
            return np.full(self.columns.height, np.nan)
        return self.columns["score"].cast(pl.Float64).fill_null(np.nan).to_numpy()

    @cached_property
    def _gold(self) -> Bools:
        return self.columns["gold"].to_numpy()

    @cached_property
    def _pred(self) -> Counts:
        return self.columns["pred"].cast(pl.Int64).fill_null(-1).to_numpy()

    @cached_property
    def _copies(self) -> Doubles:
        return self.columns["n"].cast(pl.Float64).to_numpy()

    def counts(self, mask: str | Bools) -> Doubles:
        """Count the rows of a mask by unit, run and group [T, R * G]."""
        held = self.columns[mask].to_numpy() if isinstance(mask, str) else mask
        shape = (self.units, self.runs, len(self.groups))
        cell = np.ravel_multi_index([self.at[name] for name in ("unit", "run", "group")], shape)
        sums = np.bincount(cell[held], self._copies[held], int(np.prod(shape)))
        return np.asarray(sums.reshape(self.units, -1), np.float64)

    @cached_property
    def confusion(self) -> tuple[Doubles, ...]:
        """True positives, false positives, false negatives, true negatives, each [T, R * G]."""
        gold, called = self._gold, self.columns["called"].to_numpy()
        return tuple(
            self.counts(mask)
            for mask in (gold & called, ~gold & called, gold & ~called, ~gold & ~called)
        )

    def examples(self, rows: Counts, units_BT: Doubles) -> Examples:
        """Select rows, with the weights of their units."""
        weights = units_BT[:, self.at["unit"][rows]] * self._copies[rows]
        return Examples(self._gold[rows], self.score[rows], weights)


@dataclass(frozen=True)
class _Draws:
    laid: Laid
    runs_BR: Doubles
    units_BT: Doubles

    def outcome(
        self, outcome: str | Callable[..., Doubles], parts: Contrast, against: str
    ) -> Doubles:
        """Compute the outcomes of groups [B, G], or their distances from the background's."""
        if parts.needs == "counts":
            of_groups, of_others = self._of_counts(outcome, against)
        elif callable(outcome):
            of_groups, of_others = self._of_scores(outcome, against, paired=not parts.distance)
        phi_BG = self._over_runs(of_groups)
        if parts.distance is not None and of_others is not None:
            phi_BG = parts.distance(self._over_runs(of_others), phi_BG)
        if against.startswith("reference:"):
            phi_BG[:, self._reference(against)] = np.nan
        return phi_BG

    def _reference(self, against: str) -> int:
        return self.laid.groups.index(against.removeprefix("reference:"))

    def _over_runs(self, values_BRG: Doubles) -> Doubles:
        """Average over the drawn runs that have a value."""
        weights = np.where(np.isnan(values_BRG), 0, self.runs_BR[..., None])
        return ratio((np.nan_to_num(values_BRG) * weights).sum(axis=1), weights.sum(axis=1))

    def _of_counts(
        self, outcome: str | Callable[..., Doubles], against: str
    ) -> tuple[Doubles, Doubles | None]:
        if callable(outcome):
            function, tables = outcome, self.laid.confusion
        else:
            function = ratio
            tables = tuple(self.laid.counts(f"{part} {outcome}") for part in ("holds", "among"))
        shape = (-1, self.laid.runs, len(self.laid.groups))
        sums = [(self.units_BT @ table).reshape(shape) for table in tables]
        values = function(*sums)
        if against == "mean_of_groups":
            return values, self._mean_of_groups(values)
        if against.startswith("reference:"):
            place = self._reference(against)
            return values, np.broadcast_to(values[..., [place]], values.shape)
        if not against:
            return values, None
        own = against == "pooled_others"
        others = [np.broadcast_to(s.sum(axis=-1, keepdims=True), s.shape) - own * s for s in sums]
        return values, function(*others)

    def _mean_of_groups(self, values: Doubles) -> Doubles:
        mean = mean_of_known(values[..., self.laid.in_mean_G])
        return np.broadcast_to(mean[..., None], values.shape)

    def _of_scores(
        self, outcome: Callable[..., Doubles], against: str, *, paired: bool
    ) -> tuple[Doubles, Doubles | None]:
        shape = (len(self.units_BT), self.laid.runs, len(self.laid.groups))
        values, others = np.full(shape, np.nan), np.full(shape, np.nan)
        two_sets = paired and bool(against)
        for run, rows in enumerate(self.laid.rows):
            for group, own in enumerate(rows):
                examples = self.laid.examples(own, self.units_BT)
                if against in ("", "mean_of_groups"):
                    values[:, run, group] = outcome(examples)
                    continue
                beside = self.laid.examples(self._background(rows, group, against), self.units_BT)
                if two_sets:
                    values[:, run, group] = outcome(examples, beside)
                else:
                    values[:, run, group], others[:, run, group] = (
                        outcome(examples),
                        outcome(beside),
                    )
        if against == "mean_of_groups":
            others = self._mean_of_groups(values)
        return values, others

    def _background(self, rows: Sequence[Counts], group: int, against: str) -> Counts:
        if against.startswith("reference:"):
            return rows[self._reference(against)]
        others = against == "pooled_others"
        return np.concatenate([own for g, own in enumerate(rows) if not (others and g == group)])


def lay_out(
    examples: pl.DataFrame, outcomes: Sequence[str], inside: pl.DataFrame, positive: int
) -> Iterator[Laid]:
    """Lay examples out as arrays, classifier by classifier and attribute by attribute.

    Parameters
    ----------
    examples: TABLE, run_id, group, unit, label, pred and n; score and source where they are known;
        without extra groups.
    outcomes: names of the metrics of counts or of a class that contrasts are taken of.
    inside: probe, attribute, group, in_mean.
    positive: the class that metrics of one class are about.
    """
    gold, called = pl.col("label") == positive, (pl.col("pred") == positive).fill_null(False)
    masks = []
    for name in outcomes:
        entry = metrics[name]
        share = (
            entry.one_class(gold, called)
            if entry.one_class is not None
            else entry.share(pl.col("label"), pl.col("pred"))
            if entry.share is not None
            else None
        )
        if share is not None:
            among = share.among.fill_null(False)
            masks += [among.alias(f"among {name}"),
                      (among & share.holds.fill_null(False)).alias(f"holds {name}")]  # fmt: skip
    marked = examples.with_columns(gold=gold, called=called).with_columns(masks)
    known = {row[:3]: row[3] for row in inside.iter_rows()}
    parts = marked.cast({pl.Categorical: pl.String}).partition_by(TABLE, as_dict=True)
    for keys, part in sorted(parts.items(), key=lambda item: tuple(map(str, item[0]))):
        names: dict[str, Any] = {}
        at: dict[str, Counts] = {}
        for column, level in (("group", "group"), ("run_id", "run"), ("unit", "unit")):
            names[level], at[level] = np.unique(part[column].to_numpy(), return_inverse=True)
        if "source" in part.columns and not part["source"].null_count():
            source = pl.struct("run_id", "source").rank("dense").cast(pl.Int64) - 1
            at["source"] = part.select(source).to_series().to_numpy()
        place = dict(zip(TABLE, keys, strict=True))
        in_mean = [
            known.get((place["probe"], place["attribute"], g), False) for g in names["group"]
        ]
        yield Laid(
            tuple(map(str, keys)), tuple(map(str, names["group"])), len(names["run"]),
            len(names["unit"]), at, part, np.array(in_mean, bool),
        )  # fmt: skip
