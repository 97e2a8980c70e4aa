"""Read a user's own training set: a folder of split files, or one pool of demonstrations."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.column_checks import column, filled, label_numbers, needed
from raybias.probes.registries import Splits, training_set
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame

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
