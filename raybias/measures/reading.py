"""Read files of answers of any kind; their columns tell the kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.formats import first_keys
from raybias.formats.harnesses import EVAL_ENDING
from raybias.formats.unread import Unread, describe_unread, list_unread
from raybias.measures.kind import Items, Kind, ReadFile, kinds
from raybias.probes.registries import styles
from raybias.stats.checks import warn
from raybias.stats.predictions import Source, one_file
from raybias.storage import Store, split_uri
from raybias.table_files import (
    columns_of,
    match_columns,
    need_columns,
    read_frame,
    refuse,
    rename_reserved,
    unpack_text,
)
from raybias.table_rules import conform

#: Endings of Kohankhaki2024's predictions, which other tables may have too.
_TSV: Final = (".tsv", ".tsv.gz")
SUFFIXES: Final = (".csv", ".csv.gz", ".parquet", *_TSV)
_LINES: Final = (".jsonl", ".jsonl.gz")
_NONE: Final = "give Parquet or CSV files of answers, published files, or a study's output"
#: What a file of our own may leave out.
_DEFAULTS: Final = {"probe": "", "score": "", "answer": None, "contains": None, "cluster": None,
                    "turned": None, "scores": None, "method": "", "prompt": "",
                    "reference": None, "reading": None}  # fmt: skip
#: Columns over whose values scores are pooled, as `schema.ALL`.
_POOLED: Final = ("model", "bias_type", "domain", "task", "axis", "category", "prompt")
#: Anything that answers are read from.
Given = str | Path | pl.DataFrame
#: Columns that mark a table of predictions, which `stats.counts` reads piece by piece.
_PREDICTED: Final = ("label", "group", "pred")
PREDICTIONS: Final = "predictions"
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
    items: of published answers, if these do not hold them.

    Raises DataError: a missing, malformed or wrong file, column or value, or a repeated answer.
    """
    if kind is not None:
        kinds.check(kind)
    wanted = {n: each for n, each in kinds.items() if kind in (None, n) and n != PREDICTIONS}
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
        raise DataError("no file holds answers", where=where, cure=_NONE)
    return {name: _joined(wanted[name], found[name], where) for name in wanted if name in found}


def parted(
    given: Sequence[Given], kind: str | None = None, *, named: bool = False
) -> tuple[list[Given], list[Given]]:
    """Separate predictions from other answers; an OUT may hold both, and `named` columns do not."""
    if named or kind == PREDICTIONS:
        return [*given], []
    if kind is not None:
        return [], [*given]
    predicted, others = [], []
    for one in given:
        there = held(one, published=False)
        if PREDICTIONS in there:
            predicted.append(one)
        if there != [PREDICTIONS]:
            others.append(one)
    return predicted, others


def held(given: Given, *, published: bool = True, items: Items = None) -> list[str]:
    """Name the kinds in an OUT, a table or file, or a folder's first file.

    published: whether files that others published count; `items` are what these answer, as `read`
        takes them.
    """
    if isinstance(given, pl.DataFrame):
        return _told(given.columns, kinds)
    store = Store(given)
    if store.exists("study.yaml"):
        return [name for name, each in kinds.items() if store.exists(each.folder)]
    if store.is_file():
        files = [Source(*split_uri(str(given)))]
    else:
        names = store.files(recursive=True) if store.exists("") else []
        # Tables first: other files of their folder do not tell its kind.
        names.sort(key=lambda name: (not name.endswith(".parquet"), not name.endswith(_TSV)))
        files = [Source(store, name) for name in names if name.endswith(_endings(kinds))]
    files = [source for source in files if source.uri != _uri_of(items)]
    return next(filter(None, (_kinds_at(source, published, items) for source in files)), [])


def _uri_of(items: Items) -> str | None:
    """Return the URI of a file of items, which a folder of answers may have too."""
    return Source(*split_uri(items)).uri if isinstance(items, str) else None


def _kinds_at(source: Source, published: bool, items: Items) -> list[str]:
    """Name the kind of one file, if any."""
    is_text = source.name.endswith(_LINES) or (published and not source.name.endswith(SUFFIXES))
    data = content(source) if is_text else b""
    for name, each in kinds.items() if published and data else ():
        if (
            each.published is not None
            and source.name.endswith(each.endings)
            and each.published(items)(source, data) is not None
        ):
            return [name]
    if source.is_paper_tsv:
        return [PREDICTIONS]
    return _told(_columns_at(source, data), kinds)


def _endings(wanted: Mapping[str, Kind]) -> tuple[str, ...]:
    published = dict.fromkeys(end for each in wanted.values() for end in each.endings)
    return (*published, *(end for end in (*SUFFIXES, *_LINES) if end not in published))


def _joined(kind: Kind, frames: Sequence[pl.DataFrame], where: str) -> pl.DataFrame:
    answers = pl.concat(frames)
    keys = answers.select("model", "probe", *kind.item)
    for model, _, *item in keys.filter(keys.is_duplicated()).sort(pl.all()).iter_rows():
        raise DataError(
            f"{model!r} answers {' '.join(map(str, item))} more than once",
            where=where,
            cure="give each answer once",
        )
    kind.check(answers, where)
    return answers


def _of_path(
    path: str, wanted: Mapping[str, Kind], published: Mapping[str, ReadFile], items: Items
) -> Iterator[tuple[str, pl.DataFrame]]:
    store = Store(path)
    if store.exists("study.yaml"):
        for each in wanted.values():
            if store.exists(each.folder):
                folder = f"{path.rstrip('/')}/{each.folder}"
                yield from _of_path(folder, wanted, published, items)
        return
    single = one_file(path, _endings(wanted), "give such a file")
    if single is None:
        yield from _of_folder(path, wanted, published, items)
        return
    answers = _of_source(single, wanted, published)
    if isinstance(answers, Unread):
        if not answers.what and single.name.endswith((*SUFFIXES, *_LINES)):
            # Names the columns that a table of the nearest kind needs.
            _of_table(read_frame(single.store, single.name), wanted, single.uri)
        raise DataError(answers.problem, where=single.uri, cure=answers.cure)
    yield answers


def _of_folder(
    path: str, wanted: Mapping[str, Kind], published: Mapping[str, ReadFile], items: Items
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Read every file of a folder that is known; warn once of the others, with their names."""
    store, unread = Store(path), dict[str, Unread]()
    files_read = 0
    for source in (Source(store, name) for name in store.files(recursive=True)):
        if source.uri == _uri_of(items):
            continue
        answers = _of_source(source, wanted, published)
        if isinstance(answers, Unread):
            unread[source.name] = answers
        else:
            files_read += 1
            yield answers
    if not unread:
        return
    kind = f"{next(iter(wanted))} " if len(wanted) == 1 else ""
    if files_read:
        warn(f"{path}: passed over files without {kind}answers: {list_unread(unread)}")
        return
    cures = [file.cure for file in unread.values() if file.what]
    raise DataError(
        f"no file holds {kind}answers: {list_unread(unread)}",
        where=path,
        cure=cures[0] if cures else _NONE,
    )


def _of_source(
    source: Source, wanted: Mapping[str, Kind], published: Mapping[str, ReadFile]
) -> tuple[str, pl.DataFrame] | Unread:
    """Read one file by the first reader that knows it, or as a table if its columns are a kind's.

    Raises DataError: a file of a known format that is damaged or wrong.
    """
    if not source.name.endswith(_endings(wanted)):
        return describe_unread(b"", source.name)
    data = b"" if source.name.endswith(SUFFIXES) else content(source)
    for name, read_file in published.items():
        if data and source.name.endswith(wanted[name].endings):
            answers = read_file(source, data)
            if answers is not None:
                return name, typed(answers, wanted[name].answers, source.uri)
    if not _told(_columns_at(source, data), wanted):
        return describe_unread(data, source.name)
    return _of_table(read_frame(source.store, source.name), wanted, source.uri)


def _columns_at(source: Source, data: bytes) -> Sequence[str]:
    """List the columns of a table; of JSON Lines (`data`) the keys of the first; else none."""
    if source.name.endswith(SUFFIXES):
        return columns_of(source.store, source.name)
    return sorted(first_keys(data)) if source.name.endswith(_LINES) else []


def _told(columns: Sequence[str], wanted: Mapping[str, Kind]) -> list[str]:
    """Return the kind of a table by its columns, if any: the one that needs most of them.

    Capitals and blanks around the names do not matter (`match_columns`).
    """
    there = {column.strip().lower() for column in columns}
    needed = {name: required(each.answers) for name, each in wanted.items() if name != PREDICTIONS}
    fits = [name for name, names in needed.items() if {*names} <= there]
    label, group, pred = _PREDICTED
    if not fits and PREDICTIONS in wanted and {label, group} <= there and {pred, "score"} & there:
        return [PREDICTIONS]
    return sorted(fits, key=lambda name: -len(needed[name]))[:1]


def _of_table(
    frame: pl.DataFrame, wanted: Mapping[str, Kind], where: str
) -> tuple[str, pl.DataFrame]:
    told = _told(frame.columns, wanted)
    known = [name for each in wanted.values() for name in each.answers.names]
    frame = frame.rename(match_columns(frame.columns, known, where))
    if not told:
        needed = {PREDICTIONS: [*_PREDICTED]} if len(wanted) > 1 else {}
        needed |= {name: required(each.answers) for name, each in wanted.items()}
        missing = {name: len({*names} - {*frame.columns}) for name, names in needed.items()}
        near = min(needed, key=lambda name: missing[name] / len(needed[name]))
        by = "; columns that are called otherwise: --label-column, --pred-column, --by"
        cure = f"{near} need {', '.join(needed[near])}{by if near == 'predictions' else ''}"
        need_columns(needed[near], frame.columns, where, cure)
    return told[0], typed(frame, wanted[told[0]].answers, where)


def file_source(path: str) -> Source:
    """Return one file; `DataError` where it is not there."""
    source = Source(*split_uri(path))
    if not source.store.is_file(source.name):
        raise DataError("is not a file", where=path, cure="check the path")
    return source


def content(source: Source) -> bytes:
    """Read a file, gzipped or plain, its text as UTF-8; `DataError` if it is empty."""
    data = source.store.read_bytes(source.name)
    if source.name.endswith(EVAL_ENDING):
        return data
    return unpack_text(data, source.name, source.uri)


def model_of(source: Source) -> str:
    """Return the name of the folder that holds a file, which lm-eval names after the model."""
    folder = source.uri.rpartition("/")[0].rpartition("/")[2]
    return folder or source.name.rpartition("/")[2].split(".")[0]


def required(table: pa.Schema) -> list[str]:
    """List the columns that a file of this table must have."""
    return [name for name in table.names if name not in _DEFAULTS]


def typed(frame: pl.DataFrame, table: pa.Schema, where: str) -> pl.DataFrame:
    """Cast and check the columns of a table; `DataError` names the first wrong row."""
    types = pl.Schema(table)
    filled = frame.with_columns(
        pl.lit(value, types[name]).alias(name)
        for name, value in _DEFAULTS.items()
        if name in types and name not in frame.columns
    )
    made = conform(filled, table, where)
    if "style" in types:
        unknown = ~made["style"].is_in([*styles])
        cure = f"style is one of {', '.join(styles)}"
        refuse(unknown, made["style"], "is not known", where, cure)
    return rename_reserved(made, _POOLED, where, warn)
