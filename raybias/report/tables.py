"""Tables for people and programs: OUT/predictions and OUT/runs.parquet -> OUT/tables.

Each table is written as Parquet (full precision, typed), CSV (the public contract)
and Markdown (to read). It decides nothing: the numbers are those of `raybias.stats`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import polars as pl
from tabulate import tabulate

from raybias import schema, stats
from raybias.config import Study
from raybias.report import findings, words
from raybias.report.source import as_frame, count_predictions, load_corpus, load_runs
from raybias.storage import Store

#: Tables for programs alone; they have a row per run or template.
_PARQUET_ONLY: Final = ("cells", "by_template")
_NO_CORPUS: Final = stats.marked_rates(pl.DataFrame(schema=pl.Schema(schema.CORPUS)), where="")
_RUN_TABLE: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window", "stage",
    "steps", "weights_step", "stop_reason", "validation_loss", "validation_accuracy",
    "test_accuracy", "rank", "selected", "tied", "tokens", "seconds", "run_id", "adapter",
)  # fmt: skip


def write_tables(store: Store, study: Study) -> dict[str, pl.DataFrame]:
    """Compute a study's tables from its predictions and write OUT/tables.

    Parameters
    ----------
    store: the OUT folder.
    study: resolved; its statistics and reference groups are used.

    Returns
    -------
    Of `raybias.stats`: `gaps` (schema.GAPS), `accuracy` (schema.ACCURACY), `net_significance`,
    `spans`, `spans_mean`, `extremes`, `composition`, `answers` (schema.ANSWERS), `markedness`
    (schema.MARKEDNESS), `by_term`, `by_template` and `cells` (both Parquet only), `corpus` and
    `corpus_rates` (empty without OUT/corpus.parquet); and `runs` (one row per seed),
    `coverage` (predictions asked for and found per run) and `notes` (what the statistics
    warned about).

    Raises
    ------
    DataError: there are no predictions, or files are unreadable.
    ConfigError: reference groups that the predictions do not have.
    OutputError: OUT cannot be written.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        counts, coverage = count_predictions(store)
        gaps = _gaps(counts, study)
    notes = list(dict.fromkeys(str(warning.message) for warning in caught))
    tables = {
        **_summaries(counts, gaps),
        **_breakdowns(counts, gaps, study),
        "runs": load_runs(store).select(_RUN_TABLE),
        "coverage": coverage,
        "notes": pl.DataFrame({"note": notes}, {"note": pl.String}),
        "cells": counts.cells,
    }
    rates = load_corpus(store)
    known = rates if rates is not None else _NO_CORPUS
    tables["corpus_rates"] = known
    options = study.statistics
    tables["corpus"] = stats.corpus_correlations(
        known, gaps, tables["markedness"], level=options.level, seed=options.bootstrap_seed
    )
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame, text=name not in _PARQUET_ONLY)
    return tables


def _summaries(counts: stats.Counts, gaps: pl.DataFrame) -> dict[str, pl.DataFrame]:
    spans = stats.spans(gaps)
    return {
        "gaps": gaps,
        "accuracy": stats.accuracies(counts.cells),
        "net_significance": stats.net_significance(gaps),
        "spans": spans,
        "spans_mean": stats.spans_mean(spans),
        "extremes": stats.extremes(gaps),
        "composition": stats.composition(counts.cells),
        "answers": counts.answers,
    }


def _breakdowns(counts: stats.Counts, gaps: pl.DataFrame, study: Study) -> dict[str, pl.DataFrame]:
    members = stats.members(gaps)
    rates = stats.rates(stats.without_extras(counts.cells))
    options = study.statistics
    interval, level, adjust = options.interval or "t", options.level, options.adjust or "none"
    withheld = stats.unreadable(counts.answers)
    return {
        "markedness": stats.markedness(
            counts.cells, members, interval=interval, level=level, adjust=adjust, withheld=withheld
        ),
        "by_term": stats.by_term(
            counts.terms,
            rates,
            members,
            interval=interval,
            level=level,
            adjust=adjust,
            withheld=withheld,
        ),
        "by_template": stats.by_template(counts.cells, members),
    }


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
        store.write_text(f"{name}.csv", frame.write_csv())
        store.write_text(f"{name}.md", markdown(frame))


def markdown(frame: pl.DataFrame) -> str:
    """A Markdown table of a frame: numbers to four digits, missing cells empty."""
    rows = [[_cell(value) for value in row] for row in frame.iter_rows()]
    table = tabulate(rows, headers=frame.columns, tablefmt="pipe", disable_numparse=True)
    return table + "\n"


def gap_table(gaps: pl.DataFrame) -> str:
    """The gaps with their intervals as a plain-text table.

    Parameters
    ----------
    gaps: schema.GAPS.
    """
    keys = words.naming_keys(gaps)
    probes = ["probe"] if gaps["probe"].n_unique() > 1 else []
    columns = [*probes, *keys, "attribute", "group", "rate"]
    rows = [
        [
            *(row[key] for key in columns),
            words.signed(row["gap"]),
            words.span(row["low"], row["high"]),
            row["n_runs"],
            words.verdict(row),
        ]
        for row in gaps.iter_rows(named=True)
    ]
    levels = f"interval ({words.listed(gaps['interval'].unique(maintain_order=True).to_list())})"
    headers = [*columns, "gap", levels, "runs", "verdict"]
    return tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)


def no_gaps() -> pl.DataFrame:
    """schema.GAPS without a row, for a study that reads pairs alone."""
    return as_frame(schema.GAPS.empty_table())


def print_gap_table(gaps: pl.DataFrame, *, file: TextIO | None = None) -> None:
    """Print `gap_table` and the headline under it, to standard output."""
    print(f"{gap_table(gaps)}\n\n{findings.headline(gaps)}", file=file or sys.stdout)


def _gaps(counts: stats.Counts, study: Study) -> pl.DataFrame:
    cells, options = counts.cells, study.statistics
    withheld = stats.unreadable(counts.answers)

    def judged(part: pl.DataFrame, reference: Mapping[str, Sequence[str]]) -> pl.DataFrame:
        return stats.gaps(
            part,
            reference_groups=reference or None,
            interval=options.interval or "t",
            level=options.level,
            adjust=options.adjust or "none",
            draws=options.bootstrap_draws,
            seed=options.bootstrap_seed,
            withheld=withheld,
        )

    listed = {probe.name: probe.reference_groups for probe in study.probes}
    used: dict[str, dict[str, tuple[str, ...] | None]] = {}
    for probe, attribute in cells.select("probe", "attribute").unique().sort("probe").iter_rows():
        used.setdefault(attribute, {})[probe] = listed.get(probe, {}).get(attribute)
    if all(len(set(choices.values())) == 1 for choices in used.values()):
        chosen = {name: next(iter(choices.values())) for name, choices in used.items()}
        return judged(cells, {name: groups for name, groups in chosen.items() if groups})
    warnings.warn(
        "The probes take the gaps of one attribute from different groups: each probe is judged "
        "apart, with its own correction for many tests.",
        stats.StatisticsWarning,
        stacklevel=2,
    )
    parts = [judged(part, listed.get(name, {})) for name, part in _by_probe(cells)]
    return pl.concat(parts)


def _by_probe(cells: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    names = cells["probe"].unique().sort().to_list()
    return [(name, cells.filter(pl.col("probe") == name)) for name in names]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
