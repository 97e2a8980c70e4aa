"""Read a table of a probe's items: a file, or a folder that `datasets.save_to_disk` wrote."""

from __future__ import annotations

import difflib
from typing import Final, get_args

import polars as pl

from raybias.config.card import CardKind, names_of
from raybias.errors import DataError
from raybias.storage import Store, split_uri
from raybias.table_files import match_columns, read_frame

#: Files of a saved data set, and of a folder of several of its splits.
_SAVED: Final = ("state.json", "dataset_info.json")
_SPLITS: Final = "dataset_dict.json"


def read_table(uri: str) -> pl.DataFrame:
    """Read a CSV, TSV, JSON Lines or Parquet file, or the folder of a saved data set.

    Raises DataError: none of these, or a folder of several splits.
    """
    store = Store(uri)
    if store.is_file() or not store.exists(""):
        return read_frame(*split_uri(uri))
    if store.exists(_SPLITS):
        splits = sorted({name.partition("/")[0] for name in store.files(recursive=True)})
        splits = [name for name in splits if store.exists(f"{name}/{_SAVED[0]}")]
        raise DataError(
            f"holds the splits {', '.join(splits)}",
            where=uri,
            cure=f"give one: {uri.rstrip('/')}/{splits[0] if splits else 'SPLIT'}",
        )
    if not all(map(store.exists, _SAVED)):
        raise DataError(
            "is a folder, and no data set that `datasets` saved",
            where=uri,
            cure="give one .csv, .tsv, .jsonl or .parquet file",
        )
    return _read_saved(store)


def _read_saved(store: Store) -> pl.DataFrame:
    """Read a saved data set; a class is read by its name, since its number means nothing here."""
    from datasets import ClassLabel, load_from_disk

    if not store.is_local:
        raise DataError("is not on this machine", where=store.uri, cure="copy it to a folder here")
    with store.reading("", "as a saved data set"):
        data = load_from_disk(store.uri, keep_in_memory=True)
        frame = pl.DataFrame(data.with_format("arrow")[:])
        names = {
            name: dict(enumerate(feature.names))
            for name, feature in data.features.items()
            if isinstance(feature, ClassLabel)
        }
        return frame.with_columns(
            pl.col(name).replace_strict(words, default=None, return_dtype=pl.String)
            for name, words in names.items()
        )


def check_columns(frame: pl.DataFrame, kind: str, where: str) -> None:
    """Refuse a table that lacks a column of a kind; the cure says how a card maps another to it."""
    missing = _missing(frame, kind)
    if not missing:
        return
    name = missing[0]
    near = difflib.get_close_matches(name, frame.columns, n=1)
    cure = f"rename {near[0]!r}" if near else f"its columns are {', '.join(frame.columns)}"
    if kind in get_args(CardKind):
        cure += (
            f"; or map a column in a card (`raybias probes new {kind} --out CARD.yaml`): "
            f"`columns: {{{name}: {near[0] if near else 'COLUMN'}}}`"
        )
    raise DataError(f"no column {name!r}", where=where, cure=cure)


def kind_of_table(frame: pl.DataFrame, where: str) -> CardKind:
    """Return the kind of a table by its columns, the one that needs most of them.

    Raises DataError: it lacks a column of every kind; of the nearest the first is named.
    """
    kinds: tuple[CardKind, ...] = get_args(CardKind)
    needed = {kind: len(names_of(kind, needed=True)) for kind in kinds}
    missing = {kind: len(_missing(frame, kind)) for kind in kinds}
    kind = min(kinds, key=lambda kind: (missing[kind] / needed[kind], -needed[kind]))
    check_columns(frame, kind, where)
    return kind


def _missing(frame: pl.DataFrame, kind: str) -> list[str]:
    needed = names_of(kind, needed=True)
    present = {*frame.columns, *match_columns(frame.columns, needed, "").values()}
    return [name for name in needed if name not in present]
