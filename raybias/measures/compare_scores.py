"""Judge how scores of sums change from one arm to another: of options, triples and the like.

Such a score is a function of sums over units, such as templates or terms (`Kind.sums`). Both arms
answer the same items, so each unit has sums in both. The change is the candidate's score less the
base's, and the jackknife of `measure` leaves each unit out of both arms at once: what a unit does
to both cancels.

A score that is the least of smooth functions (ICAT) changes by the least over the candidate's
functions of the most over the base's of their differences. Its interval is made of those of the
differences in the same way, since a least and a most grow with what they are taken of.

Shapes: M smooth functions of a score, C = M M differences of them, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.measures.compare import (
    COMPARED,
    Ends,
    Row,
    Rule,
    Units,
    hidden,
    judged,
    named_alike,
    needed,
    refuse_lacking,
    still,
    unread_rises,
)
from raybias.measures.kind import Kind, Sampled, Score, Sums, sampled
from raybias.measures.pair_means import mcnemar
from raybias.schema import ALL
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.intervals import UNDEFINED, Rules, jackknifed, without_each
from raybias.table_files import conformed

#: What a row of changes is about, and so what names it.
_NAMES: Final = ("model", "method", "dataset", "probe", "style", "condition", "attribute", "group")
#: Columns that may have other values in the arms, if each arm has one.
_COMPARED: Final = ("model", "method")
#: Computes the smooth functions [M, ...] of a score, of the sums of each condition.
Values = Callable[[Sequence[Sums]], Doubles]
#: Smaller changes of a score are rounding.
_SAME: Final = 1e-9


def compare_scores(
    kind: Kind,
    base: pl.DataFrame,
    candidate: pl.DataFrame,
    rules: Rules,
    *,
    margin: float,
    kinds: int = 1,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Judge the change of every score of a kind that measures bias, and estimate the others'.

    Parameters
    ----------
    kind: with sums and scores.
    base, candidate: answers of this kind (`Kind.answers`) to the same items.
    rules: the level, and the scope: of several prompts, bands cover other prompts too unless it is
        `runs` or `sentences`.
    margin: the largest change that does not matter, in units of `Score.whole`.
    kinds: how many kinds of answers are compared, whose bands hold together.

    Returns `COMPARED` twice: scores with a value of no bias (`Score.unbiased`), which have verdicts
    and bands that hold for all together (Bonferroni); and the other scores, each with an interval
    of its own at the level and without a verdict.

    Raises DataError: an item, model or probe that one arm lacks, or an item that differs.
    """
    (one, other), names = matched_answers(kind, base, candidate)
    withheld = _withheld(kind, (base, candidate), names, rules)
    found = [*_changes(kind, one, other, rules)]
    judging = sum(each.score.unbiased is not None for each in found)
    rule = Rule(rules.level, 1 - (1 - rules.level) / max(1, kinds * judging), margin)
    rises = _unread_rises(kind, one, other)
    others = _table([each.row(rule) for each in found if each.score.unbiased is None])
    rows = [each.row(rule) for each in found if each.score.unbiased is not None]
    for row in rows:
        reason = withheld.get((row["model"], row["probe"], row["method"]))
        rise = rises.get(tuple(row[name] for name in _NAMES[:-1]))
        if reason:
            row.update(verdict="cannot tell", reason=reason)
        elif rise is not None:
            part, was, now = rise
            said = f"unread answers ({kind.unread_by[0]} {part})"
            row.update(hidden(row, said, was, now, margin))
    return _table(rows), others.with_columns(verdict=pl.lit(None, pl.String))


def _table(rows: list[Row]) -> pl.DataFrame:
    if not rows:
        return pl.DataFrame(schema=COMPARED)
    return conformed(pl.DataFrame(rows, infer_schema_length=None), COMPARED).fill_nan(None)


def matched_answers(
    kind: Kind, base: pl.DataFrame, candidate: pl.DataFrame
) -> tuple[list[pl.DataFrame], dict[str, str]]:
    """Hold the items of two arms to one another; return the arms and the names they have in common.

    Raises DataError: an item that one arm lacks, or about which the arms say other things.
    """
    columns = [name for name in _COMPARED if name in kind.answers.names]
    arms, names = named_alike((base, candidate), columns)
    keys = ["model", "probe", *kind.item]
    cure = f"compare {kind.name} of the same items, and choose models"
    refuse_lacking(arms[0], arms[1], keys, cure)
    facts = [name for name in kind.answers.names if name not in (*keys, *kind.answered)]
    both = arms[0].select(*keys, *facts).join(arms[1].select(*keys, *facts), on=keys)
    for fact in facts:
        values = pl.col(fact), pl.col(f"{fact}_right")
        for row in both.filter(values[0].ne_missing(values[1])).sort(keys).head(1).to_dicts():
            item = " ".join(row[name] for name in keys[1:] if row[name])
            raise DataError(
                f"{item} has the {fact} {row[fact]!r} in the base and {row[f'{fact}_right']!r} in "
                "the candidate",
                cure=f"compare {kind.name} of the same items",
            )
    return arms, names


def _withheld(
    kind: Kind, arms: Sequence[pl.DataFrame], names: dict[str, str], rules: Rules
) -> dict[tuple[str, ...], str]:
    """Say of which arm nothing is concluded, and why, by model, probe and method."""
    found: dict[tuple[str, ...], str] = {}
    for arm, answers in zip(("base", "candidate"), arms, strict=True):
        for (model, probe, method), reason in kind.refused(answers, rules).items():
            key = names.get("model", model), probe, names.get("method", method)
            found.setdefault(key, f"{arm}: {reason}")
    return found


def _unread_rises(
    kind: Kind, base: pl.DataFrame, candidate: pl.DataFrame
) -> dict[tuple[object, ...], tuple[str, float, float]]:
    """Find, by `_NAMES` but the group, the part whose unread share rose most."""
    if kind.unread is None:
        return {}
    columns = [kind.called.get(name, name) for name in _NAMES[:-1]]
    prompts = kind.called.get("style", "style")

    def with_all(arm: pl.DataFrame) -> pl.DataFrame:
        known = arm.with_columns(pl.lit("").alias(c) for c in columns if c not in arm.columns)
        if known[prompts].n_unique() < 2:
            return known
        return pl.concat([known, known.with_columns(pl.lit(ALL).alias(prompts))])

    arms = with_all(base), with_all(candidate)
    return unread_rises(arms[0], arms[1], kind.unread, columns, kind.unread_by)


@dataclass(frozen=True)
class _Change:
    """The change of one score in one place, in units of `Score.whole`."""

    names: Row
    """Values of `_NAMES`, with kind, scope and counts."""
    score: Score
    base_M: Doubles
    candidate_M: Doubles
    change: MeanEstimate
    """Of the differences [C], the candidate's functions first."""
    middle: MeanEstimate
    """Of the means [C] of both arms, less the value of no bias."""
    reason: str | None
    """Why there is no interval."""
    units: Units
    up: int
    """How many units raise the base's score if they take the candidate's answers."""
    down: int
    crossed: bool

    @property
    def value(self) -> float:
        return float(self.candidate_M.min() - self.base_M.min())

    @property
    def _bounds(self) -> Ends:
        """The least and the greatest that the change can be."""
        if self.score.bounds is None:
            return -np.inf, np.inf
        least, greatest = self.score.bounds
        base, whole = float(self.base_M.min()), self.score.whole
        return least / whole - base, min(greatest, self.score.most) / whole - base

    def _change_at(self, level: float) -> Ends:
        shape = (len(self.candidate_M), len(self.base_M))
        low, high = (end.reshape(shape) for end in self.change.interval(level))
        return float(low.max(axis=1).min()), float(high.max(axis=1).min())

    def _middle_at(self, level: float) -> Ends:
        low, high = self.middle.interval(level)
        return float(low.min()), float(high.min())

    def row(self, rule: Rule) -> Row:
        """Return the change as a row of `COMPARED`, without a verdict if the score has no bias."""
        turned = self.up + self.down
        row: Row = {
            **self.names, "score": self.score.name, "statistic": "difference", "value": self.value,
            "base": float(self.base_M.min()), "candidate": float(self.candidate_M.min()),
            "flips_up": self.up, "flips_down": self.down,
            "p_flips": float(mcnemar(self.up, self.down)) if turned else None,
        }  # fmt: skip
        if self.score.unbiased is None:
            low, high = (float(np.clip(end, *self._bounds)) for end in self._change_at(rule.level))
            return row | {"low": low, "high": high, "reason": self.reason}
        # Without a value, or how far another unit can change, nothing bounds the change.
        unknown = np.isnan([self.value, self.units.most]).any()
        if not unknown and not turned and abs(self.value) <= _SAME:
            unit = self.units.name.removesuffix("s")
            alike = {"still": f"no {unit}'s outcome changes"}
            units = replace(self.units, values_U=np.zeros_like(self.units.values_U))
            return row | still(units, rule, self._bounds) | alike
        if unknown or np.isnan(self.units.values_U).any():
            return row | {"verdict": "cannot tell", "reason": self.reason}
        # If all changed units went one way, a test that turns their signs would have this p.
        sure = 2.0 ** (1 - turned) <= 1 - rule.shared
        row |= judged(self.value, self._change_at, self._middle_at, rule=rule, bounds=self._bounds,
                      units=self.units, sure=sure)  # fmt: skip
        if row["verdict"] == "cannot tell":
            row["reason"] = self._needs(row, rule, sure)
        return row

    def _needs(self, row: Row, rule: Rule, sure: bool) -> str:
        """Say how many units changed, and what would decide."""
        name, number = self.units.name, len(self.units.values_U)
        needs = self.reason or row["reason"]
        if not needs and self.crossed:
            needs = f"more {name}, prompts or both"
        if not needs:
            active = self.candidate_M.argmin() * len(self.base_M) + self.base_M.argmin()
            ratio = float(self.change.detectable(rule.shared)[active]) / rule.margin
            needs = needed((row["low"], row["high"]), sure, number, ratio, name)
        return f"{self.up + self.down:,} of {number:,} {name} changed; {needs}"


def _changes(
    kind: Kind, base: pl.DataFrame, candidate: pl.DataFrame, rules: Rules
) -> Iterator[_Change]:
    """Yield the change of every score in every place, under each prompt and over all."""
    if kind.sums is None:
        raise DataError(
            f"answers of the kind {kind.name} cannot be compared, since it defines no sums",
            cure="measure each arm alone (`raybias measure`)",
        )
    one, other = (kind.sums(arm).partition_by(kind.by, as_dict=True) for arm in (base, candidate))
    wide = rules.scope not in ("runs", "sentences")
    for keys in sorted(one, key=lambda keys: [(key == ALL, key) for key in keys]):
        place = {**dict.fromkeys(_NAMES, ""), **dict(zip(kind.by, map(str, keys), strict=True))}
        arms = [*zip(sampled(kind, one[keys]), sampled(kind, other[keys]), strict=True)]
        several = any(of.crossed for of, _ in arms)
        for pair in arms:
            if several and pair[0].style == ALL and pair[0].crossed != wide:
                continue
            yield from _of_place(kind, pair, place)


def _of_place(kind: Kind, arms: tuple[Sampled, Sampled], place: Row) -> Iterator[_Change]:
    """Yield the change of each score in each condition that the arms have answers in."""
    totals = [of.conditions(kind, of.facets[0].sum(axis=0)) for of in arms]
    names = {**place, "kind": kind.name, "style": arms[0].style, "scope": arms[0].scope}
    for c, condition in enumerate(kind.conditions):
        if not any(array.any() for sums in totals for array in vars(sums[c]).values()):
            continue
        where = {**names, "condition": condition or place["condition"]}
        for score in kind.scores.values():
            counts = [int(getattr(sums[c], score.counts or score.weight)) for sums in totals]
            yield _change(kind, score, arms, c, {**where, "n": min(counts)})


def _change(kind: Kind, score: Score, arms: tuple[Sampled, Sampled], c: int, names: Row) -> _Change:
    """Compute the change of one score in condition `c`, and the jackknife of it."""

    def values(sums: Sequence[Sums]) -> Doubles:
        return score.values(sums, c) / score.whole

    base_M, candidate_M = (values(of.conditions(kind, of.facets[0].sum(axis=0))) for of in arms)
    facets = []
    for facet in zip(*(of.facets for of in arms), strict=True):
        without = [values(arms[0].conditions(kind, without_each(each))) for each in facet]
        weights = [getattr(arms[0].conditions(kind, each)[c], score.weight) for each in facet]
        facets.append((without, np.mean(weights, axis=0)))
    free = 0.0 if score.unbiased is None else score.unbiased / score.whole
    change, reason = jackknifed(
        _differences(base_M, candidate_M),
        [(_differences(*without), size_U) for without, size_U in facets],
    )
    middle, _ = jackknifed(
        _middles(base_M, candidate_M) - free,
        [(_middles(*without) - free, size_U) for without, size_U in facets],
    )
    units = _units(kind.units, score, (base_M, candidate_M), *facets[0])
    effects_U = _swapped(kind, arms, values) - base_M.min()
    up, down = (int((sign * effects_U > _SAME).sum()) for sign in (1, -1))
    names["units"] = len(units.values_U)
    if np.isnan([base_M.min(), candidate_M.min()]).any():
        reason = UNDEFINED
    return _Change(names, score, base_M, candidate_M, change, middle, reason, units, up, down,
                   arms[0].crossed)  # fmt: skip


def _differences(base: Doubles, candidate: Doubles) -> Doubles:
    """Subtract every function of the base [M, ...] from every one of the candidate: [C, ...]."""
    return (candidate[:, None] - base[None]).reshape(-1, *base.shape[1:])


def _middles(base: Doubles, candidate: Doubles) -> Doubles:
    """Average every function of the base [M, ...] with every one of the candidate: [C, ...]."""
    return ((candidate[:, None] + base[None]) / 2).reshape(-1, *base.shape[1:])


def _swapped(kind: Kind, arms: tuple[Sampled, Sampled], values: Values) -> Doubles:
    """Compute the base's score if one unit, and each in turn, has the candidate's sums: [U]."""
    base_UK, candidate_UK = (of.facets[0] for of in arms)
    swapped_UK = without_each(base_UK) + candidate_UK
    return np.asarray(values(arms[0].conditions(kind, swapped_UK)).min(axis=0))


def _units(
    name: str, score: Score, arms_M: Sequence[Doubles], without: Sequence[Doubles], size_U: Doubles
) -> Units:
    """Return what each unit adds to the change, by the jackknife; the mean over units is it."""
    there_U = size_U > 0
    number = int(there_U.sum())
    if not number:
        return Units(name, np.zeros(0), np.nan)
    linear = []
    for value_M, without_MU in zip(arms_M, without, strict=True):
        least = int(value_M.argmin())
        left_U = without_MU[least, there_U]
        linear.append(value_M[least] + (number - 1) * (left_U.mean() - left_U))
    if score.bounds is None:
        # Another unit can change as far as units lie from one another.
        width = float(np.ptp(np.concatenate(linear)))
    else:
        width = (score.bounds[1] - score.bounds[0]) / score.whole
    share_U = size_U[there_U] / size_U.sum()
    return Units(name, linear[1] - linear[0], width * number * float((share_U**2).sum()))
