"""Read a finished OUT: its study as reported, files of predictions, and items."""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from raybias import schema
from raybias.config import Profile, Statistics, Study
from raybias.config.labels import refuse_paper
from raybias.stats.predictions import Source
from raybias.storage import Store


def restated(study: Study, profile: Profile | None) -> Study:
    """Give a study the statistics of a profile, if any; how runs were tuned stays as it was."""
    if profile is None:
        return study
    refuse_paper(profile, study.labels)
    statistics = study.statistics.restated(profile)
    return study.model_copy(update={"profile": profile, "statistics": statistics})


def as_reported(store: Store, study: Study) -> Study:
    """Give a study the statistics that its tables were last written with (`report --profile`)."""
    if not store.exists("results.json"):
        return study
    with store.reading("results.json", "as results"):
        config = json.loads(store.read_text("results.json"))["config"]
        statistics = Statistics.under(config["profile"], **config["statistics"])
        return study.model_copy(update={"profile": config["profile"], "statistics": statistics})


def prediction_files(store: Store) -> list[Source]:
    """List the files of OUT/predictions."""
    names = store.files("predictions", suffix=".parquet", recursive=True)
    return [Source(store, name) for name in names]


def read_items(store: Store, probes: Sequence[str], *columns: str) -> pl.DataFrame:
    """Read columns of OUT/items beside the probe; no rows of probes that are not there."""
    wanted = pa.schema([schema.ITEMS.field(name) for name in columns])
    parts = [pl.DataFrame(schema=dict.fromkeys(("probe", *columns), pl.String))]
    for probe in probes:
        name = f"items/{probe}.parquet"
        if store.exists(name):
            items = pl.DataFrame(store.read_table(name, schema=wanted))
            parts.append(items.select(pl.lit(probe).alias("probe"), *columns))
    return pl.concat(parts)
