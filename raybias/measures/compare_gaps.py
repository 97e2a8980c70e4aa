"""Judge how the gaps of predictions change from one arm to another.

The change of a gap is the mean paired difference over runs and templates, with the interval of a
gap (`stats.scopes`). Bands hold for all gaps of a comparison at once: smallest p over the dependent
groups of an attribute, and Bonferroni over attributes, rates and classifiers.

Shapes: G groups, R runs, T templates, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias import config, schema
from raybias.errors import DataError
from raybias.measures.compare import (
    COMPARED,
    Row,
    Rule,
    Units,
    hidden,
    interval_at,
    judged,
    side,
    still,
    unread_rises,
)
from raybias.measures.compare_answers import (
    TEMPLATES,
    UNREAD,
    Matched,
    Unit,
    answer_flips,
    changed_answers,
    changed_events,
    described_changes,
    event_flips,
)
from raybias.measures.compare_classes import OF_EACH_CLASS
from raybias.schema import RUN_KEYS, TABLE
from raybias.seeding import generator
from raybias.stats.checks import membership
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, mean_squares
from raybias.stats.conclusive import of_predictions
from raybias.stats.counts import answers, count_cells
from raybias.stats.intervals import Rules
from raybias.stats.metric import Share, counted_by, shares
from raybias.stats.scopes import GapTable, Scope, chosen_scope, estimates_of_sum, rate_tables
from raybias.stats.word_variance import WordVariance, pooled_words, word_values
from raybias.table_files import conformed

#: Of fewer runs of an arm their variance too often comes out too small, so that bands hold less
#: often than they say (`benchmarks/coverage.py`) unless the noise of cells counts twice.
_ENOUGH_RUNS: Final = 5
_DRAWS: Final = 100_000
_OTHERS: Final = ("model", "method", "dataset", "style")
#: A row per attribute: how many answers differ.
ANSWERS: Final = pl.Schema(
    {
        **dict.fromkeys(("probe", "attribute"), pl.String()),
        "answers": pl.Int64(),
        **dict.fromkeys(("base_accuracy", "candidate_accuracy"), pl.Float64()),
        **dict.fromkeys(("base_unread", "candidate_unread"), pl.Float64()),
        **dict.fromkeys(("between", "within", "excess", "low", "high", "p_even"), pl.Float64()),
        "masked": pl.Boolean(),
        **dict.fromkeys(_OTHERS, pl.String()),
    }
)


def compare_predictions(
    arms: Sequence[Matched],
    rules: Rules,
    *,
    margin: float,
    kinds: int = 1,
    by_class: Sequence[Matched] = (),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Judge the change of every gap of matched arms, and count the answers that change.

    `by_class` are the arms of `split_classes`, if there are more than two. A change within
    `margin` does not matter. The bands share the error with those of `kinds` - 1 other kinds of
    answers. Gives `COMPARED` (`score` is the rate) and `ANSWERS`.
    There is no verdict where an arm cannot do the task (`conclusive`). A gap is `unread` where the
    rise of unread answers can hide more than the margin. Answers are `masked` where more of them
    change than between two runs of one arm, while every gap is equivalent. A metric that counts
    other sentences in one arm than in the other is a DataError.
    """
    of_class = rules.model_copy(update={"metrics": OF_EACH_CLASS})
    parts = [*((each, rules) for each in arms), *((each, of_class) for each in by_class)]
    found = [family for each, its_rules in parts for family in families(each, its_rules)]
    rows = changes(found, rules, margin=margin, kinds=kinds)
    withheld = dict(pair for each in arms for pair in _withheld(each, rules))
    rises = {
        (*each.keys, *attribute): rise
        for each in arms
        for attribute, rise in unread_rises(
            each.base, each.candidate, UNREAD, ("attribute",), ("group", "label")
        ).items()
    }
    for row in rows:
        classifier = tuple(row[key] for key in schema.KEYS)
        if classifier in withheld:
            row.update(verdict="cannot tell", reason=withheld[classifier])
        elif (*classifier, row["attribute"]) in rises:
            group, was, now = rises[*classifier, row["attribute"]]
            row.update(hidden(row, f"unread answers on {group}", was, now, margin))
    flips = pl.concat(event_flips(each, its_rules.metrics) for each, its_rules in parts)
    how: dict[str, Any] = {"how": "left", "nulls_equal": True, "maintain_order": "left"}
    gaps = pl.DataFrame(rows, COMPARED).drop("flips_up", "flips_down", "p_flips")
    gaps = conformed(gaps.join(flips, on=[*TABLE, "group", "score", "condition"], **how), COMPARED)
    if gaps["still"].count():
        gaps = gaps.with_columns(still=_described(gaps, arms, parts))
    differ = [row for each in arms for row in answer_flips(each, level=rules.level)]
    still = gaps.group_by(TABLE).agg(masked=(pl.col("verdict") == "equivalent").all())
    changed = pl.DataFrame(differ, ANSWERS).drop("masked").join(still, on=TABLE, **how)
    flipped = conformed(changed.with_columns(pl.col("masked") & (pl.col("low") > 0)), ANSWERS)
    return gaps.fill_nan(None), flipped.fill_nan(None)


def _described(
    gaps: pl.DataFrame, arms: Sequence[Matched], parts: Sequence[tuple[Matched, Rules]]
) -> pl.Series:
    """Describe the gaps that do not move, by the answers that differ all the same."""
    answers = pl.concat(map(changed_answers, arms))
    events = pl.concat(changed_events(each, its_rules.metrics) for each, its_rules in parts)
    where = [*TABLE, "score", "condition"]
    how: dict[str, Any] = {"how": "left", "nulls_equal": True, "maintain_order": "left"}
    known = gaps.join(answers, on=TABLE, **how).join(events, on=where, **how)
    columns = ("still", "answers", "differ", "of", "moved", "alike")
    texts = [
        None if still is None else described_changes(*counts)
        for still, *counts in known.select(columns).iter_rows()
    ]
    return pl.Series(texts, dtype=pl.String)


def groups_without_rows(arms: Sequence[Matched], metrics: Sequence[str]) -> list[str]:
    """Name the groups of which no row counts in a rate, such as `fpr of old (age)`."""
    by = ["attribute", "group", "condition"]
    cells = pl.concat(
        count_cells(arm).with_columns(condition=pl.lit(pair.condition))
        for pair in arms
        for arm in (pair.base, pair.candidate)
    )
    counts = counted_by(cells, by, metrics).filter(n_items=0).cast({"score": pl.String})
    rows = counts.select("score", "group", "attribute", "condition").unique().sort(pl.all())
    return [
        f"{score} of {group} ({', '.join(filter(None, (attribute, condition)))})"
        for score, group, attribute, condition in rows.iter_rows()
    ]


def _withheld(arms: Matched, rules: Rules) -> Iterator[tuple[tuple[str, ...], str]]:
    runs = {"predictions": pl.len(), "unparsed": pl.col("parsed").not_().sum(),
            "several": pl.lit(0), "negated": pl.lit(0)}  # fmt: skip
    for name, arm in (("base", arms.base), ("candidate", arms.candidate)):
        unread = answers(arm.group_by(RUN_KEYS).agg(**runs))
        for *_, reason in of_predictions(
            count_cells(arm),
            unread,
            level=rules.level,
            judged=rules.judged,
            labels=dict(enumerate(rules.names_of_classes)),
        ).iter_rows():
            yield arms.keys, f"{name}: {reason}"


@dataclass(frozen=True)
class Blend:
    """A weighted sum of the gaps of two arms: their change, or their middle."""

    parts: tuple[GapTable, ...]
    """One of sums where the arms have the same runs, else the weighted gaps of each arm."""
    words: WordVariance | None
    unit: Unit = TEMPLATES

    @cached_property
    def estimates(self) -> dict[Scope, MeanEstimate]:
        """Estimate the sums [G] under every scope that the design allows."""
        if len(self.parts) == 1:
            return self.parts[0].estimates(self.words)
        values = [part.values_GRT for part in self.parts]
        fewest = min(each.shape[1] for each in values)
        if fewest == 1:
            values = [each.mean(axis=1, keepdims=True) for each in values]
        found = estimates_of_sum(values, noise=fewest >= _ENOUGH_RUNS)
        if self.words is not None and "sentences" in found:
            found["wording"] = self.words.added_to(found["sentences"], self.parts[0])
        return found

    @cached_property
    def summed_GT(self) -> Doubles:
        """Means over runs."""
        return np.asarray(sum(part.values_GRT.mean(axis=1) for part in self.parts))

    def units(self, g: int) -> Units:
        """Return what templates, or what the data have instead, add to the sum of a group."""
        most_G = self.parts[0].most_G
        most = 1.0 if most_G is None else float(most_G[g])
        return Units(self.unit.name, self.summed_GT[g], most, self.unit.size)

    @property
    def unseen_runs(self) -> bool:
        """Whether runs differ between the arms, and one run says nothing of others."""
        return len(self.parts) > 1 and "runs" not in self.estimates

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


def families(arms: Matched, rules: Rules) -> Iterator[Family]:
    """Yield each attribute and rate with gaps by template of two matched classifiers."""
    metrics = rules.metrics
    inside = membership(arms.base, rules.groups_of)
    one, other = (
        {
            (rates.keys[-1], rates.score): rates.less_mean()
            for rates in (
                replace(each, condition=arms.condition)
                for each in rate_tables(count_cells(arm), inside, metrics)
            )
        }
        for arm in (arms.base, arms.candidate)
    )
    words = {rate: _word_values(arms, share) for rate, share in shares(metrics).items()}
    for (attribute, rate), base in one.items():
        candidate = other.get((attribute, rate))
        sentences = (base.groups, base.templates)
        if candidate is None or (candidate.groups, candidate.templates) != sentences:
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
    arms: Matched, base: GapTable, candidate: GapTable, words: pl.DataFrame,
    weights: tuple[float, float],
) -> Blend:  # fmt: skip
    one, other = weights[0] * base.values_GRT, weights[1] * candidate.values_GRT
    value = weights[0] * pl.col("value") + weights[1] * pl.col("value_right")
    variance = pooled_words(words.with_columns(value=value)).get(base.keys)
    parts = (one + other,) if arms.paired else (one, other)
    # Items of two arms are pairs, also where no template makes pairs of the items of groups.
    tables = (replace(base, values_GRT=part, apart=None, events=None) for part in parts)
    return Blend(tuple(tables), variance, arms.unit)


def _word_values(arms: Matched, share: Share) -> pl.DataFrame:
    names = schema.WORD_CELLS.names[:-1]
    one, other = (
        word_values(arm.filter(pl.col("term").is_not_null()).group_by(names).agg(n=pl.len()), share)
        for arm in (arms.base, arms.candidate)
    )
    on = [*TABLE, "group", "template", "word"]
    return one.join(other.select(*on, "value"), on=on, nulls_equal=True)


def band_level(blend: Blend, level: float, *, key: Sequence[str]) -> float:
    """Compute the level of each group's interval at which all, which correlate, hold together."""
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
    found: Sequence[Family], options: config.Statistics, *, margin: float, kinds: int = 1
) -> list[Row]:
    """Judge every gap's change: rows of `COMPARED`, without flips; bands hold for all families."""
    shared = 1 - (1 - options.level) / max(1, kinds * len(found))
    return [row for family in found for row in _rows(family, options, shared, margin)]


def _rows(
    family: Family, options: config.Statistics, shared: float, margin: float
) -> Iterator[Row]:
    keys, rate = family.base.keys, family.base.score
    chosen = chosen_scope(family.change.estimates, options.scope)
    found, middle = (part.estimates.get(chosen) if chosen else None
                     for part in (family.change, family.middle))  # fmt: skip
    each = band_level(family.change, shared, key=(*keys, rate))
    same_G = np.all([np.ptp(part.values_GRT, axis=(1, 2)) <= ROUNDING
                     for part in family.change.parts], axis=0)  # fmt: skip
    gaps = [table.values_GRT.mean(axis=(1, 2)) for table in (family.base, family.candidate)]
    rule = Rule(options.level, each, margin)
    for g, group in enumerate(family.base.groups):
        base, candidate = (float(gap_G[g]) for gap_G in gaps)
        change = candidate - base
        row: Row = {
            **family.base.names, "kind": "predictions", "statistic": "difference", "group": group,
            "base": base, "candidate": candidate, "scope": chosen or "",
        }  # fmt: skip
        # The gap of a share lies between -1 and 1.
        bounds = (-1 - base, 1 - base)
        units = family.change.units(g)
        if same_G[g] and abs(change) <= ROUNDING:
            # `compare_predictions` writes which answers differ all the same.
            yield row | still(units, rule, bounds) | {"still": ""}
            continue
        if chosen is None or found is None or middle is None:
            yield row | {"value": change, "scope": options.scope, "verdict": "cannot tell",
                         "reason": "runs that vary"}  # fmt: skip
            continue
        row |= judged(change, interval_at(found, g), interval_at(middle, g), rule=rule,
                      bounds=bounds, units=units, sure=not family.change.unseen_runs)  # fmt: skip
        if row["verdict"] == "cannot tell" and not row["reason"]:
            row["reason"] = _needs(family, chosen, g, each, margin)
        yield row


def _needs(family: Family, scope: Scope, g: int, each: float, margin: float) -> str:
    """Say how many units, runs or words would show a change of the margin with 80% power."""
    blend = family.change
    estimate = blend.estimates[scope]
    if blend.unseen_runs or not estimate.variance[g] > 0:
        runs = "two runs or more of each arm"
        more = f"{blend.unit.name} or runs in which the change differs"
        return runs if blend.unseen_runs else more
    low_G, high_G = estimate.interval(each)
    if side((low_G[g], high_G[g])):
        return "it moved, but whether away from 0 is not known"
    if estimate.detectable(each)[g] <= margin:
        return "it lies about the margin"
    # Each facet: its name, its levels, the variance of the change if it alone were drawn, freedom.
    runs, templates = family.candidate.values_GRT.shape[1:]
    facets = []
    if scope != "runs":
        of_templates = mean_squares(blend.summed_GT, ("template",)).estimate().variance[g]
        count = round(templates * blend.unit.size)
        facets.append((blend.unit.name, count, of_templates, templates - 1))
    if "runs" in blend.estimates:
        facets.append(("runs", runs, blend.estimates["runs"].variance[g], runs - 1))
    if scope == "wording" and blend.words is not None:
        wider, narrower = (blend.estimates[name].variance[g] for name in ("wording", "sentences"))
        count = blend.words.words.get(family.base.groups[g], 1)
        facets.append(("words a group", count, wider - narrower, blend.words.freedom))
    # Few levels widen an interval by their degrees of freedom as much as by their variance.
    name, count, part, _ = max(
        facets, key=lambda facet: facet[2] * stats.t.ppf((1 + each) / 2, facet[3]) ** 2
    )
    # Quantiles of the normal distribution, which Student's come down to as levels are added.
    ideal = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf)).detectable(each)[g]
    if ideal <= margin:
        return f"more {name} than {count}"
    variance = estimate.variance[g]
    left = variance * (margin / ideal) ** 2 - (variance - part)
    if left <= 0:
        return f"more {name}, and not them alone"
    return f"{math.ceil(count * part / left):,} {name}, not {count:,}"
