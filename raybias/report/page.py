"""OUT/report.html: one page, with nothing to load, that a person can read and print.

It puts tables, figures and sentences made elsewhere into report.html.j2, which
escapes every text. Equal files give an equal page, byte for byte. A study has gaps,
pairs, or both; what it has not is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from raybias.config import Study
from raybias.report import findings, summary_tables
from raybias.report.export import write_results
from raybias.report.gap_page import gap_section, inlined
from raybias.report.load_results import load_runs, load_sampling
from raybias.report.pair_page import PairSection
from raybias.report.pairs import PairRules, StudyPairs, read_study_pairs, write_pairs
from raybias.report.run_figures import run_figures
from raybias.report.tables import no_gaps, write_tables
from raybias.storage import Store
from raybias.study_record import Record, read_record

_RUN_COLUMNS = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stage", "steps",
    "weights_step", "stop_reason", "validation_loss", "validation_accuracy", "test_accuracy",
    "rank", "selected", "tied",
)  # fmt: skip


def write_report(store: Store, study: Study) -> pl.DataFrame:
    """Write OUT/tables, OUT/figures and OUT/report.html from OUT's files, and results.json of gaps.

    Parameters
    ----------
    store: the OUT folder.
    study: as it is to be judged.

    Returns the gaps (`schema.GAPS`), none where the study reads pairs alone.

    Raises
    ------
    DataError: there are no predictions or scores, or files are unreadable.
    OutputError: OUT cannot be written.
    """
    record = read_record(store) if store.exists("study.yaml") else Record(study)
    pairs = read_study_pairs(store, study, record) if study.pairs else None
    written = write_tables(store, study) if study.probes else {}
    tables = {name: _in_study_order(frame, study) for name, frame in written.items()}
    context = {
        "title": study.name,
        "profile": study.profile,
        "study": study,
        "record": record,
        "gaps": bool(tables),
        "pairs": pairs and _pairs(store, study, pairs),
        "cautions": [
            *findings.cautions(study, record, tables),
            *(pairs.cautions if pairs else ()),
        ],
        **(gap_section(store, study, tables) if tables else {}),
        **_measured_on(store, study, record, tables),
    }
    if tables:
        write_results(store, study, record, tables)
    _write_page(store, context)
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
        "title": "Pairs of sentences" + (" under styles" if section.styles else ""),
        "profile": "strict" if rules.strict else "paper",
        "study": None,
        "gaps": False,
        "pairs": section,
        "cautions": (),
    }
    _write_page(store, context)


def _write_page(store: Store, context: Mapping[str, Any]) -> None:
    environment = Environment(
        loader=PackageLoader("raybias.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    store.write_text("report.html", environment.get_template("report.html.j2").render(context))


def _pairs(store: Store, study: Study, pairs: StudyPairs) -> PairSection | None:
    tables = {name: _in_study_order(frame, study) for name, frame in pairs.tables.items()}
    return write_pairs(store, tables, pairs.rules, folder="tables/")


def _in_study_order(frame: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Models as the study lists them, mostly by size, instead of by name."""
    if "model" not in frame.columns:
        return frame
    place = {backbone.name: index for index, backbone in enumerate(study.backbones)}
    order = pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64)
    return frame.sort(order, maintain_order=True)


def _measured_on(
    store: Store, study: Study, record: Record, tables: Mapping[str, pl.DataFrame]
) -> dict[str, Any]:
    runs = _in_study_order(load_runs(store), study)
    drawn = run_figures(runs, study.methods)
    for figure in drawn.values():
        store.write_text(f"figures/{figure.name}.svg", figure.svg)
    found = [summary_tables.backbones(study, runs, record)]
    context: dict[str, Any] = {
        "runs": inlined(drawn, "r"),
        "options": summary_tables.options(study),
        "measured_on": found,
    }
    if tables:
        sampling = load_sampling(store, runs)
        found.append(summary_tables.training(study, runs))
        found.append(summary_tables.prompting(study, [b.name for b in study.backbones], sampling))
        found.append(summary_tables.answers(tables["answers"]))
        chance = findings.chance_levels(tables["composition"])
        context |= {
            "accuracy": summary_tables.accuracy_rows(tables["accuracy"], chance),
            "run_rows": summary_tables.plain("Every run", tables["runs"].select(_RUN_COLUMNS)),
            "sizes": summary_tables.probe_sizes(tables["composition"], tables["gaps"]),
        }
    context["measured_on"] = [each for each in found if each.rows]
    return context
