"""Write OUT/report.html: one page, with nothing to load, for gaps, pairs and questions.

Tables, figures and sentences go into report.html.j2, which escapes every text. Equal files give
an equal page, byte for byte.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.measures.kind import ALL
from raybias.measures.prediction_rows import KIND, gap_rows
from raybias.methods import tuned_methods
from raybias.report import estimates, findings, summary_tables, wording
from raybias.report.cards import cards, probe_tables
from raybias.report.export import write_results
from raybias.report.figure_parts import Drawn, inlined, write_figures
from raybias.report.gap_page import gap_section
from raybias.report.judges import UNMEASURED, judge_section
from raybias.report.load_results import load_sampling, prediction_files
from raybias.report.made_from import made_from, refuse_study
from raybias.report.model_card import write_model_card
from raybias.report.rendering import rendered
from raybias.report.run_figures import described, read_schedule, run_figures, schedule_figure
from raybias.report.study_estimates import study_estimates
from raybias.report.summary_tables import endpoints
from raybias.report.tables import write_frame, write_tables
from raybias.seal import ChangedWarning, changes, digest, in_words, read_seal, write_seal
from raybias.storage import Store, drafted
from raybias.study_record import Record, read_record, read_runs
from raybias.table_files import csv_text

_RUN_COLUMNS = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stage", "steps",
    "weights_step", "stop_reason", "validation_loss", "untuned_accuracy", "validation_accuracy",
    "test_accuracy", "rank", "selected", "tied",
)  # fmt: skip

#: Of a page that is made of files alone.
_NO_STUDY: Final[Mapping[str, Any]] = {
    "study": None, "gaps": False, "judge": None, "asked": (), "cards": (),
    "cautions": (), "made": None,
}  # fmt: skip


def write_report(store: Store, study: Study) -> pl.DataFrame:
    """Write OUT/tables, OUT/figures, OUT/report.html and results.json from OUT's files.

    Parameters
    ----------
    store: the OUT folder.
    study: as it is to be judged.

    Returns what was estimated (`schema.ESTIMATES`).

    Raises
    ------
    DataError: there are no predictions, scores or answers, or files are unreadable.
    OutputError: OUT cannot be written.
    """
    sealed, changed = read_seal(store), changes(store)
    if changed:
        warnings.warn(in_words(changed), ChangedWarning, stacklevel=2)
    with drafted(store) as draft:
        found = _write_report(draft, study, [in_words(changed)] if changed else [])
        if sealed:
            kept = {name: sha for name, sha in sealed.items() if not name.startswith("tables/")}
            written = draft.written("tables/", ".parquet")
            write_seal(draft, kept | {name: digest(data) for name, data in written.items()})
        return found


def _write_report(store: Store, study: Study, doubts: Sequence[str]) -> pl.DataFrame:
    record = read_record(store) if store.exists("study.yaml") else Record(study)
    asked: pl.DataFrame | None = None
    of_answers: list[str] = []
    if study.pairs or study.questions:
        asked, of_answers = study_estimates(store, study, record)
    tables = _in_study_order(write_tables(store, study) if study.probes else {}, study)
    cautions = findings.cautions(study, record, tables)
    judge = judge_section(study, tables) if tables else None
    if judge is not None and not judge["measured"]:
        cautions = [UNMEASURED, *cautions]
    parts = [tables["estimates"]] if tables else []
    parts += [] if asked is None else [_in_study_order({"asked": asked}, study)["asked"]]
    found = pl.concat(parts)
    write_frame(store, "tables/estimates", found)
    write_results(store, study, record, found)
    answers = estimates.parts(found.filter(pl.col("kind") != KIND), level=study.statistics.level)
    context: dict[str, Any] = {
        **_titled(study.name),
        "profile": study.profile,
        "study": study,
        "record": record,
        "made": None,
        "gaps": bool(tables),
        "judge": judge,
        "asked": _drawn(store, answers),
        "cards": [*probe_tables(store, study, tables), *cards(store)],
        "cautions": [*doubts, *cautions, *of_answers],
        **(_gaps_of(store, study, tables) if tables else {}),
        **_measured_on(store, study, record, tables),
    }
    _write_page(store, context)
    shown = [one for part in context["asked"] for one in part["tables"]]
    if tables:
        shown.append(summary_tables.gaps(gap_rows(found, study.statistics.scope)))
    answer = [context["verdict"]] if tables else []
    answer += [text for part in context["asked"] for text in part["unable"]]
    write_model_card(
        store,
        study,
        [*shown, *context["cards"]],
        answer=[*context.get("unable", ()), *answer],
        said=context["cautions"],
    )
    return found


def _drawn(store: Store, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the figures of estimates, and put them into the page's parts."""
    for place, part in enumerate(parts):
        figures = [*part.pop("drawn")]
        write_figures(store, figures)
        part["figures"] = inlined(figures, f"e{place}")
    return parts


def _gaps_of(store: Store, study: Study, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    chosen = {str(m.select) for m in tuned_methods(study.methods) if m.keep < len(m.seeds)}
    section = gap_section(store, study.statistics, tables, prediction_files(store))
    return {**section, "chosen_by": sorted(chosen)}


def write_estimate_page(
    store: Store,
    found: pl.DataFrame,
    paths: Sequence[str],
    *,
    level: float,
    strict: bool,
    scope: str = "widest",
    command: str = "",
) -> None:
    """Write estimates.csv, estimates.parquet and report.html of files of answers.

    Parameters
    ----------
    found: schema.ESTIMATES.
    paths: the files that answers were read from, and folders of them.
    level: of the intervals.
    strict: whether the rules were the strict ones.
    scope: of the tables.
    command: that wrote this.

    Raises
    ------
    OutputError: the folder holds a study, or cannot be written.
    """
    refuse_study(store)
    models = found.filter(~pl.col("model").is_in(["", ALL]))["model"].unique(maintain_order=True)
    names = models.to_list()
    context = {
        **_NO_STUDY,
        **_titled(wording.listed(names) if len(names) < 4 else f"{len(names)} models"),
        "profile": "strict" if strict else "paper",
        "asked": _drawn(store, estimates.parts(found, level=level, scope=scope)),
        "made": made_from(paths, command=command),
    }
    write_frame(store, "estimates", found, text=False)
    store.write_text("estimates.csv", csv_text(found))
    _write_page(store, context)


def _titled(name: str) -> dict[str, str]:
    return {"name": name, "title": f"Bias report: {name}"}


def _write_page(store: Store, context: Mapping[str, Any]) -> None:
    store.write_text("report.html", rendered("report.html.j2", context))


def _in_study_order(tables: Mapping[str, pl.DataFrame], study: Study) -> dict[str, pl.DataFrame]:
    """Sort models as the study lists them, mostly by size, instead of by name."""
    place = {backbone.name: index for index, backbone in enumerate(study.backbones)}
    order = pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64)
    return {
        name: frame.sort(order, maintain_order=True) if "model" in frame.columns else frame
        for name, frame in tables.items()
    }


def _measured_on(
    store: Store, study: Study, record: Record, tables: Mapping[str, pl.DataFrame]
) -> dict[str, Any]:
    runs = _in_study_order({"runs": read_runs(store)}, study)["runs"]
    figures = run_figures(runs, study.methods).values()
    write_figures(store, figures)
    context: dict[str, Any] = {
        "runs": inlined(figures, "r"),
        "schedule": (),
        "options": summary_tables.options(study),
        "measured_on": [summary_tables.backbones(study, runs, record)],
    }
    if (asked := endpoints(store, study)).rows:
        context["measured_on"].append(asked)
    if schedule := read_schedule(store):
        title = f"{study.name}: which devices held which backbone"
        drawn = Drawn("schedule", title, schedule_figure(schedule, title))
        write_figures(store, [drawn])
        context |= {"schedule": inlined([drawn], "w"), "used": described(schedule)}
    if tables:
        more = (
            summary_tables.training(study, runs),
            summary_tables.prompting(study, load_sampling(store, runs)),
            summary_tables.answers(tables["answers"]),
        )
        context["measured_on"] += [one for one in more if one.rows]
        chance = findings.chance_levels(tables["composition"])
        context |= {
            "accuracy": summary_tables.accuracies(tables["estimates"], chance),
            "run_rows": summary_tables.plain("Every run", tables["runs"].select(_RUN_COLUMNS)),
            "sizes": summary_tables.probe_sizes(
                tables["composition"], gap_rows(tables["estimates"], study.statistics.scope)
            ),
        }
    return context
