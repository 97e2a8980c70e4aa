"""Read a user's own training set: a folder of split files, or one pool of demonstrations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.column_checks import (
    column,
    filled,
    label_numbers,
    needed,
    polars_schema,
    read_lines,
)
from raybias.probes.planted import planted_sentences
from raybias.probes.registries import Splits, training_set
from raybias.schema import SENTENCES
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame


def parse_sentences(
    store: Store, path: str, parse: Callable[[str], tuple[str, int] | None], *, header: int = 0
) -> pl.DataFrame:
    """Read the sentences of one file (schema.SENTENCES).

    Parameters
    ----------
    parse: makes text and label of a line, or None where it cannot.
    header: lines to pass over.

    Raises
    ------
    DataError: no rows, or a line that cannot be read.
    """
    rows: list[tuple[str, int]] = []
    for number, line in enumerate(read_lines(store, path)[header:], start=1):
        parsed = parse(line)
        if parsed is None or not parsed[0].strip():
            raise DataError(
                f"cannot read a label and a sentence from {line[:60]!r}",
                where=f"{store.uri_of(path)} row {number}",
            )
        rows.append(parsed)
    if not rows:
        raise DataError("holds no rows", where=store.uri_of(path))
    return pl.DataFrame(rows, schema=polars_schema(SENTENCES), orient="row")


_TABLES: Final = (".csv", ".tsv", ".parquet")


@training_set("file")
def _own_files(training: TrainingSet) -> Splits:
    """Read train, validation and (where it is there) test of a folder, or one file.

    One file is a pool that demonstrations are drawn from: it gives `train` alone.
    """
    data = needed(training.data, where=f"training set {training.name}")
    if data.endswith(_TABLES):
        store, name = split_uri(data)
        return {"train": checked(training, read_frame(store, name), where=data)}
    store = Store(data)
    splits: Splits = {}
    for split in ("train", "validation", "test"):
        found = [f"{split}{end}" for end in _TABLES if store.exists(split + end)]
        if len(found) > 1:
            raise DataError(f"holds {' and '.join(found)}", where=store.uri, cure="keep one")
        if found:
            frame = read_frame(store, found[0])
            splits[split] = checked(training, frame, where=store.uri_of(found[0]))
        elif split != "test":
            raise DataError(
                f"no {split}.csv or {split}.parquet",
                where=store.uri,
                cure="a folder needs train and validation; test is optional; one file"
                " (.csv, .tsv, .parquet) is a pool of demonstrations",
            )
    return splits


def checked(training: TrainingSet, frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Take the text and label columns of a table (schema.SENTENCES).

    Raises
    ------
    DataError: no rows, no such column, an empty text, or a label outside the map.
    """
    if frame.is_empty():
        raise DataError("holds no rows", where=where)
    text = filled(column(frame, training.text_column, where=where), where=where)
    written = column(frame, training.label_column, where=where)
    labels = label_numbers(written, where=where, labels=training.labels)
    return pl.DataFrame({"text": text, "label": labels})


@training_set("hub")
def _hub(training: TrainingSet) -> Splits:
    """Read what `datasets.load_dataset` finds; code in its repository is never run.

    Raises
    ------
    DataError: it cannot be loaded, or lacks a split, column or known labels.
    """
    data = needed(training.data, where=f"training set {training.name}")
    loaded = load_splits(data, ("train", "validation"), revision=training.revision)
    where = f"data set {data}"
    return {
        split: checked(training, _hub_frame(training, loaded[split]), where=f"{where} ({split})")
        for split in ("train", "validation", "test")
        if split in loaded
    }


def load_splits(
    name: str, splits: Sequence[str], *, config: str | None = None, revision: str | None = None
) -> Any:
    """Load a data set of the hub or a folder; `DataError` where that fails or a split lacks."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    where = f"data set {name}"
    try:
        loaded = datasets.load_dataset(name, config, revision=revision)
    # Loading touches the network, the disk and foreign files: whatever it says goes into one line.
    except Exception as error:
        cure = "check the id, its configuration and revision, and the network"
        raise DataError(f"cannot load ({error})", where=where, cure=cure) from error
    for split in splits:
        if split not in loaded:
            raise DataError(f"no split {split!r}", where=where, cure=f"it has {', '.join(loaded)}")
    return loaded


def _hub_frame(training: TrainingSet, split: Any) -> pl.DataFrame:
    """Replace class numbers by names, unless the user's map has numbers.

    A two-class set numbers positive 1: taken for the papers' numbers it would be neutral.
    """
    frame = pl.DataFrame(split.with_format("arrow")[:])
    names = getattr(split.features.get(training.label_column), "names", None)
    numbers = {str(number) for number in range(len(names or ()))}
    if not names or (training.labels and numbers.issuperset(training.labels)):
        return frame
    return frame.with_columns(
        pl.col(training.label_column).replace_strict(
            dict(enumerate(names)), default=None, return_dtype=pl.String
        )
    )


@training_set("planted")
def _sentences(training: TrainingSet) -> Splits:
    return planted_sentences()
