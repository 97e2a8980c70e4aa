"""Arrange tables, figures and sentences about gaps for gaps.html.j2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.config import Statistics
from raybias.measures import Table, kinds
from raybias.measures.predictions import KIND, complete
from raybias.report import findings, generality, markedness_section, verdict, wording
from raybias.report.calibration import calibration, truths
from raybias.report.design import ASSUMED, design_sentences, designs_table
from raybias.report.estimates import table_of
from raybias.report.evidence import Evidence, evidence, page_name, read_sentences
from raybias.report.evidence_page import write_evidence
from raybias.report.figure_parts import Drawn, inlined, write_figures
from raybias.report.gap_forests import (
    gap_figures,
    group_order,
    marked_figures,
    nested_figure,
    span_figures,
)
from raybias.report.heat_map import heat_map
from raybias.report.load_results import load_planted
from raybias.report.summary_tables import SummaryTable, plain
from raybias.report.summary_tables import scopes as scope_table
from raybias.stats.design import TARGET
from raybias.stats.scopes import REDRAWN, SCOPES
from raybias.storage import Store

_DRAWN: Final = {"runs": "seeds", "sentences": "sentences", "wording": "words"}
#: Of more classifiers, a heat map takes the place of dots and the table is folded.
_SIDE_BY_SIDE: Final = 4


def gap_section(
    store: Store,
    options: Statistics,
    tables: Mapping[str, pl.DataFrame],
    files: Sequence[stats.Source],
) -> dict[str, Any]:
    """Write the figures and evidence of gaps; return what gaps.html.j2 and report.html.j2 show.

    Parameters
    ----------
    store: the OUT folder.
    options: by which the gaps are judged.
    tables: of `write_tables`, in the order that the page is to have.
    files: of predictions.

    Raises
    ------
    OutputError: OUT cannot be written.
    """
    level, gaps = options.level, tables["gaps"]
    planted = load_planted(store)
    truth = None if planted is None else truths(planted)
    corrected = options.adjust != "none"
    lead = nested_figure(tables["scopes"], level=level, truth=truth, corrected=corrected)
    drawn = gap_figures(gaps, level=level)
    of_spans = span_figures(tables["spans"])
    of_marks = marked_figures(tables["markedness"], level=level)
    lead_figures = [] if lead is None else [lead]
    write_figures(store, (*lead_figures, *drawn.values(), *of_spans.values(), *of_marks.values()))
    measured = gaps["rate"].unique().sort().to_list()
    sentences = read_sentences(files)
    write_evidence(store, sentences)
    return {
        "metrics": [wording.RATES[rate] for rate in measured if rate in wording.RATES],
        "contrasts": _contrasts(tables.get("metrics")),
        "span_figures": inlined(of_spans.values(), "s") if _several(tables["spans"]) else (),
        "parts": _parts(tables, drawn, evidence(sentences, tables)),
        "marked_parts": markedness_section.marked_parts(tables["markedness"], of_marks),
        "breakdowns": markedness_section.breakdowns(store, tables),
        "corpus_tables": markedness_section.corpus_tables(tables),
        "unable": _unable(tables),
        "urgent": tables["notes"].filter("urgent")["note"].to_list(),
        "by_scope": findings.by_scope(tables["scopes"], tables["components"]),
        "by_the_rules": findings.by_the_rules(gaps),
        "verdict": verdict.verdict(gaps),
        "plain": {
            "measured": [*verdict.measured(gaps, tables["composition"])],
            "may": verdict.conclusions(gaps),
        },
        "lead": inlined(lead_figures, "a"),
        "doubts": [*findings.doubts(tables), *findings.about_templates(tables, sentences)],
        "findings": findings.findings(gaps),
        "calibration": calibration(planted, tables["scopes"]),
        "summaries": _summaries(tables),
        "scopes": _shown(scope_table, tables["scopes"]),
        "over_models": _shown(generality.over_models, tables["over_models"]),
        "reliability": _shown(generality.reliability, tables["reliability"]),
        "chance": generality.chance(tables["over_models"]),
        "null_check": findings.null_check(tables["null_check"]),
        "design": _designs(tables["design"], options.margin or TARGET),
        **_certainty(options, gaps),
    }


def _unable(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Say which classifiers that cannot do their task are judged all the same, as papers do."""
    gaps = tables["gaps"]
    judged = gaps.filter(pl.col("no_verdict").is_null()).select(schema.KEYS)
    named = gaps.select(schema.KEYS).unique(maintain_order=True)
    named = named.join(tables["withheld"], on=schema.KEYS, how="left", nulls_equal=True)
    kept = named.join(judged, on=schema.KEYS, how="semi", nulls_equal=True)
    return findings.no_verdicts(kept)


def _shown(show: Callable[[pl.DataFrame], SummaryTable], table: pl.DataFrame) -> list[SummaryTable]:
    return [show(table)] if table.height else []


def _contrasts(table: pl.DataFrame | None) -> list[SummaryTable]:
    if table is None or table.is_empty():
        return []
    return [
        table_of(kinds[KIND], complete(table), Table("metrics against a background", pl.lit(1)))
    ]


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


def _certainty(options: Statistics, gaps: pl.DataFrame) -> dict[str, Any]:
    counts = gaps["n_runs"].unique().sort().to_list()
    tested = gaps["significant"].count()
    level = options.level
    return {
        "n_runs": str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        "n_tested": tested,
        "by_chance": f"{tested * (1 - level):.1f}",
        "percent": f"{100 * level:g}%",
        "alpha": f"{100 * (1 - level):g}%",
        "interval": options.interval,
        "draws": f"{options.bootstrap_draws:,}",
        "redrawn": [REDRAWN[scope] for scope in SCOPES if (gaps["scope"] == scope).any()],
        "adjusted": options.adjust == "benjamini_hochberg",
    }


def _parts(
    tables: Mapping[str, pl.DataFrame],
    drawn: Mapping[tuple[str, str, str], Drawn],
    behind: Mapping[tuple[str, str], Sequence[Evidence]],
) -> list[dict[str, Any]]:
    gaps = _with_scopes(tables["gaps"], tables["scopes"], tables["components"])
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(gaps)):
        part = gaps.filter(probe=probe, attribute=attribute)
        rates = part["rate"].unique(maintain_order=True).to_list()
        inside = part.filter(pl.col("in_mean"))["group"].unique().sort().to_list()
        figures = [drawn[probe, attribute, rate] for rate in rates]
        several = part.select(wording.naming_keys(part)).n_unique()
        many = several > _SIDE_BY_SIDE
        parts.append(
            {
                "anchor": f"gaps-{place}",
                "probe": probe,
                "attribute": attribute,
                "mean": wording.listed(inside),
                "figures": () if many else inlined(figures, f"g{place}-"),
                "heat_maps": [heat_map(part, rate) for rate in rates] if many else (),
                "several": several > 1,
                "rows": _rows(part, rates),
                "evidence": behind.get((probe, attribute), ()),
                "groups": [
                    (group, page_name(probe, attribute, group)) for group in group_order(part)
                ],
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


def _rows(part: pl.DataFrame, rates: Sequence[str]) -> list[dict[str, Any]]:
    """Put gaps into words: by classifier, group and rate."""
    keys, order = wording.naming_keys(part), group_order(part)
    rows = sorted(
        part.iter_rows(named=True),
        key=lambda row: (order.index(row["group"]), rates.index(row["rate"])),
    )
    return [{"classifier": wording.classifier_name(row, keys), **_row(row)} for row in rows]


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    """Put one gap into words; `effect` is `harm`, `benefit`, or empty without significance."""
    effect = wording.effect(row["rate"], row["gap"]) if row["survives"] else ""
    often = "more often" if effect and row["gap"] > 0 else "less often"
    again = [_DRAWN[scope] for scope in row["again"] or ()]
    notes = [] if row["in_mean"] else ["not in the mean"]
    return {
        "group": row["group"],
        "notes": ", ".join([*notes, *(["one word"] if row["one_word"] else [])]),
        "counted": wording.rate_title(row["rate"]),
        "runs": row["n_runs"],
        "gap": wording.signed(row["gap"]),
        "interval": wording.span(row["low"], row["high"]),
        "rate": wording.number(row["mean_rate"]),
        "again": ", ".join(again) or ("" if row["again"] is None else "none"),
        "verdict": f"{often}: {effect}" if effect else wording.verdict(row),
        "effect": effect,
    }
