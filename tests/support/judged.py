"""The tables that follow from counts, one for each question: what estimates are held against."""

from __future__ import annotations

from typing import Any

import polars as pl

from raybias import schema
from raybias.stats.breakdown import by_term, leave_one_out
from raybias.stats.cells import without_extras
from raybias.stats.counts import Counts
from raybias.stats.judging import GapRules, by_family, gap_analysis, judgeable
from raybias.stats.markedness import markedness
from raybias.stats.metric import contrasts
from raybias.stats.metric_files import metrics_of_cells
from raybias.stats.null_check import null_check
from raybias.stats.over_models import model_tables, over_models, reliability
from raybias.stats.rates import accuracies, rates
from raybias.stats.summaries import composition, extremes, net_significance, spans, spans_mean


def judged_tables(counts: Counts, rules: GapRules) -> dict[str, pl.DataFrame]:
    """Compute the tables that follow from counts by the rules, from `gaps` to `by_term`."""
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
        tables["metrics"] = measured
    return tables


def _beside(table: pl.DataFrame, drawn: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    return table.join(drawn, on=by, how="left", nulls_equal=True, maintain_order="left")
