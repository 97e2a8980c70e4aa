"""Tables for people and programs: OUT/predictions and OUT/runs.parquet -> OUT/tables.

Each table is written as Parquet (full precision, typed), CSV (the public contract)
and Markdown (to read). It decides nothing: the numbers are those of `raybias.stats`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from raybias import stats
from raybias.config import Study
from raybias.measures.entries.predictions import estimates_of
from raybias.report.design import study_costs
from raybias.report.judges import judged_methods, read_labels
from raybias.report.outs import count_predictions
from raybias.report.table import write_frame
from raybias.stats.design import TARGET
from raybias.storage import Store
from raybias.study_record import read_runs

#: Tables for programs alone; they have a row per run or template.
_PARQUET_ONLY: Final = ("cells", "by_template")
_RUN_TABLE: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window", "stage",
    "steps", "weights_step", "stop_reason", "validation_loss", "untuned_accuracy",
    "validation_accuracy", "test_accuracy", "rank", "selected", "tied", "tokens", "seconds",
    "run_id", "adapter",
)  # fmt: skip


def write_tables(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Compute a study's tables from its predictions, and write OUT/tables but for `estimates`.

    Parameters
    ----------
    store: the OUT folder.
    study: its statistics and reference groups are used.

    Returns
    -------
    `estimates` (schema.ESTIMATES, of predictions); of `raybias.stats`: `components`,
    `composition`, `answers`, `markedness`, `by_term`, `by_template` and `cells` (both Parquet
    only), `design` (schema.DESIGN); and `runs` (one row per seed), `judged` (of
    `stats.corrected_gaps`) where a judge labelled texts, `coverage` (predictions asked for and
    found per run) and `notes` (the warnings of the statistics, and whether each is `urgent`).

    Raises
    ------
    DataError: there are no predictions, files are unreadable, or an item is not the same in all
        runs.
    ConfigError: reference groups that the predictions do not have.
    OutputError: OUT cannot be written.
    """
    options, rules = study.statistics, rules_of(study)
    tables: dict[str, pl.DataFrame] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts, coverage = count_predictions(store, options.metrics)
        found = stats.gap_analysis(counts, rules)
        estimates = estimates_of(found)
        if judged_methods(study):
            tables["judged"] = stats.corrected_gaps(found, read_labels(store))
    cells = counts.cells.cast({pl.Categorical: pl.String})
    sizes = stats.composition(counts.cells)
    costs = study_costs(store, study, int(sizes["items"].sum()))
    tables |= {
        "components": found.components,
        "composition": sizes,
        "answers": counts.answers,
        "markedness": found.marked,
        "by_term": found.of_terms,
        "by_template": stats.by_template(cells, found.inside, options.metrics),
        "notes": _notes(caught),
        "design": stats.design(
            found.components, found.gaps, costs, target=options.margin or TARGET,
            scope=options.scope, level=options.level,
        ),
        "runs": read_runs(store).select(_RUN_TABLE),
        "coverage": coverage,
        "cells": cells,
    }  # fmt: skip
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame, text=name not in _PARQUET_ONLY)
    return {"estimates": estimates, **tables}


def rules_of(study: Study) -> stats.GapRules:
    """Return the rules by which a study's gaps are taken and judged."""
    return stats.GapRules(
        study.statistics,
        {probe.name: probe.reference_groups for probe in study.probes},
        judged=frozenset(judged_methods(study)),
    )


def _notes(caught: Sequence[warnings.WarningMessage]) -> pl.DataFrame:
    """Make a table of what the statistics warned about, once each, the urgent first."""
    said = {str(each.message): issubclass(each.category, stats.UnevenRuns) for each in caught}
    rows = sorted(said.items(), key=lambda row: not row[1])
    return pl.DataFrame(rows, {"note": pl.String, "urgent": pl.Boolean}, orient="row")


def read_notes(store: Store) -> list[str]:
    """Read what the statistics of OUT/tables warned about, the urgent first."""
    notes = store.read_table("tables/notes.parquet", schema=pa.schema([("note", pa.string())]))
    return [str(note) for note in pl.DataFrame(notes)["note"]]
