"""Arrange tables, figures and sentences about gaps for gaps.html.j2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from raybias import schema, stats
from raybias.config import Study
from raybias.methods import tuned_methods
from raybias.report import findings, generality, markedness_section, wording
from raybias.report.calibration import calibration, truths
from raybias.report.design import ASSUMED, design_sentences, designs_table
from raybias.report.figure_parts import Drawn, inlined, write_figures
from raybias.report.gap_figures import (
    gap_figures,
    group_order,
    nested_figure,
    span_figures,
)
from raybias.report.load_results import load_planted
from raybias.report.markedness_figures import marked_figures
from raybias.report.score_tables import metric_table
from raybias.report.summary_tables import SummaryTable, plain
from raybias.report.summary_tables import scopes as scope_table
from raybias.stats.design import TARGET
from raybias.stats.scopes import QUESTIONS, SCOPES
from raybias.storage import Store


def gap_section(store: Store, study: Study, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Write the figures of gaps, and return what gaps.html.j2 and report.html.j2 show.

    Parameters
    ----------
    store: the OUT folder.
    tables: of `write_tables`, in the order that the page is to have.

    Raises
    ------
    OutputError: OUT cannot be written.
    """
    level = study.statistics.level
    planted = load_planted(store)
    lead = nested_figure(
        tables["scopes"], level=level, truth=None if planted is None else truths(planted)
    )
    lead_figures = [] if lead is None else [lead]
    drawn = gap_figures(tables["gaps"], level=level)
    of_spans = span_figures(tables["spans"])
    of_marks = marked_figures(tables["markedness"], level=level)
    write_figures(store, (*lead_figures, *drawn.values(), *of_spans.values(), *of_marks.values()))
    measured = tables["gaps"]["rate"].unique().sort().to_list()
    return {
        "metrics": [wording.RATES[rate] for rate in measured if rate in wording.RATES],
        "contrasts": _shown(metric_table, tables.get("metrics", pl.DataFrame())),
        "span_figures": inlined(of_spans.values(), "s") if _several(tables["spans"]) else (),
        "parts": _parts(tables, drawn),
        "marked_parts": markedness_section.marked_parts(tables["markedness"], of_marks),
        "breakdowns": markedness_section.breakdowns(store, tables),
        "corpus_tables": markedness_section.corpus_tables(tables),
        "urgent": tables["notes"].filter("urgent")["note"].to_list(),
        "found_again": findings.found_again(tables["scopes"], tables["components"]),
        "headline": findings.headline(tables["gaps"]),
        "lead_figures": inlined(lead_figures, "a"),
        "doubts": findings.doubts(tables),
        "findings": findings.findings(tables["gaps"]),
        "calibration": calibration(planted, tables["scopes"]),
        "chance_alerts": findings.near_chance(tables["accuracy"], tables["composition"]),
        "summaries": _summaries(tables),
        "scopes": _shown(scope_table, tables["scopes"]),
        "over_models": _shown(generality.over_models, tables["over_models"]),
        "reliability": _shown(generality.reliability, tables["reliability"]),
        "chance": generality.CHANCE,
        "null_check": findings.null_check(tables["null_check"]),
        "design": _designs(tables["design"], study.statistics.margin or TARGET),
        **_certainty(study, tables["gaps"]),
    }


def _shown(show: Callable[[pl.DataFrame], SummaryTable], table: pl.DataFrame) -> list[SummaryTable]:
    return [show(table)] if table.height else []


def _designs(designs: pl.DataFrame, target: float) -> dict[str, Any]:
    return (
        {
            "sentences": design_sentences(designs, target),
            "tables": [designs_table(designs, target)],
            "assumed": ASSUMED,
        }
        if designs.height
        else {}
    )


def _several(spans: pl.DataFrame) -> bool:
    """Return whether spans are of several classifiers."""
    return spans.select(schema.KEYS).unique().height > 1


def _summaries(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    titles = {"spans": "Spans: largest minus smallest mean gap"}
    if tables["spans"]["probe"].n_unique() > 1:
        titles["spans_mean"] = "Mean spans over probes; rank 1 is the widest"
    if tables["gaps"]["model"].n_unique() > 1:
        titles["net_significance"] = (
            "Net significance: models significantly above minus below the mean"
        )
    if _several(tables["spans"]):
        titles["extremes"] = (
            "Extremes: how often a group's gap is highest or lowest; equals share it"
        )
    return [plain(title, tables[name]) for name, title in titles.items()]


def _certainty(study: Study, gaps: pl.DataFrame) -> dict[str, Any]:
    counts = gaps["n_runs"].unique().sort().to_list()
    tested = gaps["significant"].count()
    level = study.statistics.level
    return {
        "n_runs": str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        "n_tested": tested,
        "by_chance": f"{tested * (1 - level):.1f}",
        "chosen_by": sorted(
            {str(m.select) for m in tuned_methods(study.methods) if m.keep < len(m.seeds)}
        ),
        "percent": f"{100 * level:g}%",
        "alpha": f"{100 * (1 - level):g}%",
        "interval": study.statistics.interval,
        "questions": [QUESTIONS[scope] for scope in SCOPES if (gaps["scope"] == scope).any()],
        "adjusted": study.statistics.adjust == "benjamini_hochberg",
    }


def _parts(
    tables: Mapping[str, pl.DataFrame], drawn: Mapping[tuple[str, str, str], Drawn]
) -> list[dict[str, Any]]:
    gaps = _with_scopes(tables["gaps"], tables["scopes"], tables["components"])
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(gaps)):
        part = gaps.filter(probe=probe, attribute=attribute)
        rates = part["rate"].unique(maintain_order=True).to_list()
        inside = part.filter(pl.col("in_mean"))["group"].unique().sort().to_list()
        titles = [
            f"{wording.rate_title(rate)} ({rate})" if rate in wording.RATES else rate
            for rate in rates
        ]
        figures = [drawn[probe, attribute, rate] for rate in rates]
        parts.append(
            {
                "anchor": f"gaps-{place}",
                "probe": probe,
                "attribute": attribute,
                "mean": wording.listed(inside),
                "rates": titles,
                "figures": inlined(figures, f"g{place}-"),
                "blocks": _blocks(part, rates),
            }
        )
    return parts


def _with_scopes(
    gaps: pl.DataFrame, scopes: pl.DataFrame, components: pl.DataFrame
) -> pl.DataFrame:
    """Add to each gap under which scopes it lasts, and whether its group has one word.

    Returns
    -------
    schema.GAPS with `again`, scopes narrowest first (null where none was judged), and `one_word`.
    """
    judged = scopes.filter(pl.col("survives").is_not_null())
    by_gap = judged.group_by(stats.GAP_KEYS).agg(again=pl.col("scope").filter("survives"))
    words = components.filter(facets="word").select(
        *stats.GAP_KEYS, one_word=pl.col("levels") == "1"
    )
    for more in (by_gap, words):
        gaps = gaps.join(
            more, on=stats.GAP_KEYS, how="left", nulls_equal=True, maintain_order="left"
        )
    return gaps


def _blocks(part: pl.DataFrame, rates: Sequence[str]) -> list[dict[str, Any]]:
    """Arrange the gaps by classifier: a row per group, a cell per rate."""
    keys = wording.naming_keys(part)
    order = group_order(part)
    blocks = []
    for names in part.select(keys).unique(maintain_order=True).iter_rows(named=True):
        mine = part.filter(**names)
        rows = []
        for group in order:
            of_rate = {row["rate"]: row for row in mine.filter(group=group).iter_rows(named=True)}
            if of_rate:
                cells = [_cell(of_rate[rate]) if rate in of_rate else None for rate in rates]
                first = next(iter(of_rate.values()))
                notes = [] if first["in_mean"] else ["not in the mean"]
                notes += ["one word"] if first["one_word"] else []
                rows.append((group, ", ".join(notes), first["n_runs"], cells))
        blocks.append({"name": wording.classifier_name(names, keys), "rows": rows})
    return blocks


def _cell(row: Mapping[str, Any]) -> dict[str, str]:
    """Put one gap into words; `effect` is `harm`, `benefit`, or empty without significance."""
    effect = wording.effect(row["rate"], row["gap"]) if row["survives"] else ""
    often = "more often" if effect and row["gap"] > 0 else "less often"
    verdict = f"{often}: {effect}" if effect else wording.verdict(row)
    again = [wording.SCOPES[scope].removeprefix("other ") for scope in row["again"] or ()]
    return {
        "gap": wording.signed(row["gap"]),
        "interval": wording.span(row["low"], row["high"]),
        "rate": wording.number(row["mean_rate"]),
        "again": ", ".join(again) or ("" if row["again"] is None else "none"),
        "verdict": verdict,
        "effect": effect,
    }
