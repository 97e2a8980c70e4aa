"""Compute OUT/tables as Parquet (full precision), CSV (the public contract) and Markdown."""

from __future__ import annotations

import warnings
from typing import Final

import polars as pl

from raybias import schema, stats
from raybias.config import Study
from raybias.errors import DataError
from raybias.measures.entries.predictions import estimates_of
from raybias.report.design import study_costs
from raybias.report.judges import judged_methods, read_labels
from raybias.report.outs import prediction_files, read_items
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

    `judged` is there where a judge labelled texts; `coverage` counts predictions asked for and
    found per run, and `notes` has the warnings of the statistics, and whether each is `urgent`.

    Raises
    ------
    DataError: no predictions, an unreadable file, or an item that is not the same in all runs.
    ConfigError: reference groups that the predictions do not have.
    """
    options, rules = study.statistics, rules_of(study)
    files = prediction_files(store)
    if not files:
        raise DataError(
            "holds no predictions", where=store.uri, cure="finish the study with `raybias run`"
        )
    tables: dict[str, pl.DataFrame] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts = stats.count_files(
            files, where=store.uri, metrics=options.metrics, unfinished="count"
        )
        found = stats.gap_analysis(counts, rules)
        estimates = estimates_of(found)
        if judged_methods(study):
            tables["judged"] = stats.corrected_gaps(found, read_labels(store))
    said = {str(each.message): issubclass(each.category, stats.UnevenRuns) for each in caught}
    notes = sorted(said.items(), key=lambda note: not note[1])
    cells = counts.cells.cast({pl.Categorical: pl.String})
    sizes = stats.composition(counts.cells)
    asked = {
        probe: read_items(store, [probe], "item_id").height
        for probe in counts.coverage["probe"].unique()
        if store.exists(f"items/{probe}.parquet")
    }
    items = pl.col("probe").replace_strict(asked, default=None, return_dtype=pl.Int64)
    costs = study_costs(store, study, int(sizes["items"].sum()))
    tables |= {
        "components": found.components,
        "composition": sizes,
        "answers": counts.answers,
        "markedness": found.marked,
        "by_term": found.of_terms,
        "by_template": stats.by_template(cells, found.inside, options.metrics),
        "notes": pl.DataFrame(notes, {"note": pl.String, "urgent": pl.Boolean}, orient="row"),
        "design": stats.design(
            found.components, found.gaps, costs, target=options.margin or TARGET,
            scope=options.scope, level=options.level,
        ),
        "runs": read_runs(store).select(_RUN_TABLE),
        "coverage": counts.coverage.select(
            *schema.KEYS, "run_id", "predictions", "repeated", "unparsed", items=items
        ),
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
