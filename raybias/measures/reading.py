"""Read files of answers of any kind, which their columns tell."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.measures.kind import Items, Kind, ReadFile, kinds
from raybias.stats.pairs.reading import SUFFIXES, required, sources, typed
from raybias.stats.predictions import Source
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame, unzipped

#: Anything that answers are read from.
Given = str | Path | pl.DataFrame
#: What a table in memory is called in a message.
_FRAME: Final = "the table"


def read(
    given: Sequence[Given], kind: str | None = None, items: Items = None
) -> dict[str, pl.DataFrame]:
    """Read and check answers, by kind.

    Parameters
    ----------
    given: Parquet or CSV files of a kind's answers, published files, folders of these (in which
        other files are passed over), a study's OUT, or tables.
    kind: reads no other.
    items: what published answers are to, if they do not say so themselves.

    Raises
    ------
    DataError: a missing or malformed file, missing columns, a wrong value, or an answer that is
        given twice.
    ConfigError: no such kind.
    """
    if kind is not None:
        kinds.check(kind)
    wanted = {name: each for name, each in kinds.items() if kind in (None, name)}
    published = {
        name: each.published(items) for name, each in wanted.items() if each.published is not None
    }
    found: dict[str, list[pl.DataFrame]] = {}
    for one in given:
        parts = (
            [_of_table(one, wanted, _FRAME)]
            if isinstance(one, pl.DataFrame)
            else _of_path(str(one), wanted, published, items)
        )
        for name, frame in parts:
            found.setdefault(name, []).append(frame)
    where = ", ".join(_FRAME if isinstance(each, pl.DataFrame) else str(each) for each in given)
    if not found:
        raise DataError(
            "no file holds answers", where=where,
            cure="give Parquet or CSV files of answers, published files, or a study's output",
        )  # fmt: skip
    return {name: _joined(wanted[name], found[name], where) for name in wanted if name in found}


def _joined(kind: Kind, frames: Sequence[pl.DataFrame], where: str) -> pl.DataFrame:
    answers = pl.concat(frames)
    keys = ["model", "probe", *kind.item]
    for row in answers.filter(pl.struct(keys).is_duplicated()).sort(keys).iter_rows(named=True):
        named = " ".join(str(row[name]) for name in kind.item)
        raise DataError(
            f"{row['model']!r} answers {named} more than once",
            where=where,
            cure="give each answer once",
        )
    kind.check(answers, where)
    return answers


def _of_path(
    path: str, wanted: Mapping[str, Kind], published: Mapping[str, ReadFile], items: Items
) -> Iterable[tuple[str, pl.DataFrame]]:
    """Yield what each file of a path holds, with its kind."""
    if Store(path).exists("study.yaml"):
        for name in wanted:
            if Store(path).exists(name):
                yield from _of_path(f"{path.rstrip('/')}/{name}", wanted, published, items)
        return
    endings = dict.fromkeys(end for each in wanted.values() for end in each.endings)
    apart = Source(*split_uri(items)).uri if isinstance(items, str) else None
    for source, inside in sources(path, (*endings, *SUFFIXES)):
        if inside and source.uri == apart:
            continue
        if source.name.endswith(SUFFIXES):
            frame = read_frame(source.store, source.name)
            if not inside or _told(frame.columns, wanted):
                yield _of_table(frame, wanted, source.uri)
            continue
        data = content(source)
        read_files = ((name, published[name](source, data)) for name in published
                      if source.name.endswith(wanted[name].endings))  # fmt: skip
        claimed = next(((name, frame) for name, frame in read_files if frame is not None), None)
        if claimed is not None:
            yield claimed
        elif not inside:
            raise DataError(
                "holds no answers in a format that is known", where=source.uri,
                cure="give it as its authors published it, or a Parquet or CSV file of answers",
            )  # fmt: skip


def _told(columns: Sequence[str], wanted: Mapping[str, Kind]) -> str | None:
    """Tell the kind of a table by its columns: the one that needs most of them."""
    there = {*columns}
    fits = [name for name, each in wanted.items() if {*required(each.answers)} <= there]
    return max(fits, key=lambda name: len(required(wanted[name].answers)), default=None)


def _of_table(
    frame: pl.DataFrame, wanted: Mapping[str, Kind], where: str
) -> tuple[str, pl.DataFrame]:
    told = _told(frame.columns, wanted)
    if told is None:
        needed = {name: required(each.answers) for name, each in wanted.items()}
        lacks = {name: [n for n in names if n not in frame.columns]
                 for name, names in needed.items()}  # fmt: skip
        near = min(lacks, key=lambda name: len(lacks[name]) / len(needed[name]))
        raise DataError(
            f"lacks the column{'s' * (len(lacks[near]) > 1)} {', '.join(lacks[near])}",
            where=where,
            cure=f"{near} need {', '.join(needed[near])}",
        )
    return told, typed(frame, wanted[told].answers, where)


def file_source(path: str) -> Source:
    """Return one file; `DataError` where it is not there."""
    source = Source(*split_uri(path))
    if not source.store.is_file(source.name):
        raise DataError("is not a file", where=path, cure="check the path")
    return source


def content(source: Source) -> bytes:
    """Read a file, gzipped or plain, without its byte order mark; `DataError` where it is empty."""
    data = source.store.read_bytes(source.name)
    return unzipped(data, source.name, source.uri).removeprefix(BOM_UTF8)


def model_of(source: Source) -> str:
    """Return the name of the folder that holds a file, which lm-eval names after the model."""
    folder = source.uri.rpartition("/")[0].rpartition("/")[2]
    return folder or source.name.rpartition("/")[2].split(".")[0]
