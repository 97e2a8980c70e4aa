"""Gaps: a group's rate minus the unweighted mean over reference groups in the same run.

Their mean over runs is judged by an interval that covers what its scope counts as drawn anew
(`stats.scopes`): other seeds alone, other sentences too, other words for the groups too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Interval, Scope, Statistics
from raybias.errors import WorkFailed
from raybias.stats.bootstrap import DrawnScope, Resampled, resampled
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.components import MeanEstimate
from raybias.stats.intervals import (
    REFERENCE,
    ROUNDING,
    Adjust,
    over_runs,
    parametric,
    unrounded,
    verdicts,
    without_verdict,
)
from raybias.stats.metric import DEFAULT, shares
from raybias.stats.mirrors import mirrored_rates, warn_mirrored
from raybias.stats.rates import rates as metric_rates
from raybias.stats.reference_groups import (
    StatisticsWarning,
    check_reference_groups,
    membership,
    sole_references,
)
from raybias.stats.scopes import (
    ESTIMATES,
    SCOPES,
    GapTable,
    WordVariance,
    estimate_columns,
    rate_tables,
    scope_rows,
    under_scope,
    variance_rows,
    word_variances,
)

#: What names a gap.
GAP_KEYS: Final = (*schema.KEYS, "attribute", "group", "rate")
#: Why a gap has no verdict under a scope that was asked for.
_NOT_DRAWN: Final = {
    "sentences": "templates not known, or one",
    "wording": "no group with two known words",
}
_ORDER: Final = ("model", "attribute", "rate", "group", *schema.KEYS[1:])


def gaps(
    cells: pl.DataFrame,
    *,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    words: pl.DataFrame | None = None,
    scope: Scope = "runs",
    interval: Interval = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    margin: float | None = None,
    draws: int = 10_000,
    seed: int = 0,
    withheld: pl.DataFrame | None = None,
    metrics: Sequence[str] = DEFAULT,
    values: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compute the gap of every metric and group, its interval and whether it is significant.

    Parameters
    ----------
    reference_groups: groups of the mean by attribute; the papers' by default
        (`REFERENCE_GROUPS`), all groups for other attributes.
    scope, interval, level, adjust, margin, draws, seed, metrics: as in `config.Statistics`.
    cells, words, withheld, values: as in `GapAnalysis`.

    Returns
    -------
    As `GapAnalysis.gaps`.

    Raises
    ------
    ConfigError: reference groups that are not in the data.
    DataError: a bootstrap over predictions without template ids.
    WorkFailed: gaps over the reference groups that do not add to 0.

    Warns
    -----
    StatisticsWarning: answers without a label, undefined rates, gaps that do not vary over runs,
    rates that are one number twice, or a probe without some of the papers' groups.
    """
    chosen = {name: tuple(groups) for name, groups in (reference_groups or {}).items()}
    known = without_extras(cells)
    check_reference_groups(known, {a: g for a, g in chosen.items() if a not in known["attribute"]})
    rules = Statistics(
        scope=scope, interval=interval, level=level, adjust=adjust, margin=margin,
        bootstrap_draws=draws, bootstrap_seed=seed, metrics=tuple(metrics),
    )  # fmt: skip
    analysis = GapAnalysis(
        cells, rules, lambda _, attribute: chosen.get(attribute), words=words, withheld=withheld,
        values=values,
    )  # fmt: skip
    return analysis.gaps


@dataclass(frozen=True)
class GapAnalysis:
    """The gaps of all classifiers, judged by one set of rules; each part is computed once."""

    cells: pl.DataFrame
    """schema.CELLS."""
    rules: Statistics
    reference: Callable[[str, str], Sequence[str] | None]
    """Chosen reference groups of a probe's attribute; None where the papers' list decides."""
    words: pl.DataFrame | None = None
    """schema.WORD_CELLS; without it nothing is judged under `wording`."""
    withheld: pl.DataFrame | None = None
    """Of `conclusive`: classifiers that have gaps and intervals, but no verdict. By the papers' own
    rule only those whose answers cannot be read have none, so that it stays as published."""
    values: pl.DataFrame | None = None
    """Of `run_values`: metrics of predictions, which have no cells to draw templates from."""
    _known: pl.DataFrame = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Categories are numbered once for all the groupings below. The extra groups of
        # schema.EXTRA_GROUPS have other templates and no gap: see `markedness`.
        known = without_extras(self.cells).cast({pl.String: pl.Categorical})
        object.__setattr__(self, "_known", known)
        _warn_unread(known)

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """Judge the gaps under the rules' scope.

        A group whose rate is undefined in a run (FP + TN = 0) has no gap there and leaves that
        run's mean. A gap over one run, or the same in every run, has no verdict under `runs`;
        that of a group which alone is its attribute's mean has none, since it is always 0.
        Where the two rates of a classifier are one number twice (`mirrors`), the second has no
        verdict, except by the papers' own rule (normal, no correction), which stays as published.

        Returns
        -------
        schema.GAPS, sorted by model, attribute, rate and group. `n_items` is FP + TN of a run
        (the fewest, where runs differ), `sd` has ddof 1, `p_value` is two-sided and belongs to
        the interval, `q_value` is Benjamini-Hochberg's over the whole table. A gap is
        `significant` when its interval excludes 0; `no_verdict` says why it is null.
        """
        rules = self.rules
        kind = "normal" if rules.interval == "normal" else "t"
        least = "runs" if rules.scope == "widest" else rules.scope
        wide = self._under_runs.clear() if rules.scope == "runs" else self._under_wide
        found = under_scope(self._under_runs, wide, rules.scope, GAP_KEYS)
        judged = self._over_runs.join(
            found.drop("gap"), on=GAP_KEYS, how="left", nulls_equal=True
        ).with_columns(pl.col("scope").fill_null(least), interval=pl.lit(kind))
        if rules.interval == "bootstrap":
            judged = self._bootstrapped(judged)
        alone = sole_references(self.inside)
        own = judged.join(alone, on=alone.columns, how="anti", nulls_equal=True)
        _warn_unvaried(own.filter(scope="runs"), kind, own["gap"].count())
        return (
            self._judged(judged)
            .with_columns(half_width=(pl.col("high") - pl.col("low")) / 2)
            .sort(_ORDER)
            .select(pl.col(name).cast(dtype) for name, dtype in pl.Schema(schema.GAPS).items())
        )

    @cached_property
    def scopes(self) -> pl.DataFrame:
        """Judge the gaps under every scope that the design allows: schema.SCOPES.

        Each scope has its own correction for many tests.
        """
        found = pl.concat([self._under_runs, self._under_wide])
        known = found.filter(pl.col("low").is_not_null())
        runs = self._over_runs.select(*GAP_KEYS, "n_runs")
        table = known.join(runs, on=GAP_KEYS, nulls_equal=True, maintain_order="left")
        parts = [self._judged(table.filter(scope=scope)) for scope in SCOPES]
        types = pl.Schema(schema.SCOPES)
        ordered = pl.concat(parts).sort(_ORDER, maintain_order=True)
        return ordered.select(types.names()).cast(types)

    @cached_property
    def components(self) -> pl.DataFrame:
        """Take the variance of every gap apart: schema.COMPONENTS."""
        return variance_rows(self.tables, self.word_variances)

    @cached_property
    def drawn(self) -> Resampled:
        """Draw runs, or runs and templates, anew."""
        rules = self.rules
        return resampled(
            self._known,
            self.inside,
            metrics=rules.metrics,
            level=rules.level,
            draws=rules.bootstrap_draws,
            seed=rules.bootstrap_seed,
            scope=self.drawn_scope,
        )

    @property
    def drawn_scope(self) -> DrawnScope:
        """What `drawn` draws anew."""
        return "runs" if self.rules.scope == "runs" else "sentences"

    @cached_property
    def inside(self) -> pl.DataFrame:
        """Which groups are in the mean: probe, attribute, group, in_mean."""
        groups = self.rates.select("probe", "attribute", "group").unique()
        return membership(groups, self.reference)

    @cached_property
    def excluded(self) -> list[pl.DataFrame]:
        """What has no verdict whatever the group: keys, rate, and the reason as `no_verdict`."""
        withheld = [] if self.withheld is None else [self.withheld]
        twice = self._twice.drop("mirrors")
        if self._by_papers:
            unread = pl.col("no_verdict").str.contains("name no ", literal=True)
            return [frame.filter(unread) for frame in withheld]
        return [*withheld, twice]

    @cached_property
    def tables(self) -> list[GapTable]:
        """Every gap of every classifier on every attribute, taken apart by run and template."""
        return [table.less_mean() for table in self.rate_tables]

    @cached_property
    def rate_tables(self) -> list[GapTable]:
        """Every rate, taken apart likewise."""
        return list(rate_tables(self._known, self.inside, self.rules.metrics))

    @cached_property
    def word_variances(self) -> dict[tuple[str, ...], WordVariance]:
        """How much words for one group differ, by the keys, attribute and rate."""
        if self.words is None:
            return {}
        return word_variances(without_extras(self.words), self.rules.metrics)

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Every metric by run and group: as `stats.rates`."""
        values = None if self.values is None else without_extras(self.values)
        return metric_rates(self._known, self.rules.metrics, values)

    @cached_property
    def _over_runs(self) -> pl.DataFrame:
        return over_runs(
            _per_run(self.rates, self.inside),
            GAP_KEYS,
            pl.col("value").mean().alias("mean_rate"),
            pl.col("n_items").filter(pl.col("gap").is_not_null()).min().fill_null(0),
            pl.col("in_mean").first(),
            value="gap",
        )

    @cached_property
    def _twice(self) -> pl.DataFrame:
        found = mirrored_rates(self._known, self.rates, self.rules.metrics)
        counted = "counted twice by the papers' rule" if self._by_papers else "and is counted once"
        warn_mirrored(found, counted=counted)
        return found

    @property
    def _by_papers(self) -> bool:
        return (self.rules.interval, self.rules.adjust) == ("normal", "none")

    @cached_property
    def _under_runs(self) -> pl.DataFrame:
        """The gaps under `runs`, without a verdict: ESTIMATES; `low` is null where none is."""
        rules = self.rules
        normal = rules.interval == "normal"
        kind = "normal" if normal else "t"
        table = parametric(self._over_runs, value="gap", interval=kind, level=rules.level)
        n, sd, mean = (
            table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
            for name in ("n_runs", "sd", "gap")
        )
        found = estimate_columns(
            MeanEstimate(mean, sd**2 / n, np.maximum(n - 1, 1)),
            level=rules.level,
            margin=rules.margin,
            normal=normal,
        )
        judged = pl.col("low").is_not_null()
        more = {
            name: pl.when(judged).then(pl.Series(found[name]))
            for name in ("mde", "equivalent")
            if name in found
        }
        table = table.with_columns(scope=pl.lit("runs"), equivalent=pl.lit(None, pl.Boolean))
        return table.with_columns(**more).select(ESTIMATES.names()).cast(ESTIMATES)

    @cached_property
    def _under_wide(self) -> pl.DataFrame:
        """The gaps under the scopes beyond `runs` that the design allows: ESTIMATES."""
        rules = self.rules
        rows = scope_rows(
            self.tables,
            self.word_variances,
            level=rules.level,
            margin=rules.margin,
            normal=rules.interval == "normal",
        )
        return rows.filter(pl.col("scope") != "runs", pl.col("low").is_not_null())

    def _bootstrapped(self, judged: pl.DataFrame) -> pl.DataFrame:
        """Put drawn intervals in the place of the others, where the metric has counts to draw."""
        rules = self.rules
        if not shares(rules.metrics):
            return judged
        drawn, scope = self.drawn.gaps, self.drawn_scope
        concerned = pl.col("rate").is_in(drawn["rate"].unique().to_list())
        place = judged.filter(concerned).drop("low", "high", "p_value")
        return pl.concat(
            [
                judged.filter(~concerned),
                place.join(drawn, on=GAP_KEYS, how="left", nulls_equal=True).with_columns(
                    interval=pl.lit("bootstrap"),
                    scope=pl.lit(scope),
                    mde=pl.lit(None, pl.Float64),
                    equivalent=pl.lit(None, pl.Boolean),
                ),
            ],
            how="diagonal",
        )

    def _judged(self, table: pl.DataFrame) -> pl.DataFrame:
        """Add `no_verdict` and the verdicts, corrected for many tests over the table."""
        beyond = table.filter(pl.col("low").is_null(), pl.col("scope") != "runs")
        reasons = beyond.select(
            *GAP_KEYS, no_verdict=pl.col("scope").replace_strict(_NOT_DRAWN, default=None)
        )
        references = sole_references(self.inside).with_columns(no_verdict=pl.lit(REFERENCE))
        excluded = [*self.excluded, references, reasons]
        explained = without_verdict(table, value="gap", excluded=excluded)
        return verdicts(explained, level=self.rules.level, adjust=self.rules.adjust)


def _per_run(rates: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    run = [*RUN_KEYS, "attribute", "rate"]
    table = rates.join(inside, on=["probe", "attribute", "group"], how="left")
    _warn_undefined(table)
    mean = pl.col("value").filter("in_mean").mean().over(run)
    table = table.with_columns(gap=unrounded(pl.col("value") - mean))
    sums = table.filter("in_mean").group_by(run).agg(pl.col("gap").sum())
    worst = sums["gap"].abs().max()
    if isinstance(worst, float) and not worst <= 1e-9:  # NaN too
        raise WorkFailed(f"gaps over the reference groups add to {worst:.2e} in a run, not to 0")
    return table


def _warn_unread(cells: pl.DataFrame) -> None:
    if cells["pred"].null_count():
        unread = cells.filter(pl.col("pred").is_null())["n"].sum()
        warnings.warn(
            f"{unread} of {cells['n'].sum()} answers hold no label; they count as wrong, and as "
            "false positives of no class",
            StatisticsWarning,
            stacklevel=4,
        )


def _warn_unvaried(table: pl.DataFrame, interval: str, of: int) -> None:
    same = table.filter(pl.col("n_runs") > 1, pl.col("sd") <= ROUNDING).height
    if not same:
        return
    without = interval != "normal"
    warnings.warn(
        f"{same} of {of} gaps are the same in every run: identical runs were "
        "given, or the classifier reads these sentences alike in each; an interval over runs says "
        f"nothing of them, {'so they have no verdict' if without else 'nor does its verdict'}",
        StatisticsWarning,
        stacklevel=4,
    )


def _warn_undefined(table: pl.DataFrame) -> None:
    undefined = (
        table.filter(pl.col("value").is_null())
        .group_by(GAP_KEYS)
        .agg(pl.len())
        .sort(GAP_KEYS)
        .iter_rows(named=True)
    )
    for row in undefined:
        warnings.warn(
            f"{row['rate']} of {row['attribute']} {row['group']} is undefined in {row['len']} "
            f"run(s) of {row['model']} (FP + TN = 0); the group leaves their mean",
            StatisticsWarning,
            stacklevel=4,
        )
