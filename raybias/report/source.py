"""What a finished OUT folder says: its study, its runs, and its predictions as counts.

Everything is read through `Store`, one run at a time, so an OUT of any size on
any file system works. It knows neither how runs were made nor how gaps are judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import yaml

from raybias import schema, stats
from raybias.config import Profile, Study, parse_study
from raybias.errors import DataError, OutputError
from raybias.storage import Store

_RUN: Final = (*schema.KEYS, "run_id")
_WANTED: Final = tuple(dict.fromkeys((*_RUN, *schema.CELLS.names[:-1], "item_id", "parsed")))


@dataclass(frozen=True)
class Record:
    """The content of OUT/study.yaml; every part but the study may be missing."""

    study: Study
    hash: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Planted:
    """A bias put into a model on purpose (OUT/planted.json of the calibration)."""

    attribute: str
    group: str
    rate: str
    sign: int
    size: float | None


def load_record(store: Store) -> Record:
    """Read OUT/study.yaml.

    Raises
    ------
    OutputError: no such folder, or no raybias output in it.
    ConfigError: the study in it is wrong.
    """
    if not store.exists(""):
        raise OutputError("is not there", where=store.uri, cure="give the OUT of a finished study")
    where = store.uri_of("study.yaml")
    if not store.exists("study.yaml"):
        raise OutputError(
            "holds no study.yaml", where=store.uri, cure="give the OUT of a finished study"
        )
    try:
        content = yaml.safe_load(store.read_text("study.yaml"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OutputError(f"not YAML ({error})", where=where) from error
    if not isinstance(content, dict) or not isinstance(content.get("study"), dict):
        raise OutputError("has no key `study`", where=where)
    return Record(
        study=parse_study(content["study"], where=where).resolve(),
        hash=str(content.get("hash") or ""),
        command=str(content.get("command") or ""),
        versions=_texts(content.get("versions")),
        data=_texts(content.get("data")),
    )


def restated(study: Study, profile: Profile) -> Study:
    """The study with the statistics of another profile; how runs were tuned stays as it was."""
    undecided = study.statistics.model_copy(update={"interval": None, "adjust": None})
    return study.model_copy(update={"profile": profile, "statistics": undecided}).resolve()


def load_runs(store: Store) -> pl.DataFrame:
    """OUT/runs.parquet in schema.RUNS; no rows where nothing was tuned."""
    if not store.exists("runs.parquet"):
        return as_frame(schema.RUNS.empty_table())
    return as_frame(_conform(store.read_table("runs.parquet"), store.uri_of("runs.parquet")))


def load_planted(store: Store) -> Planted | None:
    """What OUT/planted.json says was planted, or None where nothing was.

    Raises
    ------
    DataError: the file lacks the attribute, group, rate or direction.
    """
    if not store.exists("planted.json"):
        return None
    where = store.uri_of("planted.json")
    try:
        content = json.loads(store.read_text("planted.json"))
        size = content.get("size")
        return Planted(
            attribute=str(content["attribute"]),
            group=str(content["group"]),
            rate=str(content["rate"]),
            sign=-1 if str(content["direction"]).startswith("-") else 1,
            size=None if size is None else float(size),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"does not say what was planted ({error!r})", where=where) from error


def count_predictions(store: Store) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Reduce OUT/predictions to counts, one run at a time.

    Returns
    -------
    schema.CELLS, and the coverage: per run and probe how many `items` were asked for (null
    if unknown), and how many `predictions`, `repeated` and `unparsed` ones there are.

    Raises
    ------
    DataError: there are no predictions, or a file is not one of ours.
    """
    cells, coverage = [], []
    asked: dict[str, int | None] = {}
    for frame in _frames_by_run(store):
        cells.append(stats.cells(frame))
        part = frame.group_by(_RUN, maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("predictions"),
            (pl.len() - pl.col("item_id").n_unique()).cast(pl.Int64).alias("repeated"),
            (~pl.col("parsed").fill_null(True)).sum().cast(pl.Int64).alias("unparsed"),
        )
        for probe in part["probe"]:
            if probe not in asked:
                asked[probe] = _items(store, probe)
        known = pl.Series("items", [asked[probe] for probe in part["probe"]], dtype=pl.Int64)
        coverage.append(part.with_columns(known))
    if not cells:
        raise DataError(
            "holds no predictions", where=store.uri, cure="finish the study with `raybias run`"
        )
    return pl.concat(cells), pl.concat(coverage).sort(_RUN)


def as_frame(table: pa.Table) -> pl.DataFrame:
    """A Polars frame of an Arrow table."""
    frame = pl.from_arrow(table)
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"{type(frame).__name__} is not a table")
    return frame


def _frames_by_run(store: Store) -> Iterator[pl.DataFrame]:
    names = store.files("predictions", suffix=".parquet", recursive=True)
    wanted = pa.schema([schema.PREDICTIONS.field(name) for name in _WANTED])
    for folder, files in groupby(names, key=lambda name: name.rpartition("/")[0]):
        paths = [store.path(name) for name in files]
        try:
            read = pads.dataset(paths, filesystem=store.fs, schema=wanted, format="parquet")
            frame = as_frame(read.to_table())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"unreadable predictions ({error})",
                where=store.uri_of(folder),
                cure="delete the broken file and run the study again",
            ) from error
        if frame["item_id"].null_count():
            raise DataError("predictions without item_id", where=store.uri_of(folder))
        yield frame


def _items(store: Store, probe: str) -> int | None:
    name = f"items/{probe}.parquet"
    if not store.exists(name):
        return None
    return int(store.read_table(name, columns=["item_id"]).num_rows)


def _conform(table: pa.Table, where: str) -> pa.Table:
    try:
        return table.select(schema.RUNS.names).cast(schema.RUNS)
    except (KeyError, ValueError) as error:
        raise DataError(f"not a table of runs ({error})", where=where) from error


def _texts(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
