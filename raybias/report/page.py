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
from raybias.errors import OutputError
from raybias.measures.prediction_rows import KIND
from raybias.report import cautions, described, estimates, wording
from raybias.report.export import write_model_card, write_results
from raybias.report.files import estimates_of_study
from raybias.report.gaps import gap_section
from raybias.report.judges import UNMEASURED, judge_section
from raybias.report.rendering import rendered, write_figures
from raybias.report.run_figures import read_schedule, run_figures, schedule_figure
from raybias.report.table import write_frame
from raybias.report.tables import write_tables
from raybias.schema import ALL
from raybias.seal import ChangedWarning, changes, digest, in_words, read_seal, write_seal
from raybias.storage import Store, drafted
from raybias.study_record import Record, read_record, read_runs
from raybias.table_files import csv_text

#: Of a page that is made of files alone.
_NO_STUDY: Final[Mapping[str, Any]] = {
    "study": None, "gaps": False, "judge": None, "cards": (), "cautions": (),
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
    judge = judge_section(study, tables) if tables else None
    warned = [*doubts]
    if judge is not None and not judge["measured"]:
        warned.append(UNMEASURED)
    warned += [*cautions.of_study(study, record, tables), *about_answers]
    answers = estimates.parts(found.filter(pl.col("kind") != KIND), level=statistics.level)
    composition = tables.get("composition")
    context: dict[str, Any] = {
        "name": study.name,
        "profile": study.profile,
        "study": study,
        "record": record,
        "gaps": bool(tables),
        "judge": judge,
        "asked": _drawn(store, answers),
        "cards": [*described.cards(store, study, composition)],
        "cautions": warned,
        **(gap_section(store, study, tables) if tables else {}),
        **_measured_on(store, study, record, tables),
    }
    _write_page(store, context)
    shown = [one for part in context["asked"] for one in part["tables"]]
    answer = [text for part in context["asked"] for text in part["unable"]]
    if tables:
        shown += [context["accuracy"], estimates.gaps_table(found, statistics.scope)]
        answer = [*context["unable"], context["verdict"], *answer]
    write_model_card(
        store, study, [*shown, *context["cards"]], answer=answer, said=context["cautions"]
    )
    return found


def _drawn(store: Store, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw the figures of estimates, and write them to the folder of figures."""
    for part in parts:
        part["figures"] = [*part.pop("drawn")]
        write_figures(store, part["figures"], "figures/")
    return parts


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
    if store.exists("study.yaml"):
        raise OutputError(
            "holds a study, whose report.html this would replace",
            where=store.uri,
            cure="give another --out, or use `raybias report`",
        )
    models = found.filter(~pl.col("model").is_in(["", ALL]))["model"].unique(maintain_order=True)
    names = models.to_list()
    context = {
        **_NO_STUDY,
        "name": wording.listed(names) if len(names) < 4 else f"{len(names)} models",
        "profile": "strict" if strict else "paper",
        "asked": _drawn(store, estimates.parts(found, level=level, scope=scope)),
        "made": described.made_from(paths, command=command),
    }
    write_frame(store, "estimates", found, text=False)
    store.write_text("estimates.csv", csv_text(found))
    _write_page(store, context)


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
    """Describe what was measured on, and draw how it was tuned and what devices did."""
    runs = _in_study_order(read_runs(store), study)
    drawn = run_figures(runs, study.methods)
    context: dict[str, Any] = {
        "runs": [*drawn],
        "schedule": (),
        "options": described.options(study),
        "measured_on": [
            one
            for one in described.measured_on(store, study, record, runs, tables.get("answers"))
            if one.rows
        ],
    }
    # Of one device there is nothing to see.
    if (schedule := read_schedule(store)) and schedule.devices > 1:
        title = f"{study.name}: which devices held which backbone"
        drawn.append(schedule_figure(schedule, title))
        context |= {"schedule": drawn[-1:], "used": str(schedule)}
    write_figures(store, drawn, "figures/")
    if tables:
        context |= {
            "accuracy": described.accuracies(tables["estimates"], tables["composition"]),
            "run_rows": described.every_run(tables["runs"]),
            "sizes": described.probe_sizes(tables["composition"], tables["estimates"]),
        }
    return context
