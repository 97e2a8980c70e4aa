"""Judge how gaps change from one arm to another: worse, better, equivalent, or cannot tell.

The change of a gap is the mean, over runs and templates, of the difference between the arms, so
its interval is that of a gap (`stats.scopes`) taken of differences. What both arms share (seeds,
templates, words) cancels, and a change is known far better than either gap.

With D the change and M the middle of both gaps, |candidate| > |base| exactly where D and M have
the same sign. So a gap is `worse` where the intervals of both exclude 0 on the same side, and
`better` where they exclude it on opposite sides (an intersection-union test, Berger 1982). It is
`equivalent`, before either, where the 90% interval of D (at level 0.95) lies within the margin.
Bands of D and M hold for all gaps of a comparison at once: smallest p over the groups of an
attribute, whose gaps are dependent, and Bonferroni over attributes, rates and classifiers.

Shapes: G groups, R runs, T templates, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import polars as pl
from scipy import stats

from raybias import config, schema
from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.cells import cells
from raybias.stats.compare_arms import Matched
from raybias.stats.components import Balanced, Doubles, MeanEstimate, satterthwaite
from raybias.stats.intervals import ROUNDING
from raybias.stats.metric import shares
from raybias.stats.metric_types import Share
from raybias.stats.scopes import (
    SCOPES,
    GapTable,
    Scope,
    WordVariance,
    gap_tables,
    pooled_words,
    word_values,
)

Verdict = Literal["worse", "unread", "cannot tell", "better", "equivalent"]
#: The gravest first; of none that is grave, `better` says more than `equivalent`.
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
#: Of fewer templates or pairs nothing is shown to be equivalent: what was not seen to change in
#: a few may well change in others.
FEWEST_UNITS: Final = 30
#: Of fewer runs of an arm their variance too often comes out too small, so that bands hold less
#: often than they say (`benchmarks/compare_coverage.py`) unless the noise of cells counts twice.
_ENOUGH_RUNS: Final = 5
_DRAWS: Final = 100_000
_CROSSED: Final = ("run", "template")


@dataclass(frozen=True)
class Blend:
    """A weighted sum of the gaps of two arms: their change, or their middle."""

    parts: tuple[GapTable, ...]
    """One of sums where the arms have the same runs, else the weighted gaps of each arm."""
    words: WordVariance | None

    @cached_property
    def estimates(self) -> dict[Scope, MeanEstimate]:
        """Estimate the sums [G] under every scope that the design allows."""
        if len(self.parts) == 1:
            return self.parts[0].estimates(self.words)
        found: dict[Scope, MeanEstimate] = {}
        if min(part.values_GRT.shape[1] for part in self.parts) > 1:
            one, other = (Balanced(part.values_GRT.mean(axis=2), ("run",)).estimate()
                          for part in self.parts)  # fmt: skip
            found["runs"] = replace(one, mean=one.mean + other.mean).plus(
                other.variance, other.freedom
            )
        if self.summed_GT.shape[1] > 1:
            found["sentences"] = self._crossed(found["runs"]) if found else self.templates
            if self.words is not None:
                found["wording"] = self.words.added_to(found["sentences"], self.parts[0])
        return found

    def _crossed(self, runs: MeanEstimate) -> MeanEstimate:
        """Estimate the sums of arms with runs of their own and the same templates."""
        terms: list[tuple[Doubles, Doubles | float]] = [
            (each.variance, each.freedom) for each in (self.templates, runs)
        ]
        few = min(part.values_GRT.shape[1] for part in self.parts) < _ENOUGH_RUNS
        for part in () if few else self.parts:
            # The noise of cells is in both of the above.
            crossed = Balanced(part.values_GRT, _CROSSED)
            counts = crossed.levels.values()
            cells_G = crossed.squares[_CROSSED] / math.prod(counts)
            terms.append((-cells_G, math.prod(n - 1 for n in counts)))
        total = MeanEstimate(self.templates.mean, *satterthwaite(terms))
        # As for one table: a difference of mean squares can by chance come out too small.
        return total.at_least(runs).at_least(self.templates)

    @cached_property
    def summed_GT(self) -> Doubles:
        """Means over runs."""
        return np.asarray(sum(part.values_GRT.mean(axis=1) for part in self.parts))

    @cached_property
    def templates(self) -> MeanEstimate:
        """Estimate the sums [G] with the templates alone as drawn."""
        return Balanced(self.summed_GT, ("template",)).estimate()

    @property
    def unseen_runs(self) -> bool:
        """Whether runs differ between the arms, and one run says nothing of others."""
        return len(self.parts) > 1 and "runs" not in self.estimates

    def under(self, scope: config.Scope) -> tuple[Scope, MeanEstimate] | None:
        """Return the estimate under a scope; None where the design does not allow it."""
        known: list[Scope] = [name for name in SCOPES if name in self.estimates]
        if scope == "widest":
            return (known[-1], self.estimates[known[-1]]) if known else None
        return (scope, self.estimates[scope]) if scope in known else None

    def spread_GG(self) -> Doubles:
        """Estimate how the sums of the groups vary together over runs and over templates."""
        means = [self.summed_GT, *(part.values_GRT.mean(axis=2) for part in self.parts)]
        spread_GG = np.zeros((len(self.summed_GT),) * 2)
        for means_GX in means:
            if means_GX.shape[1] > 1:
                spread_GG += np.cov(means_GX) / means_GX.shape[1]
        return spread_GG


@dataclass(frozen=True)
class Family:
    """The change of one rate's gaps on one attribute, and their middle."""

    base: GapTable
    candidate: GapTable
    change: Blend
    middle: Blend


def families(arms: Matched, inside: pl.DataFrame, metrics: Sequence[str]) -> Iterator[Family]:
    """Yield each attribute and rate of two matched classifiers.

    Parameters
    ----------
    inside: probe, attribute, group, in_mean.
    metrics: names; those of predictions have no gaps by template and are left out.

    Raises
    ------
    DataError: a metric that counts other sentences in one arm than in the other.
    """
    one, other = (
        {(table.keys[-1], table.rate): table for table in gap_tables(cells(arm), inside, metrics)}
        for arm in (arms.base, arms.candidate)
    )
    words = {rate: _word_values(arms, share) for rate, share in shares(metrics).items()}
    for (attribute, rate), base in one.items():
        candidate = other.get((attribute, rate))
        if (
            candidate is None
            or base.groups != candidate.groups
            or base.templates != candidate.templates
        ):
            raise DataError(
                f"{rate} of {attribute} counts other sentences in one arm than in the other",
                cure="choose metrics by which a sentence counts whatever is answered",
            )
        change, middle = (
            _blend(arms, base, candidate, words[rate], weights)
            for weights in ((-1.0, 1.0), (0.5, 0.5))
        )
        yield Family(base, candidate, change, middle)


def _blend(
    arms: Matched,
    base: GapTable,
    candidate: GapTable,
    words: pl.DataFrame,
    weights: tuple[float, float],
) -> Blend:
    one, other = (
        replace(table, values_GRT=weight * table.values_GRT)
        for weight, table in zip(weights, (base, candidate), strict=True)
    )
    value = weights[0] * pl.col("value") + weights[1] * pl.col("value_right")
    variance = pooled_words(words.with_columns(value=value)).get(base.keys)
    if not arms.paired:
        return Blend((one, other), variance)
    return Blend((replace(one, values_GRT=one.values_GRT + other.values_GRT),), variance)


def _word_values(arms: Matched, share: Share) -> pl.DataFrame:
    names = pl.Schema(schema.WORD_CELLS).names()[:-1]
    values = [
        word_values(arm.filter(pl.col("term").is_not_null()).group_by(names).agg(n=pl.len()), share)
        for arm in (arms.base, arms.candidate)
    ]
    on = [*schema.KEYS, "attribute", "group", "template", "word"]
    return values[0].join(values[1].select(*on, "value"), on=on, nulls_equal=True)


def band_level(blend: Blend, level: float, *, key: Sequence[str]) -> float:
    """Compute the level of each group's interval at which all hold together with `level`.

    The p values of the groups are those of normal scores that are correlated as the groups are.

    Parameters
    ----------
    key: of the random draws.
    """
    spread_GG = blend.spread_GG()
    sd_G = np.sqrt(np.diagonal(spread_GG))
    moving_G = sd_G > ROUNDING
    if moving_G.sum() < 2:
        return level
    correlated = (spread_GG / np.outer(sd_G, sd_G).clip(ROUNDING**2))[np.ix_(moving_G, moving_G)]
    values, vectors = np.linalg.eigh(correlated)
    root_GG = vectors * np.sqrt(values.clip(0))
    scores_BG = generator("compare", *key).standard_normal((_DRAWS, len(values))) @ root_GG.T
    return float(1 - 2 * stats.norm.sf(np.quantile(np.abs(scores_BG).max(axis=1), level)))


def changes(
    found: Sequence[Family], *, scope: config.Scope, level: float, margin: float
) -> list[dict[str, object]]:
    """Judge the change of every gap, a row each.

    Parameters
    ----------
    found: all families of the comparison, over which the bands hold together.
    scope: what intervals cover, as in a study's statistics.
    margin: the largest change of a gap that does not matter.

    Returns
    -------
    Rows of the keys, attribute, group and rate; `base`, `candidate` and `change`; `low` and
    `high`, the band; `at_most`, the smallest margin within which the change would be equivalent;
    `scope`; `verdict`; and `needs`, what would tell where it cannot.
    """
    shared = 1 - (1 - level) / max(1, len(found))
    return [row for family in found for row in _rows(family, scope, level, shared, margin)]


def _rows(
    family: Family,
    scope: config.Scope,
    level: float,
    shared: float,
    margin: float,
) -> Iterator[dict[str, object]]:
    keys, rate = family.base.keys, family.base.rate
    chosen = family.change.under(scope)
    middle = None if chosen is None else family.middle.estimates.get(chosen[0])
    each = band_level(family.change, shared, key=(*keys, rate))
    same_G = np.all([np.ptp(part.values_GRT, axis=(1, 2)) <= ROUNDING
                     for part in family.change.parts], axis=0)  # fmt: skip
    gaps = [table.values_GRT.mean(axis=(1, 2)) for table in (family.base, family.candidate)]
    units = len(family.base.templates)
    few = f"{FEWEST_UNITS} templates or more, not {units}" if units < FEWEST_UNITS else ""
    for g, group in enumerate(family.base.groups):
        base, candidate = (float(gap_G[g]) for gap_G in gaps)
        change = candidate - base
        row = {
            **dict(zip((*schema.KEYS, "attribute"), keys, strict=True)),
            "group": group, "rate": rate, "base": base, "candidate": candidate,
        }  # fmt: skip
        if same_G[g] and abs(change) <= ROUNDING:
            # Not one answer that the gap rests on differs: there is nothing to estimate.
            yield {**row, "change": 0.0, "low": 0.0, "high": 0.0, "at_most": 0.0,
                   "scope": "" if chosen is None else chosen[0],
                   "verdict": "cannot tell" if few else "equivalent", "needs": few}  # fmt: skip
            continue
        if chosen is None or middle is None:
            yield {**row, "change": change, "low": None, "high": None, "at_most": None,
                   "scope": scope, "verdict": "cannot tell", "needs": "runs that vary"}  # fmt: skip
            continue
        name, estimate = chosen
        # The gap of a share lies between -1 and 1.
        low, high = (float(np.clip(end[g], -1 - base, 1 - base)) for end in estimate.interval(each))
        at_most = max(abs(float(end[g])) for end in estimate.interval(2 * level - 1))
        side = [float(end[g]) for end in middle.interval(each)]
        verdict = verdict_of((low, high), (side[0], side[1]), within=at_most <= margin and not few,
                             sure=not family.change.unseen_runs)  # fmt: skip
        needs = _needs(family, name, g, each, margin) if verdict == "cannot tell" else ""
        if verdict == "cannot tell" and at_most <= margin:
            needs = few
        yield {**row, "change": change, "low": low, "high": high, "at_most": at_most,
               "scope": name, "verdict": verdict, "needs": needs}  # fmt: skip


def verdict_of(
    change: tuple[float, float], middle: tuple[float, float], *, within: bool, sure: bool
) -> Verdict:
    """Judge a change by its band and that of the middle of both arms, which is 0 without bias.

    Parameters
    ----------
    within: whether the change is known to be smaller than the margin.
    sure: whether the bands alone may show a change for better or worse.
    """
    if within:
        return "equivalent"
    moved, side = sign(change), sign(middle)
    if not (sure and moved and side):
        return "cannot tell"
    return "worse" if moved == side else "better"


def sign(interval: tuple[float, float]) -> int:
    """Return the side of 0 that a whole interval lies on; 0 where it holds 0 or is not known."""
    return int(interval[0] > 0) - int(interval[1] < 0)


def _needs(family: Family, scope: Scope, g: int, each: float, margin: float) -> str:
    """Say how many templates, runs or words would show a change of the margin, 4 times of 5."""
    blend = family.change
    estimate = blend.estimates[scope]
    if blend.unseen_runs or not estimate.variance[g] > 0:
        runs = "two runs or more of each arm"
        return runs if blend.unseen_runs else "templates or runs in which the change differs"
    low_G, high_G = estimate.interval(each)
    if sign((float(low_G[g]), float(high_G[g]))):
        return "it moved, but whether away from 0 is not known"
    if estimate.detectable(each)[g] <= margin:
        return "it lies about the margin"
    sources = _sources(family, scope, g)
    # Few levels widen an interval by their degrees of freedom as much as by their variance.
    most = max(
        sources, key=lambda one: one.variance * stats.t.ppf((1 + each) / 2, one.freedom) ** 2
    )
    # Quantiles of the normal distribution, which Student's come down to as levels are added.
    ideal = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf)).detectable(each)[g]
    if ideal <= margin:
        return f"more {most.name} than {most.count}"
    variance = float(estimate.variance[g])
    left = variance * float(margin / ideal) ** 2 - (variance - most.variance)
    if left <= 0:
        return f"more {most.name}, and not them alone"
    return f"{math.ceil(most.count * most.variance / left):,} {most.name}, not {most.count:,}"


@dataclass(frozen=True)
class _Source:
    """A facet of a change: its levels, and the variance of the change if it alone were drawn."""

    name: str
    count: int
    variance: float
    freedom: int


def _sources(family: Family, scope: Scope, g: int) -> list[_Source]:
    blend, found = family.change, []
    runs, templates = family.candidate.values_GRT.shape[1:]
    if scope != "runs":
        variance = float(blend.templates.variance[g])
        found.append(_Source("templates", templates, variance, templates - 1))
    if "runs" in blend.estimates:
        found.append(_Source("runs", runs, float(blend.estimates["runs"].variance[g]), runs - 1))
    if scope == "wording" and blend.words is not None:
        wider, narrower = (blend.estimates[name].variance[g] for name in ("wording", "sentences"))
        count = blend.words.words.get(family.base.groups[g], 1)
        freedom = blend.words.freedom
        found.append(_Source("words a group", count, float(wider - narrower), freedom))
    return found


def overall(verdicts: Sequence[str]) -> Verdict:
    """Return the verdict on the whole: the gravest that a gap has."""
    return next((verdict for verdict in VERDICTS if verdict in verdicts), "equivalent")
