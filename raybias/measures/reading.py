"""Read files of answers of any kind; their columns tell the kind."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.measures.kind import Items, Kind, ReadFile, kinds
from raybias.probes.registries import styles
from raybias.schema import CONDITIONS, CONTEXTS, DIRECTIONS, POLARITIES, READINGS
from raybias.stats.checks import warn
from raybias.stats.predictions import Source, one_file
from raybias.storage import Store, split_uri
from raybias.table_files import (
    columns_of,
    need_columns,
    read_frame,
    refuse,
    rename_reserved,
    unzipped,
)

_MEND: Final = "mend the row or leave it out"
SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
#: Endings of Kohankhaki2024's predictions.
_TSV: Final = (".tsv", ".tsv.gz")
#: What a file of our own may leave out.
_DEFAULTS: Final = {"probe": "", "score": "", "answer": None, "contains": None, "cluster": None,
                    "turned": None, "scores": None, "method": "", "prompt": "",
                    "reference": None, "reading": None}  # fmt: skip
_MAY_BE_MISSING: Final = (
    "preference", "score_more", "score_less", "answer", "contains", "cluster", "pred", "target",
    "scores", "reference", "turned", "reading",
)  # fmt: skip
#: Columns over whose values scores are pooled, as `schema.ALL`.
_POOLED: Final = ("model", "bias_type", "domain", "task", "axis", "category", "prompt")
_ALLOWED: Final[Mapping[str, Collection[str]]] = {
    "style": styles, "direction": DIRECTIONS, "condition": CONDITIONS, "context": CONTEXTS,
    "polarity": POLARITIES, "reading": READINGS,
}  # fmt: skip
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
        raise DataError(
            "no file holds answers", where=where,
            cure="give Parquet or CSV files of answers, published files, or a study's output",
        )  # fmt: skip
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


def held(given: Given, *, published: bool = True) -> list[str]:
    """Name the kinds in an OUT, a table or file (perhaps `published`), or a folder's first file."""
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
        files = [Source(store, name) for name in names if name.endswith((*_endings(kinds), *_TSV))]
    for source in files[:1]:
        if source.name.endswith(_TSV):
            return [PREDICTIONS]
        if source.name.endswith(SUFFIXES):
            return _told(columns_of(source.store, source.name), kinds)
        for name, each in kinds.items() if published else ():
            if (
                each.published is not None
                and source.name.endswith(each.endings)
                and each.published(None)(source, content(source)) is not None
            ):
                return [name]
    return []


def _endings(wanted: Mapping[str, Kind]) -> tuple[str, ...]:
    return (*dict.fromkeys(end for each in wanted.values() for end in each.endings), *SUFFIXES)


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
) -> Iterable[tuple[str, pl.DataFrame]]:
    if Store(path).exists("study.yaml"):
        for each in wanted.values():
            if Store(path).exists(each.folder):
                folder = f"{path.rstrip('/')}/{each.folder}"
                yield from _of_path(folder, wanted, published, items)
        return
    apart = Source(*split_uri(items)).uri if isinstance(items, str) else None
    single, store = one_file(path, _endings(wanted), "give such a file"), Store(path)
    inside = single is None
    names = store.files(recursive=True) if inside else []
    files = [Source(store, name) for name in names if name.endswith(_endings(wanted))]
    for source in files if single is None else [single]:
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


def _told(columns: Sequence[str], wanted: Mapping[str, Kind]) -> list[str]:
    """Return the kind of a table by its columns, if any: the one that needs most of them."""
    there = {*columns}
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
    if not told:
        needed = {PREDICTIONS: [*_PREDICTED]} if len(wanted) > 1 else {}
        needed |= {name: required(each.answers) for name, each in wanted.items()}
        missing = {name: len({*names} - {*frame.columns}) for name, names in needed.items()}
        near = min(needed, key=lambda name: missing[name] / len(needed[name]))
        by = "; columns that are called otherwise: --by, --label-column, --pred-column"
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
    """Read a file, gzipped or plain, without its byte order mark; `DataError` where it is empty."""
    data = source.store.read_bytes(source.name)
    return unzipped(data, source.name, source.uri).removeprefix(BOM_UTF8)


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
    if not frame.height:
        raise DataError("holds no rows", where=where, cure="leave it out")
    filled = frame.with_columns(
        pl.lit(value, types[name]).alias(name)
        for name, value in _DEFAULTS.items()
        if name in types and name not in frame.columns
    )
    columns = []
    for name, dtype in types.items():
        column = _cast(filled[name], dtype, where)
        if name not in _MAY_BE_MISSING:
            refuse(column.is_null(), column, "is missing", where, _MEND)
        if name in _ALLOWED:
            allowed = list(_ALLOWED[name])
            refuse(~column.is_in(allowed), column, "is not known", where,
                    f"{name} is one of {', '.join(allowed)}")  # fmt: skip
        if name == "preference":
            refuse(
                ~column.is_in([0, 1]).fill_null(True),
                column,
                "is not 0, 1 or none",
                where,
                "1 where sent_more scores higher, 0 where sent_less does, empty for a tie",
            )
        if dtype == pl.Int8:
            refuse((column < 0).fill_null(False), column, "is negative", where, _MEND)
        columns.append(column)
    return rename_reserved(pl.DataFrame(columns), _POOLED, where, warn)


def _cast(column: pl.Series, dtype: pl.DataType, where: str) -> pl.Series:
    text = column.dtype == pl.String
    if text and dtype == pl.Boolean:
        lower = column.str.to_lowercase()
        cast = lower.replace_strict({"true": True, "1": True, "false": False, "0": False},
                                    default=None, return_dtype=pl.Boolean)  # fmt: skip
    else:
        try:
            cast = column.cast(dtype, strict=False)
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"{column.name} is {column.dtype}, not {_called(dtype)}", where=where,
                cure="write it again",
            ) from error  # fmt: skip
    lost = cast.is_null() & column.is_not_null()
    if text and dtype != pl.String:
        lost &= column != ""
    if column.dtype.is_float() and dtype.is_integer():
        lost |= cast != column
    refuse(lost, column, f"is no {_called(dtype)}", where, "mend the row")
    if not cast.dtype.is_float():
        return cast
    refuse(cast.is_infinite().fill_null(False), column, "is not finite", where,
            "mend the row; leave a score empty that there is not")  # fmt: skip
    return cast.fill_nan(None)


def _called(dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "true or false"
    return "number" if dtype.is_numeric() else "text"
