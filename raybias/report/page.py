"""Write OUT/report.html: one page, with nothing to load, the same for equal files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from raybias import schema
from raybias.config import Study
from raybias.measures.kind import kinds
from raybias.measures.prediction_rows import KIND, WITHHELD, gap_rows, no_wider
from raybias.measures.predictions_read import MeasuredPredictions
from raybias.methods import tuned_methods
from raybias.probes.published.planted import Plant
from raybias.report import cautions, described, headline, sentences, wording
from raybias.report.accuracy import accuracies, chance_of
from raybias.report.calibration import PLANTED, calibration, truths
from raybias.report.design import designed
from raybias.report.doubts import doubts
from raybias.report.engines import engine_sentences, engines_table
from raybias.report.estimates import parts_of, table_of, tables_of
from raybias.report.evidence import (
    breakdowns,
    evidence,
    marked_parts,
    page_name,
    read_sentences,
    write_evidence,
)
from raybias.report.export import summary_tables, write_model_card, write_results
from raybias.report.figure_files import replace_figures
from raybias.report.files import estimates_of_study, write_tables
from raybias.report.forest import gap_forests
from raybias.report.judged import Judged
from raybias.report.judges import UNMEASURED, judge_section
from raybias.report.meaningless import meaningless
from raybias.report.papers import write_papers
from raybias.report.rendering import Drawn, rendered, slug, write_figures, write_frame
from raybias.report.run_figures import devices_used, run_figures
from raybias.report.statement import is_of_probe, write_statement
from raybias.seal import ChangedWarning, changes, digest, in_words, read_seal, write_seal
from raybias.stats.design import TARGET
from raybias.stats.intervals import NO_ROWS
from raybias.stats.metric import metrics
from raybias.stats.metric_files import as_class
from raybias.stats.rated_class import RatedClass
from raybias.stats.redrawn import have_seeds
from raybias.stats.scopes import SCOPES
from raybias.storage import Draft, Store
from raybias.study_record import Record, read_record, read_runs, refuse_study
from raybias.table_files import csv_text


def write_report(store: Store, study: Study, *, papers: bool = False) -> pl.DataFrame:
    """Write tables, figures, report.html and results.json; `DataError` without answers.

    papers: also write the papers' figures and tables, as `write_papers`.
    """
    sealed, changed = read_seal(store), changes(store)
    if changed:
        warnings.warn(in_words(changed), ChangedWarning, stacklevel=2)
    draft = Draft(store.uri)
    with wording.describing(study):
        found = _write_report(draft, study, [in_words(changed)] if changed else [], papers)
    if sealed:
        kept = {name: sha for name, sha in sealed.items() if not name.startswith("tables/")}
        tables = (n for n in draft.held if n.startswith("tables/") and n.endswith(".parquet"))
        write_seal(draft, kept | {name: digest(draft.held[name]) for name in tables})
    replace_figures(draft)
    draft.flush()
    return found


def _write_report(store: Store, study: Study, changed: Sequence[str], papers: bool) -> pl.DataFrame:
    record = read_record(store) if store.exists("study.yaml") else Record(study)
    statistics, parts = study.statistics, []
    about_answers: list[str] = []
    if study.pairs or study.questions:
        asked, about_answers = estimates_of_study(store, study, record)
        parts.append(_in_study_order(asked, study))
    tables: dict[str, pl.DataFrame] = {}
    if study.probes:
        written = write_tables(store, study)
        tables = {name: _in_study_order(frame, study) for name, frame in written.items()}
        parts.insert(0, tables["estimates"])
    found = pl.concat(parts)
    write_frame(store, "tables/estimates", found)
    write_results(store, study, record, found)
    judged = _judged(found, study, tables)
    if papers:
        composition = tables.get("composition")
        write_papers(store, study, record, found=found, judged=judged, composition=composition)
    judge = judge_section(study, tables, judged.redrawn) if tables else None
    unmeasured = [UNMEASURED] if judge is not None and not judge["measured"] else []
    measured = _measured_on(store, study, record, tables)
    warned = [
        *changed, *unmeasured, *cautions.of_study(study, record, tables), *about_answers,
        *cautions.of_endpoints(store, study), *measured.pop("chosen"),
    ]  # fmt: skip
    answers = parts_of(found.filter(pl.col("kind") != KIND), level=statistics.level)
    context: dict[str, Any] = {
        "name": study.name,
        "profile": study.profile,
        "study": study,
        "provenance": described.provenance(record),
        "gaps": bool(tables),
        "judge": judge,
        "asked": _drawn(store, answers),
        "cards": [*described.cards(store, study, tables.get("composition"))],
        "cautions": warned,
        **(_gap_section(store, study, tables, judged) if tables else {}),
        **measured,
    }
    _write_page(store, context)
    write_statement(
        store, judged, found, answers, name=study.name,
        cautions=[*warned, *context.get("doubts", ())],
        level=statistics.level,
        population=[*([PLANTED] if context.get("calibration") else []), context["measured"]]
        if tables else [],
        accuracy=[context["accuracy"]] if tables else [],
        provenance=[
            *context["cards"], context["provenance"], *context["measured_on"][:1],
            *context["asked_how"],
        ],
    )  # fmt: skip
    shown = summary_tables(found, answers, tables.get("composition"), judged)
    answer = [text for part in context["asked"] for text in part["unable"]]
    if tables:
        answer = [*context["unable"], context["verdict"], context["favourable"], *answer]
    write_model_card(
        store, study, [*shown, *context["cards"]], answer=answer, said=context["cautions"]
    )
    return found


def _judged(found: pl.DataFrame, study: Study, tables: Mapping[str, pl.DataFrame]) -> Judged:
    """Select the gaps of an OUT's estimates (schema.ESTIMATES)."""
    seeds = not tables or have_seeds(tables["runs"])
    return Judged.of(found, study.statistics.scope, has_seeds=seeds)


def _drawn(store: Store, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for part in parts:
        part["figures"] = [*part.pop("drawn")]
        write_figures(store, part["figures"], "figures/")
    return parts


def write_estimate_page(
    store: Draft,
    found: pl.DataFrame,
    paths: Sequence[str],
    *,
    level: float,
    strict: bool,
    scope: str = "widest",
    command: str = "",
    measured: MeasuredPredictions | None = None,
) -> None:
    """Write estimates.csv, .parquet and report.html of files, never in place of a study's page.

    measured: what was read of predictions, if there are any.
    """
    refuse_study(store)
    named = found.filter(~pl.col("model").is_in(["", schema.ALL]))["model"]
    names = named.unique(maintain_order=True).to_list()
    name = wording.listed(names) if len(names) < 4 else f"{len(names)} models"
    counted = "" if measured is None else f"{measured.sentence} {measured.rated.declared}".strip()
    if found.is_empty():
        name, counted = NO_ROWS, f"There are {NO_ROWS} that can be compared."
    made = described.made_from(paths, command=command)
    write_frame(store, "estimates", found, text=False)
    store.write_text("estimates.csv", csv_text(found))
    with wording.describing_class(RatedClass() if measured is None else measured.rated):
        parts = _drawn(store, parts_of(found, level=level, scope=scope))
        said = [text for part in parts for text in part["doubts"]]
        context = {
            "name": name,
            "profile": "strict" if strict else "paper",
            "asked": parts,
            "made": made,
            "counted": counted,
            "cautions": said,
            "of_table": (found["kind"] == KIND).all() and not is_of_probe(found),
        }
        _write_page(store, context)
        write_statement(
            store, Judged.of(found, scope), found, parts, name=name,
            cautions=said, level=level,
            population=_population(measured), provenance=[made],
            accuracy=[] if measured is None else [accuracies(found, measured.chance, scope)],
        )  # fmt: skip
    replace_figures(store)


def _population(measured: MeasuredPredictions | None) -> list[str]:
    """Count the predictions of files, and say what was taken as the class."""
    if measured is None:
        return []
    read = wording.counted(measured.predictions, "prediction")
    runs = f" of {measured.runs:,} runs" if measured.runs > 1 else ""
    return [f"{read}{runs}.", *filter(None, [measured.sentence])]


def _write_page(store: Store, context: Mapping[str, Any]) -> None:
    titled = {**context, "title": f"Bias report: {context['name']}"}
    store.write_text("report.html", rendered("report.html.j2", titled))


def _in_study_order(frame: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Sort models as the study lists them, mostly by size, instead of by name."""
    if "model" not in frame.columns:
        return frame
    place = {backbone.name: index for index, backbone in enumerate(study.backbones)}
    order = pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64)
    return frame.sort(order, maintain_order=True)


def _measured_on(
    store: Store, study: Study, record: Record, tables: Mapping[str, pl.DataFrame]
) -> dict[str, Any]:
    runs = _in_study_order(read_runs(store), study)
    drawn = run_figures(runs, study.methods)
    pilot, chosen = described.piloted(store, study)
    write_figures(store, drawn, "figures/")
    context: dict[str, Any] = {
        "runs": drawn,
        "used": devices_used(store),
        "options": described.options(study),
        "measured_on": [
            one for one in described.measured_on(store, study, record, runs, tables) if one.rows
        ],
        "asked_how": [one for one in (described.prompts(store, runs), pilot) if one.rows],
        "chosen": chosen,
    }
    if tables:
        context |= {
            "accuracy": accuracies(
                tables["estimates"], chance_of(tables["composition"]), study.statistics.scope
            ),
            "run_rows": described.every_run(tables["runs"]),
            "sizes": described.probe_sizes(tables["composition"], tables["estimates"]),
        }
    return context


def _runs(cells: pl.DataFrame) -> str:
    """Say how many runs a classifier has, such as `5`, or `1 to 5` where they differ."""
    runs = cells.group_by(schema.KEYS).agg(pl.col("run_id").n_unique())["run_id"]
    counts = runs.unique().sort().to_list()
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _gap_section(
    store: Store, study: Study, tables: Mapping[str, pl.DataFrame], judged: Judged
) -> dict[str, Any]:
    options = study.statistics
    estimates = sentences.own_readings(tables["estimates"])
    level, scope = options.level, options.scope
    gaps, scoped = judged.gaps, no_wider(judged.rows, scope)
    planted = None
    if store.exists("planted.json"):
        with store.reading("planted.json", "as what was planted"):
            planted = Plant.read(store.read_text("planted.json"))
    drawn = gap_forests(
        sentences.able(scoped, scoped), level=level, corrected=options.adjust != "none",
        truth=None if planted is None else truths(planted),
    )  # fmt: skip
    marks = marked_parts(
        tables["markedness"], no_wider(estimates, scope), judged.redrawn, level=level
    )
    write_figures(store, [*drawn, *(one for part in marks for one in part["figures"])], "figures/")
    rates = gaps["score"].unique().sort()
    texts = read_sentences(store, study.labels)
    write_evidence(store, texts, study.labels)
    texts = as_class(texts, study.positive)
    made = tables["cells"].filter(~pl.col("method").str.ends_with(schema.LIKELIHOOD))
    tested = gaps.filter(pl.col("survives").is_not_null())
    engines = tables.get("engines")
    withheld = estimates.filter(score=WITHHELD)
    kind = kinds[KIND]
    has_seeds, redrawn = judged.has_seeds, judged.redrawn
    return {
        "task": wording.task(),
        "favourable": wording.declared(),
        "metrics": [wording.metric(rate) for rate in rates if rate in metrics],
        "parts": _parts(estimates, judged, evidence(judged, texts), drawn),
        "further": [*tables_of(kind, estimates, scope, folded=False)][1:],
        "further_folded": [*tables_of(kind, estimates, scope, folded=True)],
        "marked_parts": marks,
        "breakdowns": breakdowns(store, tables, gap_rows(tables["estimates"])),
        # Classifiers that cannot do their task are judged all the same, as papers do.
        "unable": sentences.refusals(
            withheld.join(tested, on=schema.KEYS, how="semi", nulls_equal=True,
                          maintain_order="left"), "gap"
        ) if withheld.height else [],
        "urgent": tables["notes"].filter("urgent")["note"].to_list(),
        **_headline(judged, estimates, level),
        "measured": headline.measured(
            gaps, tables["composition"], _runs(made), has_seeds=has_seeds
        ),
        "lead": drawn[:1],
        "doubts": [*doubts(estimates, judged, texts),
                   *(engine_sentences(engines) if engines is not None else ())],
        "engines": None if engines is None else engines_table(engines),
        "calibration": calibration(planted, estimates),
        "about_planted": PLANTED,
        "meaningless": [*meaningless(estimates, gaps, options)],
        "rules": options,
        "design": designed(tables["design"], options.margin or TARGET, redrawn),
        "chosen_by": sorted(
            {str(m.select) for m in tuned_methods(study.methods) if m.keep < len(m.seeds)}
        ),
        "n_runs": _runs(tables["cells"]),
        "n_tested": gaps["significant"].count(),
        "percent": f"{100 * level:g}%",
        "alpha": f"{100 * (1 - level):g}%",
        "has_seeds": has_seeds,
        "redrawn": [
            redrawn[scope] for scope in SCOPES
            if (gaps["scope"] == scope).any() and (has_seeds or scope != "runs")
        ],
        "adjusted": options.adjust == "benjamini_hochberg",
    }  # fmt: skip


def _headline(judged: Judged, estimates: pl.DataFrame, level: float) -> dict[str, Any]:
    """State what is found, in which scopes, and which tests are corrected together."""
    return {
        "by_scope": headline.by_scope(judged),
        "verdict": headline.verdict(judged),
        "findings": headline.findings(judged),
        "families": headline.families_said(judged, estimates, level),
        "within": wording.within_families(judged.family_sizes),
    }


def _parts(
    estimates: pl.DataFrame,
    judged: Judged,
    behind: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
    drawn: Sequence[Drawn],
) -> list[dict[str, Any]]:
    gaps, kind, parts = judged.gaps, kinds[KIND], []
    usual = kind.tables[0]
    for place, (probe, attribute) in enumerate(wording.probe_order(gaps)):
        mine = estimates.filter(usual.where, probe=probe, attribute=attribute)
        groups = gaps.filter(probe=probe, attribute=attribute)
        inside = groups.filter(condition="")["group"].unique().sort().to_list()
        several = groups["model"].n_unique() > 1
        above = ("probe", "attribute", *(() if several else ["model"]))
        parts.append(
            {
                "anchor": f"gaps-{place}",
                "probe": probe,
                "attribute": attribute,
                "mean": wording.listed([wording.spaced(group) for group in inside]),
                "table": table_of(
                    kind, mine, usual, judged.scope, without=above, redrawn=judged.redrawn
                ),
                "figures": [one for one in drawn if one.name == slug("gaps", probe, attribute)],
                "evidence": behind.get((probe, attribute), ()),
                "groups": [
                    (wording.spaced(group), page_name(probe, attribute, group))
                    for group in groups["group"].unique(maintain_order=True)
                ],
            }
        )
    return parts
