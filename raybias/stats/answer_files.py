"""Read files of models' answers that are tables of our own, or what others published."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from raybias.errors import DataError
from raybias.stats.pairs.reading import SUFFIXES, required, sources, typed
from raybias.stats.predictions import Source
from raybias.storage import split_uri
from raybias.table_files import read_frame, unzipped


def read_answer_files(
    paths: Sequence[str | Path],
    table: pa.Schema,
    *,
    item: Sequence[str],
    endings: tuple[str, ...] = (),
    published: Callable[[Source], pl.DataFrame] | None = None,
    apart: str | Path | None = None,
) -> pl.DataFrame:
    """Read and join Parquet and CSV files of a table, and published files.

    Parameters
    ----------
    paths: files, or folders of them; in a folder files of other tables are passed over.
    endings: of published files, which `published` reads.
    item: columns that are different in all rows of a model and probe.
    apart: a file that holds no answers, though it lies beside those that do.

    Raises
    ------
    DataError: a missing or malformed file, missing columns, a wrong value, or an item that is
        given twice.
    """
    frames, needed = [], required(table)
    passed_over = None if apart is None else Source(*split_uri(str(apart))).uri
    for source, inside in (each for path in paths for each in sources(path, (*endings, *SUFFIXES))):
        if inside and source.uri == passed_over:
            continue
        if published is not None and source.name.endswith(endings):
            frames.append(published(source))
            continue
        frame = read_frame(source.store, source.name)
        missing = [name for name in needed if name not in frame.columns]
        if not missing:
            frames.append(typed(frame, table, source.uri))
        elif not inside:
            raise DataError(
                f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
                where=source.uri,
                cure=f"such a file needs {', '.join(needed)}",
            )
    where = ", ".join(map(str, paths))
    if not frames:
        raise DataError(
            "no file holds answers", where=where, cure=f"give {(*endings, *SUFFIXES)[0]} files"
        )
    joined = pl.concat(frames)
    keys = ["model", "probe", *item]
    for row in joined.filter(pl.struct(keys).is_duplicated()).sort(keys).iter_rows(named=True):
        named = " ".join(str(row[name]) for name in item)
        raise DataError(
            f"{row['model']!r} answers {named} more than once",
            where=where,
            cure="give each answer once",
        )
    return joined


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
