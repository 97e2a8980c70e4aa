"""Reading predictions: our own Parquet, and the third paper's TSV, plain or gzipped.

Every row is checked where it is read, so that a wrong label is named with its
file and row. It does not know what is computed from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raybias import schema
from raybias.errors import DataError
from raybias.stats.paper_tsv import read_paper_tsv
from raybias.storage import Store

_TYPES: Final = pl.Schema(schema.PREDICTIONS)
_REQUIRED: Final = ("model", "run_id", "item_id", "label", "attribute", "group", "pred")
_TSV_ENDINGS: Final = (".tsv", ".tsv.gz")
_PIECE_ROWS: Final = 1 << 20

#: What a file of our own may leave out.
_DEFAULTS: Final = {"method": "", "dataset": "", "probe": "", "style": "original", "parsed": True}


@dataclass(frozen=True)
class Source:
    """One file of predictions: `name` in `store`."""

    store: Store
    name: str

    @property
    def uri(self) -> str:
        """The file's path or URI."""
        return self.store.uri_of(self.name)


def read_predictions(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Read and join files and folders of predictions.

    Parameters
    ----------
    paths: files of the third paper's format (.tsv, .tsv.gz), Parquet files of
        schema.PREDICTIONS, or folders: of Parquet files, or a study's output.

    Returns
    -------
    schema.PREDICTIONS.

    Raises
    ------
    DataError: a missing, unreadable or empty file, a missing column, a label that is not
        0, 1 or 2, an empty group, or one item of a run given twice.
    """
    frames = pl.concat(list(pieces(sources(paths), columns=list(_TYPES))))
    predictions = frames.select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    keys = (*schema.KEYS, "run_id", "item_id")
    repeated = predictions.filter(pl.struct(keys).is_duplicated()).head(1)
    if repeated.height:
        first = repeated.row(0, named=True)
        raise DataError(
            f"item {first['item_id']!r} of run {first['run_id']!r} of {first['model']!r} "
            "is given more than once",
            where=", ".join(map(str, paths)),
            cure="give each prediction once, and different probes of one TSV run one by one",
        )
    return predictions


def sources(paths: Sequence[str | Path]) -> list[Source]:
    """The files that paths mean, in order.

    Raises
    ------
    DataError: a path that is not there, a folder without predictions, a file given twice,
        or a suffix that is not known.
    """
    found = [source for path in paths for source in _expand(str(path))]
    uris = [source.uri for source in found]
    twice = next((uri for uri in uris if uris.count(uri) > 1), None) if len(uris) > 1 else None
    if twice is not None:
        raise DataError("is given twice", where=twice, cure="give each file once")
    if not found:
        raise DataError("no files of predictions are given", cure="name a TSV or Parquet file")
    return found


def _expand(path: str) -> list[Source]:
    store = Store(path)
    info = store.fs.get_file_info(store.root)
    if info.is_file:
        if not path.endswith((*_TSV_ENDINGS, ".parquet")):
            raise DataError(
                "is neither .tsv, .tsv.gz nor .parquet",
                where=path,
                cure="give the third paper's TSV or raybias's own Parquet",
            )
        parent, _, name = store.uri.rpartition("/")
        return [Source(Store(parent or "/"), name)]
    if not store.exists(""):
        raise DataError("is not there", where=path, cure="check the path")
    folder = "predictions" if store.exists("predictions") else ""
    names = store.files(folder, suffix=".parquet", recursive=True)
    if not names:
        raise DataError(
            "holds no Parquet file of predictions", where=path, cure="name files, or a study's OUT"
        )
    return [Source(store, name) for name in names]


def pieces(files: Sequence[Source], *, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read files joined into large pieces, checked; texts but `item_id` are categorical.

    Parameters
    ----------
    columns: those of schema.PREDICTIONS to read; label, pred, and the others that every
        prediction needs, must be among them.

    Raises
    ------
    DataError: as `read_predictions`, but for repeated items.
    """
    held: list[tuple[str, int, pl.DataFrame]] = []
    rows = 0
    for source in files:
        for offset, frame in _frames(source, columns):
            held.append((source.uri, offset, frame))
            rows += frame.height
            if rows >= _PIECE_ROWS:
                yield _joined(held)
                held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(held: Sequence[tuple[str, int, pl.DataFrame]]) -> pl.DataFrame:
    # One check of many small files together; only a bad piece is searched file by file.
    piece = pl.concat([frame for _, _, frame in held], how="vertical_relaxed")
    if not _sound(piece):
        for where, offset, frame in held:
            _explain(frame, where, offset)
    return piece


def _frames(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
    texts = [name for name in columns if _TYPES[name] == pl.String and name != "item_id"]
    if source.name.endswith(_TSV_ENDINGS):
        data = source.store.read_bytes(source.name)
        frame = read_paper_tsv(data, name=source.name, where=source.uri)
        yield 0, frame.select(columns).with_columns(pl.col(texts).cast(pl.Categorical))
        return
    try:
        with source.store.fs.open_input_file(source.store.path(source.name)) as stream:
            yield from _parquet(stream, source.uri, columns, texts)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"cannot be read as Parquet ({error})", where=source.uri, cure="write it again"
        ) from error


def _parquet(
    stream: pa.NativeFile, where: str, columns: Sequence[str], texts: Sequence[str]
) -> Iterator[tuple[int, pl.DataFrame]]:
    metadata = pq.read_metadata(stream)
    present = set(metadata.schema.to_arrow_schema().names)
    coded = [name for name in texts if name in present]
    file = pq.ParquetFile(stream, metadata=metadata, read_dictionary=coded)
    missing = [name for name in _REQUIRED if name not in present]
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            cure=f"predictions need {', '.join(_REQUIRED)}",
        )
    for name in ("label", "pred"):
        kind = file.schema_arrow.field(name).type
        if not pa.types.is_integer(kind):
            raise DataError(f"{name} is {kind}, not integer", where=where, cure="use 0, 1 and 2")
    if not metadata.num_rows:
        raise DataError("holds no predictions", where=where, cure="leave it out")
    absent = [
        pl.lit(_DEFAULTS.get(name)).cast(_TYPES[name]).alias(name)
        for name in columns
        if name not in present
    ]
    types = {name: pl.Categorical() if name in texts else _TYPES[name] for name in columns}
    types = {name: kind for name, kind in types.items() if name not in ("label", "pred")}
    offset = 0
    for batch in file.iter_batches(_PIECE_ROWS, columns=[n for n in columns if n in present]):
        frame = pl.DataFrame(pl.from_arrow(batch))
        if absent or any(frame.schema[name] != kind for name, kind in types.items()):
            frame = frame.with_columns(absent).cast(types)  # type: ignore[arg-type]
        yield offset, frame.select(columns)
        offset += frame.height


def _sound(piece: pl.DataFrame) -> bool:
    first, last = min(schema.Label), max(schema.Label)
    label = pl.col("label").is_between(first, last).fill_null(False)
    pred = pl.col("pred").is_between(first, last).fill_null(True)
    filled = [pl.col(name).is_not_null() for name in _REQUIRED if name not in ("label", "pred")]
    named = [pl.col(name) != "" for name in ("attribute", "group")]
    return bool(piece.select(pl.all_horizontal(label, pred, *filled, *named).all()).item())


def _explain(frame: pl.DataFrame, where: str, offset: int) -> None:
    """Raise for the first bad row, if this frame has it."""
    # `pred` may be null (no label could be read from an answer), nothing else.
    for name in _REQUIRED:
        column = frame[name]
        bad = {"is missing": column.is_null()}
        if name in ("label", "pred"):
            bad["is not 0, 1 or 2"] = ~column.is_in(list(schema.Label)).fill_null(True)
        elif name in ("attribute", "group"):
            bad["is empty"] = (column.cast(pl.String) == "").fill_null(False)
        if name == "pred":
            del bad["is missing"]
        for problem, rows in bad.items():
            if rows.any():
                row = int(rows.arg_max() or 0)
                raise DataError(
                    f"{name} {column[row]!r} {problem}",
                    where=f"{where}, row {offset + row + 1}",
                    cure="mend the row or leave it out",
                )
