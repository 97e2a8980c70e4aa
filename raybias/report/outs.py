"""Load what a finished OUT holds: its predictions as counts, and what was planted.

Everything is read through `Store`, so that any file system works. It knows neither how runs
were made nor how gaps are judged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from raybias import schema, stats
from raybias.config import Profile, Study
from raybias.errors import DataError
from raybias.probes.published.planted import Plant
from raybias.storage import Store

_RUN: Final = (*schema.KEYS, "run_id")


def restated(study: Study, profile: Profile) -> Study:
    """Give a study the statistics of another profile; how runs were tuned stays as it was."""
    statistics = study.statistics.restated(profile)
    return study.model_copy(update={"profile": profile, "statistics": statistics})


def as_reported(store: Store, study: Study) -> Study:
    """Give a study the statistics that its tables were last written with (`report --profile`).

    Raises
    ------
    DataError: OUT/results.json is none.
    """
    if not store.exists("results.json"):
        return study
    with store.reading("results.json", "as results"):
        profile = json.loads(store.read_text("results.json"))["config"]["profile"]
        return restated(study, profile)


def load_sampling(store: Store, runs: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """Read how answers were sampled, by (model, method), from OUT/prompts of each first run.

    Parameters
    ----------
    runs: schema.RUNS; tuned runs have no such file and are left out.
    """
    found = {}
    first = runs.unique(["model", "method"], keep="first", maintain_order=True)
    for model, method, run_id in first.select("model", "method", "run_id").iter_rows():
        name = f"prompts/{run_id}.json"
        if not store.exists(name):
            continue
        with store.reading(name, "as a prompt with its sampling"):
            found[model, method] = dict(json.loads(store.read_text(name))["sampling"])
    return found


def load_planted(store: Store) -> Plant | None:
    """Read what was planted from OUT/planted.json; None where nothing was.

    Raises
    ------
    DataError: the file lacks the attribute, group, rate or true gaps.
    """
    if not store.exists("planted.json"):
        return None
    with store.reading("planted.json", "as what was planted"):
        return Plant.read(store.read_text("planted.json"))


def count_predictions(store: Store, metrics: Sequence[str]) -> tuple[stats.Counts, pl.DataFrame]:
    """Reduce OUT/predictions to counts.

    Returns
    -------
    The counts, with both readings of prompted runs, and the coverage: per run and probe how
    many `items` were asked for (null if unknown), and how many `predictions`, `repeated` and
    `unparsed` ones there are.

    Raises
    ------
    DataError: there are no predictions, a file is not one of ours, or an item is not the same
        in all runs.

    Warns
    -----
    UnevenRuns: runs do not hold the same items, since the study is not finished.
    StatisticsWarning: runs gave the same predictions; prompted ones count as one.
    """
    files = prediction_files(store)
    if not files:
        raise DataError(
            "holds no predictions", where=store.uri, cure="finish the study with `raybias run`"
        )
    counts = stats.count_files(files, where=store.uri, metrics=metrics, unfinished="count")
    asked = {
        probe: _items(store, [probe], "item_id").height
        for probe in counts.coverage["probe"].unique()
        if store.exists(f"items/{probe}.parquet")
    }
    items = pl.col("probe").replace_strict(asked, default=None, return_dtype=pl.Int64)
    return counts, counts.coverage.with_columns(items=items).select(
        *_RUN, "predictions", "repeated", "unparsed", "items"
    )


def prediction_files(store: Store) -> list[stats.Source]:
    """List the files of OUT/predictions."""
    names = store.files("predictions", suffix=".parquet", recursive=True)
    return [stats.Source(store, name) for name in names]


def example_texts(store: Store, probes: Sequence[str]) -> pl.DataFrame:
    """Read the first sentence of each group on each template: probe, group, template_id, text."""
    texts = _items(store, probes, "group", "template_id", "text")
    return texts.unique(["probe", "group", "template_id"], keep="first", maintain_order=True)


def item_texts(store: Store, probes: Sequence[str]) -> pl.DataFrame:
    """Read the texts of OUT/items: probe, item_id and text."""
    return _items(store, probes, "item_id", "text")


def _items(store: Store, probes: Sequence[str], *columns: str) -> pl.DataFrame:
    """Read columns of OUT/items, beside the probe; none of probes that are not there."""
    wanted = pa.schema([schema.ITEMS.field(name) for name in columns])
    parts = [pl.DataFrame(schema=dict.fromkeys(("probe", *columns), pl.String))]
    for probe in probes:
        name = f"items/{probe}.parquet"
        if store.exists(name):
            items = pl.DataFrame(store.read_table(name, schema=wanted))
            parts.append(items.select(pl.lit(probe).alias("probe"), *columns))
    return pl.concat(parts)
