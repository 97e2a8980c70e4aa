"""Arrange tables, figures and sentences about gaps for gaps.html.j2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.config import Statistics
from raybias.measures import kinds
from raybias.measures.prediction_rows import KIND, WITHHELD, gap_rows
from raybias.report import findings, markedness_section, verdict, wording
from raybias.report.calibration import calibration, truths
from raybias.report.design import ASSUMED, design_sentences, designs_table
from raybias.report.estimates import further
from raybias.report.evidence import Evidence, evidence, page_name, read_sentences, write_evidence
from raybias.report.figure_parts import Drawn, inlined, write_figures
from raybias.report.gap_forests import (
    gap_figures,
    group_order,
    heat_map,
    marked_figures,
    nested_figure,
)
from raybias.report.load_results import load_planted
from raybias.stats.design import TARGET
from raybias.stats.scopes import REDRAWN, SCOPES
from raybias.storage import Store

_GAP: Final = (*schema.KEYS, "attribute", "group", "score")
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
    level, estimates = options.level, tables["estimates"]
    gaps, scoped = gap_rows(estimates, options.scope), gap_rows(estimates)
    planted = load_planted(store)
    truth = None if planted is None else truths(planted)
    corrected = options.adjust != "none"
    lead = nested_figure(scoped, level=level, truth=truth, corrected=corrected)
    drawn = gap_figures(gaps, level=level)
    of_marks = marked_figures(tables["markedness"], level=level)
    lead_figures = [] if lead is None else [lead]
    write_figures(store, (*lead_figures, *drawn.values(), *of_marks.values()))
    measured = gaps["score"].unique().sort().to_list()
    sentences = read_sentences(files)
    write_evidence(store, sentences)
    components = tables["components"]
    n_runs = tables["cells"].group_by(schema.KEYS).agg(pl.col("run_id").n_unique())["run_id"]
    return {
        "metrics": [wording.RATES[rate] for rate in measured if rate in wording.RATES],
        "parts": _parts(gaps, scoped, tables, drawn, evidence(gaps, sentences, tables)),
        "marked_parts": markedness_section.marked_parts(tables["markedness"], of_marks),
        "breakdowns": markedness_section.breakdowns(store, tables),
        "corpus_tables": markedness_section.corpus_tables(tables),
        "unable": _unable(estimates, gaps),
        "urgent": tables["notes"].filter("urgent")["note"].to_list(),
        "by_scope": findings.by_scope(scoped, components),
        "by_the_rules": findings.by_the_rules(gaps),
        "verdict": verdict.verdict(gaps),
        "plain": {
            "measured": [*verdict.measured(gaps, tables["composition"], int(str(n_runs.max())))],
            "may": verdict.conclusions(gaps),
        },
        "lead": inlined(lead_figures, "a"),
        "doubts": [
            *findings.doubts(estimates, gaps, components),
            *findings.about_templates(estimates, gaps, components, sentences),
        ],
        "findings": findings.findings(gaps),
        "calibration": calibration(planted, estimates),
        "further": further(kinds[KIND], estimates, options.scope),
        "null_check": findings.null_check(estimates, options),
        "design": _designs(tables["design"], options.margin or TARGET),
        **_certainty(options, gaps, n_runs),
    }


def _unable(estimates: pl.DataFrame, gaps: pl.DataFrame) -> list[str]:
    """Say which classifiers that cannot do their task are judged all the same, as papers do."""
    judged = gaps.filter(pl.col("survives").is_not_null())
    withheld = estimates.filter(score=WITHHELD)
    return findings.no_verdicts(
        withheld.join(judged, on=schema.KEYS, how="semi", nulls_equal=True, maintain_order="left")
    )


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


def _certainty(options: Statistics, gaps: pl.DataFrame, n_runs: pl.Series) -> dict[str, Any]:
    counts = n_runs.unique().sort().to_list()
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
    judged: pl.DataFrame,
    scoped: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    drawn: Mapping[tuple[str, str, str], Drawn],
    behind: Mapping[tuple[str, str], Sequence[Evidence]],
) -> list[dict[str, Any]]:
    gaps = _with_scopes(judged, scoped, tables)
    parts = []
    for place, (probe, attribute) in enumerate(wording.probe_order(gaps)):
        part = gaps.filter(probe=probe, attribute=attribute)
        rates = part["score"].unique(maintain_order=True).to_list()
        inside = part.filter(condition="")["group"].unique().sort().to_list()
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
    gaps: pl.DataFrame, scoped: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Add to each gap its rate, under which scopes it lasts, and whether its group has one word.

    Returns
    -------
    schema.ESTIMATES with `rate`, `again`, scopes narrowest first (null where none was judged), and
    `one_word`.
    """
    judged = scoped.filter(pl.col("survives").is_not_null())
    width = pl.col("scope").replace_strict({name: n for n, name in enumerate(SCOPES)}, default=0)
    by_gap = judged.sort(width).group_by(_GAP).agg(again=pl.col("scope").filter("survives"))
    words = tables["components"].filter(facets="word").select(
        *_GAP[:-1], score="rate", one_word=pl.col("levels") == "1"
    )  # fmt: skip
    rates = tables["estimates"].filter(statistic="rate").unique(_GAP)
    for more in (by_gap, words, rates.select(*_GAP, rate="value")):
        gaps = gaps.join(more, on=_GAP, how="left", nulls_equal=True, maintain_order="left")
    return gaps


def _rows(part: pl.DataFrame, rates: Sequence[str]) -> list[dict[str, Any]]:
    """Put gaps into words: by classifier, group and rate."""
    keys, order = wording.naming_keys(part), group_order(part)
    rows = sorted(
        part.iter_rows(named=True),
        key=lambda row: (order.index(row["group"]), rates.index(row["score"])),
    )
    return [{"classifier": wording.classifier_name(row, keys), **_row(row)} for row in rows]


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    """Put one gap into words; `effect` is `harm`, `benefit`, or empty without significance."""
    effect = wording.effect(row["score"], row["value"]) if row["survives"] else ""
    often = "more often" if effect and row["value"] > 0 else "less often"
    again = [_DRAWN[scope] for scope in row["again"] or ()]
    notes = filter(None, (row["condition"], "one word" if row["one_word"] else ""))
    return {
        "group": row["group"],
        "notes": ", ".join(notes),
        "counted": wording.rate_title(row["score"]),
        "gap": wording.signed(row["value"]),
        "interval": wording.span(row["low"], row["high"]),
        "rate": wording.number(row["rate"]),
        "again": ", ".join(again) or ("" if row["again"] is None else "none"),
        "verdict": f"{often}: {effect}" if effect else wording.verdict(row),
        "effect": effect,
    }
