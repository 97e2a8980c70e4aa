"""Arrange tables, figures and sentences about gaps for gaps.html.j2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from raybias import schema
from raybias.config import Study
from raybias.measures import kinds
from raybias.measures.prediction_rows import KIND, WITHHELD, gap_rows
from raybias.methods import tuned_methods
from raybias.report import marked, sentences, wording
from raybias.report.calibration import calibration, truths
from raybias.report.design import designed
from raybias.report.estimates import table_of, tables_of
from raybias.report.evidence import Evidence, evidence, page_name, read_sentences, write_evidence
from raybias.report.forest import gap_forests
from raybias.report.outs import load_planted, prediction_files
from raybias.report.rendering import Drawn, slug, write_figures
from raybias.stats.design import TARGET
from raybias.stats.scopes import REDRAWN, SCOPES
from raybias.storage import Store


def gap_section(store: Store, study: Study, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Write the figures and evidence of gaps; return what gaps.html.j2 and report.html.j2 show.

    Parameters
    ----------
    store: the OUT folder.
    study: by whose statistics the gaps are judged.
    tables: of `write_tables`, in the order that the page is to have.

    Raises
    ------
    OutputError: OUT cannot be written.
    """
    options, estimates, components = study.statistics, tables["estimates"], tables["components"]
    level, scope = options.level, options.scope
    gaps, scoped = gap_rows(estimates, scope), gap_rows(estimates)
    planted = load_planted(store)
    drawn = gap_forests(
        scoped, level=level, corrected=options.adjust != "none",
        truth=None if planted is None else truths(planted),
    )  # fmt: skip
    marks = marked.marked_parts(tables["markedness"], estimates, level=level)
    write_figures(store, [*drawn, *(one for part in marks for one in part["figures"])], "figures/")
    metrics = [
        wording.RATES[rate] for rate in gaps["score"].unique().sort() if rate in wording.RATES
    ]
    texts = read_sentences(prediction_files(store))
    write_evidence(store, texts)
    n_runs = tables["cells"].group_by(schema.KEYS).agg(pl.col("run_id").n_unique())["run_id"]
    judged = gaps.filter(pl.col("survives").is_not_null())
    withheld = estimates.filter(score=WITHHELD)
    kind = kinds[KIND]
    return {
        "metrics": metrics,
        "parts": _parts(estimates, gaps, evidence(gaps, texts, tables), drawn, scope),
        "further": [*tables_of(kind, estimates, scope, folded=False)][1:],
        "further_folded": [*tables_of(kind, estimates, scope, folded=True)],
        "marked_parts": marks,
        "breakdowns": marked.breakdowns(store, tables),
        # Classifiers that cannot do their task are judged all the same, as papers do.
        "unable": sentences.refusals(
            withheld.join(judged, on=schema.KEYS, how="semi", nulls_equal=True,
                          maintain_order="left"), "gap"
        ) if withheld.height else [],
        "urgent": tables["notes"].filter("urgent")["note"].to_list(),
        "by_scope": sentences.by_scope(scoped, components),
        "verdict": sentences.verdict(gaps),
        "measured": [*sentences.measured(gaps, tables["composition"], int(str(n_runs.max())))],
        "lead": drawn[:1],
        "doubts": [*sentences.doubts(estimates, gaps, components, texts)],
        "findings": sentences.findings(gaps),
        "calibration": calibration(planted, estimates),
        "null_check": sentences.null_check(estimates, options),
        "design": designed(tables["design"], options.margin or TARGET),
        "chosen_by": sorted(
            {str(m.select) for m in tuned_methods(study.methods) if m.keep < len(m.seeds)}
        ),
        **_certainty(study, gaps, n_runs),
    }  # fmt: skip


def _certainty(study: Study, gaps: pl.DataFrame, n_runs: pl.Series) -> dict[str, Any]:
    counts = n_runs.unique().sort().to_list()
    tested = gaps["significant"].count()
    options = study.statistics
    return {
        "n_runs": str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        "n_tested": tested,
        "by_chance": f"{tested * (1 - options.level):.1f}",
        "percent": f"{100 * options.level:g}%",
        "alpha": f"{100 * (1 - options.level):g}%",
        "interval": options.interval,
        "draws": f"{options.bootstrap_draws:,}",
        "redrawn": [REDRAWN[scope] for scope in SCOPES if (gaps["scope"] == scope).any()],
        "adjusted": options.adjust == "benjamini_hochberg",
    }


def _parts(
    estimates: pl.DataFrame,
    gaps: pl.DataFrame,
    behind: Mapping[tuple[str, str], Sequence[Evidence]],
    drawn: Sequence[Drawn],
    scope: str,
) -> list[dict[str, Any]]:
    """Arrange each attribute of each probe: its table, and the sentences behind its gaps."""
    kind, parts = kinds[KIND], []
    usual = kind.tables[0]
    for place, (probe, attribute) in enumerate(wording.probe_order(gaps)):
        mine = estimates.filter(usual.where, probe=probe, attribute=attribute)
        groups = gaps.filter(probe=probe, attribute=attribute)
        inside = groups.filter(condition="")["group"].unique().sort().to_list()
        several = groups["model"].n_unique() > 1
        shown = table_of(
            kind,
            mine,
            usual,
            scope,
            without=("probe", "attribute", *(() if several else ["model"])),
        )
        parts.append(
            {
                "anchor": f"gaps-{place}",
                "probe": probe,
                "attribute": attribute,
                "mean": wording.listed([wording.spaced(group) for group in inside]),
                "table": shown,
                "figures": [one for one in drawn if one.name == slug("gaps", probe, attribute)],
                "evidence": behind.get((probe, attribute), ()),
                "groups": [
                    (wording.spaced(group), page_name(probe, attribute, group))
                    for group in groups["group"].unique(maintain_order=True)
                ],
            }
        )
    return parts
