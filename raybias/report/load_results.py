"""What a finished OUT folder says: its runs, and its predictions as counts.

Everything is read through `Store`, one run at a time, so an OUT of any size on
any file system works. It knows neither how runs were made nor how gaps are judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from raybias import schema, stats
from raybias.config import Profile, Study
from raybias.errors import DataError
from raybias.storage import Store

_RUN: Final = (*schema.KEYS, "run_id")
_WANTED: Final = tuple(
    dict.fromkeys((*_RUN, *schema.CELLS.names[:-1], "term", "item_id", "parsed", "answer"))
)
#: Columns of schema.RUNS that an older OUT lacks.
_NEWER: Final = ("weight_decay", "stop_window")
_CORPUS: Final = "corpus.parquet"


@dataclass(frozen=True)
class Planted:
    """A bias put into a model on purpose (OUT/planted.json of the calibration)."""

    attribute: str
    group: str
    rate: str
    sign: int
    size: float | None


def restated(study: Study, profile: Profile) -> Study:
    """The study with the statistics of another profile; how runs were tuned stays as it was."""
    undecided = study.statistics.model_copy(update={"interval": None, "adjust": None})
    return study.model_copy(update={"profile": profile, "statistics": undecided}).resolve()


def load_runs(store: Store) -> pl.DataFrame:
    """OUT/runs.parquet in schema.RUNS; no rows where nothing was tuned."""
    if not store.exists("runs.parquet"):
        return as_frame(schema.RUNS.empty_table())
    return as_frame(_conform(store.read_table("runs.parquet"), store.uri_of("runs.parquet")))


def load_sampling(store: Store, runs: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """How answers were sampled, by (model, method): OUT/prompts of each one's first run.

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
        try:
            found[model, method] = dict(json.loads(store.read_text(name))["sampling"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"does not say how answers were sampled ({error!r})", where=store.uri_of(name)
            ) from error
    return found


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


def count_predictions(store: Store) -> tuple[stats.Counts, pl.DataFrame]:
    """Reduce OUT/predictions to counts, one run at a time.

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
    cells, terms, answers, prints, coverage = [], [], [], [], []
    asked: dict[str, int | None] = {}
    for frame in _frames_by_run(store):
        answers.append(stats.count_answers(frame))
        read = stats.with_likelihood(frame) if "scores" in frame.columns else frame
        prints.append(stats.fingerprints(read))
        cells.append(stats.cells(read))
        terms.append(stats.term_cells(read))
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
    same = stats.checked_runs(
        pl.concat(prints), lambda: _frames_by_run(store), where=store.uri, uneven="warn"
    )
    counts = stats.Counts(
        _without(pl.concat(cells), same),
        _without(pl.concat(terms), same),
        stats.answers(pl.concat(answers)),
    )
    return counts, pl.concat(coverage).sort(_RUN)


def _without(table: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    if runs.is_empty():
        return table
    return table.join(runs, on=_RUN, how="anti", nulls_equal=True, maintain_order="left")


def load_corpus(store: Store) -> pl.DataFrame | None:
    """The rates of OUT/corpus.parquet (`stats.marked_rates`), or None where it is not there.

    Raises
    ------
    DataError: it is not a table of `raybias corpus`.
    """
    if not store.exists(_CORPUS):
        return None
    return _marked_rates(_corpus_counts(store.uri_of(_CORPUS)), store.uri_of(_CORPUS))


def example_texts(store: Store, probes: Sequence[str]) -> pl.DataFrame:
    """The first sentence of each group on each template: probe, group, template_id, text."""
    columns = ["group", "template_id", "text"]
    parts = [pl.DataFrame(schema=dict.fromkeys(("probe", *columns), pl.String))]
    for probe in probes:
        name = f"items/{probe}.parquet"
        if store.exists(name):
            items = as_frame(store.read_table(name, columns=columns))
            first = items.unique(columns[:2], keep="first", maintain_order=True)
            parts.append(first.select(pl.lit(probe).alias("probe"), *columns))
    return pl.concat(parts)


def add_corpus(store: Store, file: str) -> None:
    """Copy a file of corpus counts to OUT/corpus.parquet; a wrong one leaves the old in place.

    Raises
    ------
    DataError: no such file, or not a table of `raybias corpus`.
    """
    counts = _corpus_counts(file)
    _marked_rates(counts, file)
    store.write_table(_CORPUS, counts)


def _corpus_counts(file: str) -> pa.Table:
    source = Store(file)
    if not source.is_file():
        raise DataError("is not a file", where=file, cure="make it with `raybias corpus`")
    try:
        if file.endswith(".csv"):
            table = pacsv.read_csv(source.fs.open_input_stream(source.root))
        else:
            table = pq.read_table(source.root, filesystem=source.fs)
        return table.select(schema.CORPUS.names).cast(schema.CORPUS)
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise DataError(
            f"not a table of corpus counts ({error})",
            where=file,
            cure="make it with `raybias corpus`",
        ) from error


def _marked_rates(counts: pa.Table, where: str) -> pl.DataFrame:
    return stats.marked_rates(as_frame(counts), where=where)


def as_frame(table: pa.Table) -> pl.DataFrame:
    """A Polars frame of an Arrow table."""
    frame = pl.from_arrow(table)
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"{type(frame).__name__} is not a table")
    return frame


def _frames_by_run(store: Store) -> Iterator[pl.DataFrame]:
    """The predictions of each run; with `scores` where it has answers, since they are slow."""
    names = store.files("predictions", suffix=".parquet", recursive=True)
    for folder, files in groupby(names, key=lambda name: name.rpartition("/")[0]):
        paths = [store.path(name) for name in files]
        frame = _read(store, folder, paths, _WANTED)
        if frame["answer"].null_count() < frame.height:
            frame = _read(store, folder, paths, (*_WANTED, "scores"))
        if frame["item_id"].null_count():
            raise DataError("predictions without item_id", where=store.uri_of(folder))
        yield frame


def _read(store: Store, folder: str, paths: list[str], columns: Sequence[str]) -> pl.DataFrame:
    wanted = pa.schema([schema.PREDICTIONS.field(name) for name in columns])
    try:
        # Columns that an older file lacks are null.
        with store.translating_errors("read", folder):
            read = pads.dataset(paths, filesystem=store.fs, schema=wanted, format="parquet")
            return as_frame(read.to_table())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"unreadable predictions ({error})",
            where=store.uri_of(folder),
            cure="delete the broken file and run the study again",
        ) from error


def _items(store: Store, probe: str) -> int | None:
    name = f"items/{probe}.parquet"
    if not store.exists(name):
        return None
    return int(store.read_table(name, columns=["item_id"]).num_rows)


def _conform(table: pa.Table, where: str) -> pa.Table:
    for name in _NEWER:
        if name not in table.column_names:
            field = schema.RUNS.field(name)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    try:
        return table.select(schema.RUNS.names).cast(schema.RUNS)
    except (KeyError, ValueError) as error:
        raise DataError(f"not a table of runs ({error})", where=where) from error
