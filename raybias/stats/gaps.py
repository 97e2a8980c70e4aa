"""Gaps: a group's rate minus the unweighted mean over reference groups in the same run.

Their mean over runs is judged by an interval that covers other seeds alone, other sentences too, or
other words for the groups too (`stats.scopes`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.schema import RUN_KEYS
from raybias.stats import sentiment
from raybias.stats.bootstrap import DrawnScope, Resampled, resampled
from raybias.stats.breakdown import NO_WORDS, by_term, markedness
from raybias.stats.checks import (
    StatisticsWarning,
    check_reference_groups,
    membership,
    sole_references,
    warn,
)
from raybias.stats.components import ROUNDING
from raybias.stats.conclusive import of_predictions
from raybias.stats.counts import Counts, without_extras
from raybias.stats.design import variance_rows
from raybias.stats.engines import engine_variances, turned
from raybias.stats.intervals import (
    NO_ROWS,
    REFERENCE,
    Rules,
    judged,
    over_runs,
    reasons_of,
    unrounded,
)
from raybias.stats.metric import metric_rates, mirrored_rates, shares
from raybias.stats.scopes import PLACE, SCOPES, GapTable, every_scope, one_scope, rate_tables
from raybias.stats.word_variance import WordVariance, word_variances

#: What names a gap.
GAP_KEYS: Final = (*schema.KEYS, "attribute", "group", "score")
#: The condition of the gap of a group that is not in the mean.
OUTSIDE: Final = "not in the mean"
#: Begins the reason of a gap that is 0 on every template.
SAME: Final = "no template differs"
#: Begins the reason of a gap that is smaller than a margin.
SMALLER: Final = "smaller than the margin of "
#: The unit that is resampled instead of templates, where several were written from one opening.
FAMILIES: Final = "families"
#: Why a gap has no verdict under a scope that was asked for.
_NOT_DRAWN: Final = {
    "sentences": "templates not known, or one",
    "wording": NO_WORDS,
}
#: Most groups that a warning names.
_NAMED: Final = 5
_ORDER: Final = ("model", "attribute", "score", "group", *schema.KEYS[1:])


def gap_analysis(counts: Counts, rules: Rules) -> GapAnalysis:
    """Prepare the gaps of all probes; reference groups that cells lack are a ConfigError."""
    cells = counts.cells
    there = {*cells["attribute"].unique().cast(pl.String)}
    check_reference_groups(cells, {a: g for a, g in rules.everywhere.items() if a not in there})
    withheld = of_predictions(
        cells,
        counts.answers,
        level=rules.level,
        judged=rules.judged,
        unanswered=counts.unanswered,
        labels=_names_of_classes(counts, rules),
    )
    return GapAnalysis(counts, rules, withheld)


def _names_of_classes(counts: Counts, rules: Rules) -> Mapping[int, str]:
    """Return the names of classes by the numbers that cells have: a study's, or those of files."""
    if rules.labels == sentiment.NAMES:
        return counts.labels
    return dict(enumerate(rules.names_of_classes))


@dataclass(frozen=True)
class GapAnalysis:
    """The gaps of all classifiers, judged by one set of rules; each part is computed once."""

    counts: Counts
    rules: Rules
    withheld: pl.DataFrame | None = None
    """Of `conclusive`: classifiers that have gaps and intervals, but no verdict. By the papers' own
    rule only those whose answers cannot be read have none."""

    @cached_property
    def estimates(self) -> pl.DataFrame:
        """Judge the gaps under every scope, and under the rules' where there is no interval."""
        gaps, margin = self.gaps, self.rules.margin
        drawn, place = gaps.filter(interval="bootstrap"), [*GAP_KEYS, "scope"]
        # No words are drawn: what is drawn instead has no wider scope.
        wider = drawn.with_columns(scope=pl.lit(SCOPES[-1]))
        kept = self.scopes.join(pl.concat([drawn, wider]), on=place, how="anti", nulls_equal=True)
        rest = gaps.join(kept, on=place, how="anti", nulls_equal=True)
        whole = pl.concat([kept, rest.select(kept.columns)]).with_columns(
            statistic=pl.lit("gap"), condition=pl.when(~pl.col("in_mean")).then(pl.lit(OUTSIDE))
        )
        if margin is None:
            return whole
        smaller = pl.when(pl.col("equivalent")).then(pl.lit(f"{SMALLER}{margin:g}"))
        return whole.with_columns(reason=pl.coalesce("reason", smaller))

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """Judge the gaps under the rules' scope, a row each: columns of schema.ESTIMATES.

        A group whose rate is undefined in a run (FP + TN = 0) has no gap there and leaves that
        run's mean. A gap over one run, or the same in every run, has no verdict under `runs`; nor
        has that of a group which alone is its attribute's mean, or a rate that mirrors another
        (except by the papers' rule: normal, no correction). `n` is FP + TN of a run (the fewest),
        `q` Benjamini-Hochberg's within attribute, rate and scope, as in `scopes`. Beside them:
        `rate` (the group's own), `sd` over runs (ddof 1), `in_mean`, `equivalent` and `interval`.
        """
        rules = self.rules
        kind = "normal" if rules.interval == "normal" else "t"
        found = one_scope(self._unjudged, rules.scope).with_columns(interval=pl.lit(kind))
        if rules.interval == "bootstrap":
            found = self._bootstrapped(found)
        alone = sole_references(self.inside)
        own = found.join(alone, on=alone.columns, how="anti", nulls_equal=True)
        same = own.filter(pl.col("units") > 1, pl.col("sd") <= ROUNDING, scope="runs").height
        if same:
            verdict = "nor does its verdict" if kind == "normal" else "so they have no verdict"
            warn(
                f"{same} of {own['value'].count()} gaps are the same in every run: identical runs "
                "were given, or the classifier reads these sentences alike in each; an interval "
                f"over runs says nothing of them, {verdict}"
            )
        how: dict[str, Any] = {"on": [*GAP_KEYS, "scope"], "nulls_equal": True}
        tested = self.scopes.with_columns(interval=pl.lit(kind))
        tested = tested.join(found.filter(interval=kind), how="semi", **how)
        rest = self._judged(found.join(tested, how="anti", **how))
        return pl.concat([tested, rest.select(tested.columns)]).sort(_ORDER)

    @cached_property
    def scopes(self) -> pl.DataFrame:
        """Judge the gaps under every scope of the design, each with a correction of its own."""
        known = self._unjudged.filter(pl.col("low").is_not_null())
        parts = [self._judged(known.filter(scope=scope)) for scope in SCOPES]
        return pl.concat(parts).sort(_ORDER, maintain_order=True)

    @cached_property
    def components(self) -> pl.DataFrame:
        """Take the variance of every gap apart: schema.COMPONENTS."""
        apart = variance_rows(self.tables, self.word_variances)
        return pl.concat([apart, engine_variances(self.tables, self.rules.engines)])

    @cached_property
    def turned(self) -> pl.DataFrame:
        """Count the gaps that turn with the engine: schema.ENGINES."""
        return turned(self.gaps, self.components, self.rules.engines)

    @cached_property
    def of_terms(self) -> pl.DataFrame:
        """Judge the gap of every term: as `breakdown.by_term`."""
        return by_term(self.counts.terms, self.rates, self.inside, self.rules, self.excluded)

    @cached_property
    def marked(self) -> pl.DataFrame:
        """Judge what naming a group does: as `breakdown.markedness`."""
        cells, words = self.counts.cells, self.word_variances
        return markedness(cells, self.inside, words, self.rules, self.excluded)

    @cached_property
    def drawn(self) -> Resampled:
        """Draw runs, or runs and templates, anew."""
        scope: DrawnScope = "runs" if self.rules.scope == "runs" else "sentences"
        return resampled(self._known, self.inside, self.rules, scope=scope,
                         engines=self.rules.engines)  # fmt: skip

    @cached_property
    def inside(self) -> pl.DataFrame:
        """Which groups are in the mean: probe, attribute, group, in_mean."""
        return membership(self.rates, self.rules.groups_of)

    @cached_property
    def excluded(self) -> list[pl.DataFrame]:
        """What has no verdict whatever the group: keys, score, and the `reason`."""
        by_papers = self._by_papers
        twice = mirrored_rates(self._known, self.rates, self.rules.metrics, by_papers=by_papers)
        return [*self.unable, *([] if by_papers else [twice])]

    @cached_property
    def unable(self) -> list[pl.DataFrame]:
        """Classifiers of which nothing is judged: keys and the `reason`."""
        if self.withheld is None:
            return []
        unread = pl.col("reason").str.contains("name no ", literal=True)
        return [self.withheld.filter(unread) if self._by_papers else self.withheld]

    @property
    def _by_papers(self) -> bool:
        return (self.rules.interval, self.rules.adjust) == ("normal", "none")

    @cached_property
    def tables(self) -> list[GapTable]:
        """Every gap of every classifier on every attribute, taken apart by run and template."""
        return [table.less_mean() for table in self.rate_tables]

    @cached_property
    def same_everywhere(self) -> pl.DataFrame:
        """Gaps that are 0 on every template: what names them, and the `reason`.

        Nothing varies, so there is no interval. At the rules' level no more than
        1 - (1 - level)^(1 / T) of all templates would differ, if none of T does.
        """
        rows: list[dict[str, Any]] = []
        for table in self.tables:
            templates = len(table.templates)
            if templates < 2 or table.apart is not None:
                continue
            most = 1 - (1 - self.rules.level) ** (1 / templates)
            reason = f"{SAME} ({templates} read: at most {most:.1%} of others would)"
            same_G = ~table.values_GRT.any(axis=(1, 2))
            for group in np.array(table.groups)[same_G].tolist():
                rows.append({**table.names, "group": group, "reason": reason})
        return pl.DataFrame(rows, dict.fromkeys((*PLACE, "reason"), pl.String))

    @cached_property
    def judgeable(self) -> list[GapTable]:
        """The tables of what can have a verdict."""
        names = pl.DataFrame([table.names for table in self.tables])
        reasons = [reasons_of(names, frame) for frame in self.excluded] if self.tables else []
        return [table for table, *why in zip(self.tables, *reasons, strict=True) if not any(why)]

    @cached_property
    def rate_tables(self) -> list[GapTable]:
        """Every rate, taken apart likewise."""
        return list(rate_tables(self._known, self.inside, self.rules.metrics))

    @cached_property
    def word_variances(self) -> dict[tuple[str, ...], WordVariance]:
        """How much words for one group differ, by the keys, attribute and score."""
        return word_variances(without_extras(self.counts.words), self.rules.metrics)

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Every metric by run and group: as `metric.metric_rates`."""
        values = without_extras(self.counts.values)
        return metric_rates(self._known, self.rules.metrics, values)

    @cached_property
    def _known(self) -> pl.DataFrame:
        # Categories are numbered once for all groupings. The extra groups of schema.EXTRA_GROUPS
        # have other templates and no gap: see `markedness`.
        known = without_extras(self.counts.cells).cast({pl.String: pl.Categorical})
        if known["pred"].null_count():
            unread = known.filter(pl.col("pred").is_null())["n"].sum()
            warn(
                f"{unread} of {known['n'].sum()} answers hold no label; they count as wrong, and "
                "never as a false positive"
            )
        return known

    @cached_property
    def _unjudged(self) -> pl.DataFrame:
        """The gaps under every scope; beyond `runs`, those that have an interval."""
        over = over_runs(
            _per_run(self.rates, self.inside),
            PLACE,
            pl.col("rate").mean(),
            n=pl.col("n_items").filter(pl.col("value").is_not_null()).min().fill_null(0),
            in_mean=pl.col("in_mean").first(),
        )
        found = every_scope(over, self.tables, self.word_variances, self.rules)
        known = found.filter((pl.col("scope") == "runs") | pl.col("low").is_not_null())
        return self._possible(known)

    def _possible(self, gaps: pl.DataFrame) -> pl.DataFrame:
        """Cut the ends of gaps of shares at what a gap can be.

        That is 1 - 1/G of a group in the mean of G groups, which it is a part of, and 1 of another.
        """
        members = self.inside.group_by("probe", "attribute").agg(members=pl.col("in_mean").sum())
        most = pl.when("in_mean").then(1 - 1 / pl.col("members")).otherwise(1.0)
        of_share = pl.col("score").is_in([*shares(self.rules.metrics)])
        placed = gaps.join(members, on=["probe", "attribute"], how="left", maintain_order="left")
        ends = [
            pl.when(of_share).then(pl.col(end).clip(-most, most)).otherwise(end).alias(end)
            for end in ("low", "high")
        ]
        return placed.with_columns(ends).drop("members")

    def _bootstrapped(self, found: pl.DataFrame) -> pl.DataFrame:
        """Put drawn intervals in the place of the others, where the metric has counts to draw."""
        if not shares(self.rules.metrics):
            return found
        drawn = self.drawn.gaps
        concerned = pl.col("score").is_in(drawn["score"].unique().to_list())
        place = found.filter(concerned).drop("low", "high", "p")
        anew = place.join(drawn, on=GAP_KEYS, how="left", nulls_equal=True).with_columns(
            interval=pl.lit("bootstrap"), scope=pl.lit(self.drawn.scope),
            mde=pl.lit(None, pl.Float64), equivalent=pl.lit(None, pl.Boolean),
        )  # fmt: skip
        return pl.concat([found.filter(~concerned), anew.select(found.columns)])

    def _judged(self, table: pl.DataFrame) -> pl.DataFrame:
        beyond = table.filter(pl.col("low").is_null(), pl.col("scope") != "runs")
        reasons = beyond.select(
            *GAP_KEYS, reason=pl.col("scope").replace_strict(_NOT_DRAWN, default=None)
        )
        references = sole_references(self.inside).with_columns(reason=pl.lit(REFERENCE))
        excluded = [*self.excluded, references, self.same_everywhere, reasons]
        known = judged(table, self.rules, excluded)
        no_rows = pl.when(pl.col("rate").is_null()).then(pl.lit(NO_ROWS))
        return known.with_columns(reason=pl.coalesce(no_rows, "reason"))


def by_family(counts: Counts, rules: Rules) -> pl.DataFrame:
    """Judge the gaps where families of templates are resampled; without rows if none is known.

    A family's templates, which were written from one opening, are summed up (cluster-robust); a
    template without one is a family of its own. Probes without families are left out.
    """
    if counts.families.is_empty():
        return pl.DataFrame(schema=dict.fromkeys((*GAP_KEYS, "scope"), pl.String))
    place = ["probe", "attribute"]
    cells, words = (
        frame.cast({pl.Categorical: pl.String})
        .join(counts.families, on=place, how="semi", maintain_order="left")
        .join(counts.families, on=[*place, "template_id"], how="left", maintain_order="left")
        .with_columns(template_id=pl.coalesce("family", "template_id"))
        .group_by(pl.exclude("n", "family"), maintain_order=True)
        .agg(pl.col("n").sum())
        for frame in (counts.cells, counts.words)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        scopes = gap_analysis(replace(counts, cells=cells, words=words), rules).scopes
    named = {"sentences": FAMILIES, "wording": f"{FAMILIES}, words"}
    return scopes.filter(pl.col("scope") != "runs").with_columns(
        statistic=pl.lit("gap"), scope=pl.col("scope").replace(named)
    )


def _per_run(rates: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    """Subtract each run's mean over the reference groups: `value` is the gap, `rate` the rate."""
    table = rates.join(inside, on=["probe", "attribute", "group"], how="left")
    lacking = table.filter(pl.col("value").is_null()).group_by(GAP_KEYS).agg(runs=pl.len())
    by = [*schema.KEYS, "attribute", "score", "runs"]
    named = lacking.sort(GAP_KEYS).group_by(by, maintain_order=True).agg("group")
    for row in named.iter_rows(named=True):
        several = len(row["group"]) > 1
        more = f" and {len(row['group']) - _NAMED} more" if len(row["group"]) > _NAMED else ""
        warn(
            f"{row['score']} of {row['attribute']} {', '.join(row['group'][:_NAMED])}{more} "
            f"{'are' if several else 'is'} undefined in {row['runs']} run(s) of {row['model']} "
            f"(none of {'their' if several else 'its'} items counts); "
            f"{'these groups leave' if several else 'the group leaves'} the mean"
        )
    mean = pl.col("value").filter("in_mean").mean().over(*RUN_KEYS, "attribute", "score")
    return table.with_columns(
        value=unrounded(pl.col("value") - mean), rate="value", condition=pl.lit("")
    )
