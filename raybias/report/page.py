"""Write OUT/report.html: one page, with nothing to load, for gaps, pairs and questions.

Tables, figures and sentences go into report.html.j2, which escapes every text. Equal files give
an equal page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from raybias.config import Study
from raybias.providers.ledger import read_asked
from raybias.report import findings, summary_tables
from raybias.report.card_section import cards
from raybias.report.export import write_results
from raybias.report.figure_parts import Drawn, inlined, write_figures
from raybias.report.gap_page import gap_section
from raybias.report.load_results import load_sampling
from raybias.report.model_card import write_model_card
from raybias.report.pair_page import write_pairs
from raybias.report.pair_tables import PairRules, read_study_pairs
from raybias.report.question_page import question_tables, write_questions
from raybias.report.run_figures import run_figures
from raybias.report.schedule_figure import described, read_schedule, schedule_figure
from raybias.report.tables import no_gaps, write_tables
from raybias.storage import Store, drafted
from raybias.study_record import Record, read_record, read_runs

_RUN_COLUMNS = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stage", "steps",
    "weights_step", "stop_reason", "validation_loss", "validation_accuracy", "test_accuracy",
    "rank", "selected", "tied",
)  # fmt: skip


def write_report(store: Store, study: Study) -> pl.DataFrame:
    """Write OUT/tables, OUT/figures, OUT/report.html and results.json from OUT's files.

    Parameters
    ----------
    store: the OUT folder.
    study: as it is to be judged.

    Returns the gaps (`schema.GAPS`), none where the study reads no `probes`.

    Raises
    ------
    DataError: there are no predictions, scores or answers, or files are unreadable.
    OutputError: OUT cannot be written.
    """
    with drafted(store) as draft:
        return _write_report(draft, study)


def _write_report(store: Store, study: Study) -> pl.DataFrame:
    record = read_record(store) if store.exists("study.yaml") else Record(study)
    pairs = read_study_pairs(store, study, record) if study.pairs else None
    asked, doubts = question_tables(store, study) if study.questions else ({}, [])
    written = write_tables(store, study) if study.probes else {}
    tables = _in_study_order(written, study)
    section, cautions = None, findings.cautions(study, record, tables)
    if pairs is not None:
        of_pairs, rules, more = pairs
        section = write_pairs(store, _in_study_order(of_pairs, study), rules, folder="tables/")
        cautions += more
    context: dict[str, Any] = {
        "title": study.name,
        "profile": study.profile,
        "study": study,
        "record": record,
        "gaps": bool(tables),
        "pairs": section,
        "asked": write_questions(store, _in_study_order(asked, study)),
        "cards": cards(store),
        "cautions": [*cautions, *doubts],
        **(gap_section(store, study, tables) if tables else {}),
        **_measured_on(store, study, record, tables),
    }
    if tables or asked:
        write_results(store, study, record, {**tables, **asked})
    _write_page(store, context)
    shown = [part["table"] for part in context["asked"]]
    shown += [summary_tables.gaps(tables["gaps"])] if tables else []
    write_model_card(store, study, [*shown, *context["cards"]], context["cautions"])
    return written["gaps"] if written else no_gaps()


def write_pair_page(store: Store, tables: Mapping[str, pl.DataFrame], rules: PairRules) -> None:
    """Write tables, figures and report.html of score files; of printed tables there is no page.

    Parameters
    ----------
    tables: of `pair_tables`, by the same rules.

    Raises
    ------
    OutputError: the store cannot be written.
    """
    section = write_pairs(store, tables, rules)
    if section is None:
        return
    context = {
        "title": "Pairs of sentences" + (" under styles" if section["styles"] else ""),
        "profile": "strict" if rules.strict else "paper",
        "study": None,
        "gaps": False,
        "pairs": section,
        "asked": (),
        "cards": (),
        "cautions": (),
    }
    _write_page(store, context)


def _write_page(store: Store, context: Mapping[str, Any]) -> None:
    store.write_text("report.html", rendered("report.html.j2", context))


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Fill a template of this folder; every text is escaped, and a missing one is an error."""
    environment = Environment(
        loader=PackageLoader("raybias.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(context)


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
    asked = {each.name: read_asked(store, each.name) for each in study.backbones}
    if (endpoints := summary_tables.endpoints(study, asked)).rows:
        context["measured_on"].append(endpoints)
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
            "accuracy": summary_tables.accuracies(tables["accuracy"], chance),
            "run_rows": summary_tables.plain("Every run", tables["runs"].select(_RUN_COLUMNS)),
            "sizes": summary_tables.probe_sizes(tables["composition"], tables["gaps"]),
        }
    return context
