"""Tables for people and programs: OUT/predictions and OUT/runs.parquet -> OUT/tables.

Each table is written as Parquet (full precision, typed), CSV (the public contract)
and Markdown (to read). It decides nothing: the numbers are those of `raybias.stats`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa
from tabulate import tabulate

from raybias import schema, stats
from raybias.config import Statistics, Study
from raybias.report import findings, summary_tables
from raybias.report.design import study_costs
from raybias.report.judge_labels import judged_methods, read_labels
from raybias.report.load_results import as_frame, count_predictions, load_corpus
from raybias.report.verdict import verdict
from raybias.stats.design import TARGET, Costs
from raybias.storage import Store
from raybias.study_record import read_runs
from raybias.table_files import csv_text

#: Tables for programs alone; they have a row per run or template.
_PARQUET_ONLY: Final = ("cells", "by_template")
_NO_CORPUS: Final = stats.marked_rates(pl.DataFrame(schema=pl.Schema(schema.CORPUS)), where="")
_RUN_TABLE: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window", "stage",
    "steps", "weights_step", "stop_reason", "validation_loss", "untuned_accuracy",
    "validation_accuracy", "test_accuracy", "rank", "selected", "tied", "tokens", "seconds",
    "run_id", "adapter",
)  # fmt: skip


def write_tables(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Compute a study's tables from its predictions and write OUT/tables.

    Parameters
    ----------
    store: the OUT folder.
    study: its statistics and reference groups are used.

    Returns
    -------
    Of `raybias.stats`: those of `judged_tables`, `design` (schema.DESIGN), `by_template` and
    `cells` (both Parquet only), `corpus` and `corpus_rates` (empty without OUT/corpus.parquet); and
    `runs` (one row per seed), `judged` (schema.JUDGED) where a judge labelled texts,
    `coverage` (predictions asked for and found per run) and `notes` (what the statistics
    warned about, and whether that is `urgent`: to be read before any number).

    Raises
    ------
    DataError: there are no predictions, files are unreadable, or an item is not the same in all
        runs.
    ConfigError: reference groups that the predictions do not have.
    OutputError: OUT cannot be written.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts, coverage = count_predictions(store, study.statistics.metrics)
        tables = stats.judged_tables(counts, rules_of(study))
        if judged_methods(study):
            analysis = stats.gap_analysis(counts, rules_of(study))
            tables["judged"] = stats.corrected_gaps(analysis, read_labels(store))
    tables |= further_tables(
        tables,
        counts,
        study.statistics,
        costs=study_costs(store, study, int(tables["composition"]["items"].sum())),
        corpus=load_corpus(store),
        caught=caught,
    )
    tables |= {
        "runs": read_runs(store).select(_RUN_TABLE),
        "coverage": coverage,
        "cells": counts.cells.cast({pl.Categorical: pl.String}),
    }
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame, text=name not in _PARQUET_ONLY)
    return tables


def further_tables(
    tables: Mapping[str, pl.DataFrame],
    counts: stats.Counts,
    options: Statistics,
    *,
    costs: Costs,
    corpus: pl.DataFrame | None = None,
    caught: Sequence[warnings.WarningMessage] = (),
) -> dict[str, pl.DataFrame]:
    """Compute what a page shows beside `stats.judged_tables`: of templates, words and plans.

    Parameters
    ----------
    tables: of `stats.judged_tables`.
    corpus: of `stats.marked_rates`.
    caught: what the statistics warned about.
    """
    known = corpus if corpus is not None else _NO_CORPUS
    cells = counts.cells.cast({pl.Categorical: pl.String})
    return {
        "by_template": stats.by_template(cells, stats.members(tables["gaps"]), options.metrics),
        "notes": _notes(caught),
        "corpus_rates": known,
        "design": stats.design(
            tables["components"],
            tables["gaps"],
            costs,
            target=options.margin or TARGET,
            scope=options.scope,
            level=options.level,
        ),
        "corpus": stats.corpus_correlations(
            known,
            tables["gaps"],
            tables["markedness"],
            level=options.level,
            seed=options.bootstrap_seed,
        ),
    }


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


def write_frame(
    store: Store,
    name: str,
    frame: pl.DataFrame,
    *,
    text: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write `name`.parquet and, unless `text` is false, `name`.csv and `name`.md.

    Missing values are empty in CSV and Markdown; NaN counts as missing. `metadata` goes into the
    Parquet file's schema.
    """
    floats = [column for column, dtype in frame.schema.items() if dtype.is_float()]
    frame = frame.with_columns(pl.col(floats).fill_nan(None))
    store.write_table(f"{name}.parquet", frame.to_arrow().replace_schema_metadata(metadata))
    if text:
        store.write_text(f"{name}.csv", csv_text(frame))
        store.write_text(f"{name}.md", markdown(frame))


def read_notes(store: Store) -> list[str]:
    """Read what the statistics of OUT/tables warned about, the urgent first."""
    notes = store.read_table("tables/notes.parquet", schema=pa.schema([("note", pa.string())]))
    return [str(note) for note in as_frame(notes)["note"]]


def markdown(frame: pl.DataFrame) -> str:
    """Format a frame as a Markdown table: numbers to four digits, missing cells empty."""
    rows = [[_cell(value) for value in row] for row in frame.iter_rows()]
    table = tabulate(
        rows, headers=[*map(_cell, frame.columns)], tablefmt="pipe", disable_numparse=True
    )
    return table + "\n"


def gap_table(gaps: pl.DataFrame) -> str:
    """Format the gaps with their intervals as a plain-text table.

    Parameters
    ----------
    gaps: schema.GAPS.
    """
    return str(summary_tables.gaps(gaps))


def no_gaps() -> pl.DataFrame:
    """schema.GAPS without a row, for a study without `probes`."""
    return as_frame(schema.GAPS.empty_table())


def print_gap_table(tables: Mapping[str, pl.DataFrame]) -> None:
    """Print `gap_table`, the verdict, how many gaps are significant by scope, and the headline.

    Parameters
    ----------
    tables: `gaps`, `scopes` and `components`.
    """
    scopes = findings.by_scope(tables["scopes"], tables["components"])
    said = findings.by_the_rules(tables["gaps"])
    answer = [text for text in (verdict(tables["gaps"]), scopes, said) if text]
    print(gap_table(tables["gaps"]), "", *answer, sep="\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return summary_tables.markdown_text(str(value))
