"""Judge gaps by a study's rules, and make the tables of its report."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.stats.breakdown import by_term
from raybias.stats.cells import without_extras
from raybias.stats.conclusive import of_predictions
from raybias.stats.counts import Counts
from raybias.stats.families import of_families
from raybias.stats.gaps import GapAnalysis
from raybias.stats.leave_one_out import leave_one_out
from raybias.stats.markedness import markedness
from raybias.stats.metric import contrasts
from raybias.stats.metric_files import metrics_of_cells
from raybias.stats.null_check import null_check
from raybias.stats.over_models import model_tables, over_models
from raybias.stats.rates import accuracies, rates
from raybias.stats.reference_groups import StatisticsWarning, check_reference_groups
from raybias.stats.reliability import reliability
from raybias.stats.scopes import GapTable
from raybias.stats.summaries import composition, extremes, net_significance, spans, spans_mean


@dataclass(frozen=True)
class GapRules:
    """What gaps are taken from, and how they are judged."""

    statistics: Statistics
    """Resolved: interval, level, correction, draws and seed of the bootstrap."""
    probes: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Reference groups by probe and attribute; the papers' lists for what is left out."""
    everywhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Reference groups by attribute for every probe that has it, instead of those above."""
    judged: frozenset[str] = frozenset()
    """Methods whose labels are a judge's verdicts."""

    def of(self, probe: str, attribute: str) -> tuple[str, ...] | None:
        """Return the reference groups that were chosen; None where the papers' list decides."""
        chosen = self.everywhere.get(attribute)
        if chosen is None:
            chosen = self.probes.get(probe, {}).get(attribute)
        return None if chosen is None else tuple(chosen)


def gap_analysis(counts: Counts, rules: GapRules) -> GapAnalysis:
    """Prepare the gaps of all probes with the reference groups and statistics of `rules`.

    A classifier that cannot do its task has no verdict (`conclusive`).

    Raises
    ------
    ConfigError: reference groups that the cells do not have.
    """
    cells, level = counts.cells, rules.statistics.level
    check_reference_groups(cells, {a: g for a, g in rules.everywhere.items() if not _has(cells, a)})
    return GapAnalysis(
        cells,
        rules.statistics,
        rules.of,
        words=counts.words,
        withheld=of_predictions(cells, counts.answers, level=level, judged=rules.judged),
        values=counts.values,
    )


def judged_tables(counts: Counts, rules: GapRules) -> dict[str, pl.DataFrame]:
    """Compute the tables that follow from counts by the rules, from `gaps` to `by_term`.

    Returns
    -------
    `gaps`, `scopes`, `by_family` (`scopes` where families of templates are resampled in their
    place), `components`, `leave_one_out`, `over_models`, `reliability`, `null_check`,
    `accuracy`, `net_significance`, `spans`, `spans_mean`, `extremes`, `composition`, `answers`,
    `markedness` and `by_term`, as the functions of those names; some may have no rows. `withheld`
    (`conclusive.of_predictions`) names the classifiers that cannot do their task. `metrics`
    (schema.ESTIMATES) where the rules name some that are numbers for all groups. `spans` and
    `extremes` also have what `bootstrap.resampled` finds of them, where templates are known.

    Raises
    ------
    ConfigError: reference groups that the cells do not have.
    DataError: a bootstrap over predictions without template ids.

    Warns
    -----
    StatisticsWarning: as `gaps`.
    """
    found, cells, options = gap_analysis(counts, rules), counts.cells, rules.statistics
    spanning, extreme = spans(found.gaps), extremes(found.gaps)
    if not cells["template_id"].null_count():
        drawn = found.drawn
        spanning = _beside(spanning, drawn.spans, [*schema.KEYS, "attribute", "rate"])
        extreme = _beside(extreme, drawn.extremes, ["attribute", "group", "rate"])
    how: dict[str, Any] = {
        "interval": options.interval,
        "level": options.level,
        "adjust": options.adjust,
        "excluded": found.excluded,
    }
    of_groups = rates(without_extras(cells), options.metrics)
    apart = judgeable(found.tables, found.excluded)
    together = [*model_tables(apart)]
    words = without_extras(counts.words)
    tables = {
        "gaps": found.gaps,
        "withheld": pl.DataFrame() if found.withheld is None else found.withheld,
        "scopes": found.scopes,
        "by_family": by_family(counts, rules),
        "components": found.components,
        "leave_one_out": leave_one_out(found.tables, counts.words, options.metrics),
        "over_models": over_models(together, words, level=options.level, adjust=options.adjust),
        "reliability": reliability(apart, found.word_variances, together),
        "null_check": null_check(apart, found.word_variances, options),
        "accuracy": accuracies(cells),
        "net_significance": net_significance(found.gaps),
        "spans": spanning,
        "spans_mean": spans_mean(spanning),
        "extremes": extreme,
        "composition": composition(cells),
        "answers": counts.answers,
        "markedness": markedness(
            cells, found.inside, scope=options.scope, metrics=options.metrics, **how
        ),
        "by_term": by_term(counts.terms, of_groups, found.inside, **how),
    }
    if contrasts(options.metrics):
        measured = metrics_of_cells(cells, found.inside, options)
        tables["metrics"] = _without_intervals(measured, found.excluded)
    return tables


def by_family(counts: Counts, rules: GapRules) -> pl.DataFrame:
    """Judge the gaps where families of templates are resampled; without rows if none is known."""
    if counts.families.is_empty():
        return pl.DataFrame(schema=pl.Schema(schema.SCOPES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        scopes = gap_analysis(of_families(counts), rules).scopes
    return scopes.filter(pl.col("scope") != "runs")


def judgeable(tables: Sequence[GapTable], excluded: Iterable[pl.DataFrame]) -> list[GapTable]:
    """Leave out the tables of what has no verdict whatever the group."""
    keys = [*schema.KEYS, "attribute", "rate"]
    names = pl.DataFrame(
        [(*table.keys, table.rate) for table in tables],
        dict.fromkeys(keys, pl.String),
        orient="row",
    ).with_row_index("place")
    for frame in excluded:
        by = [name for name in frame.columns if name != "no_verdict"]
        names = names.join(frame.cast(dict.fromkeys(by, pl.String)), on=by, how="anti",
                           nulls_equal=True, maintain_order="left")  # fmt: skip
    return [tables[place] for place in names["place"]]


def _without_intervals(measured: pl.DataFrame, excluded: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Put the reason in the place of the intervals of classifiers that cannot do their task."""
    for frame in (frame for frame in excluded if "rate" not in frame.columns):
        measured = measured.join(
            frame, on=schema.KEYS, how="left", nulls_equal=True, maintain_order="left"
        )
        low, high = (pl.when(pl.col("no_verdict").is_null()).then(end) for end in ("low", "high"))
        reason = pl.coalesce("no_verdict", "reason")
        measured = measured.with_columns(low=low, high=high, reason=reason).drop("no_verdict")
    return measured


def _beside(table: pl.DataFrame, drawn: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    return table.join(drawn, on=by, how="left", nulls_equal=True, maintain_order="left")


def _has(cells: pl.DataFrame, attribute: str) -> bool:
    return bool((cells["attribute"] == attribute).any())
