"""Read a finished OUT: its study as reported, files of predictions, and items."""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl
from pydantic import ValidationError

from raybias import schema
from raybias.columns import part_of
from raybias.config import Profile, Statistics, Study
from raybias.config.labels import refuse_paper
from raybias.errors import DataError, OutputError
from raybias.measures.kind import kinds
from raybias.stats.predictions import Source
from raybias.storage import Store
from raybias.table_files import refuse
from raybias.table_rules import read_checked


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
        profile, options = config["profile"], dict(config["statistics"])
    try:
        statistics = Statistics.under(profile, **options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(
            f"config.statistics.{key} is {first['input']!r}: {first['msg']}",
            where=store.uri_of("results.json"),
            cure="write it again: `raybias report OUT`",
        ) from error
    return study.model_copy(update={"profile": profile, "statistics": statistics})


def prediction_files(store: Store) -> list[Source]:
    """List the files of OUT/predictions."""
    names = store.files("predictions", suffix=".parquet", recursive=True)
    return [Source(store, name, of_study=True) for name in names]


def read_estimates(store: Store, *, may_be_empty: bool = False) -> pl.DataFrame:
    """Read the estimates of the last report (schema.ESTIMATES), of kinds that there are.

    may_be_empty: whether there may be none, as in a study of answers that cannot be compared.

    Raises OutputError: no report was written; DataError: another table.
    """
    name = "tables/estimates.parquet"
    if not store.exists(name):
        raise OutputError(
            f"holds no {name}", where=store.uri, cure="write it: `raybias report OUT`"
        )
    estimates = read_checked(store, name, schema.ESTIMATES, may_be_empty=may_be_empty)
    unknown = ~estimates["kind"].is_in([*kinds])
    cure = f"write it again: `raybias report OUT`; kinds are {', '.join(kinds)}"
    refuse(unknown, estimates["kind"], "is not known", store.uri_of(name), cure)
    return estimates


def read_items(store: Store, probes: Sequence[str], *columns: str) -> pl.DataFrame:
    """Read columns of OUT/items beside the probe; no rows of probes that are not there."""
    wanted = part_of(schema.ITEMS, columns)
    parts = [pl.DataFrame(schema=dict.fromkeys(("probe", *columns), pl.String))]
    for probe in probes:
        name = f"items/{probe}.parquet"
        if store.exists(name):
            items = read_checked(store, name, wanted)
            parts.append(items.select(pl.lit(probe).alias("probe"), *columns))
    return pl.concat(parts)
