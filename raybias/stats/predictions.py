"""Reading predictions: our own Parquet, and the third paper's TSV, plain or gzipped.

Every row is checked where it is read, so that a wrong label is named with its
file and row. It does not know what is computed from the rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raybias import schema
from raybias.errors import DataError
from raybias.stats.paper_tsv import read_paper_tsv
from raybias.storage import Store, split_uri

_TYPES: Final = pl.Schema(schema.PREDICTIONS)
_REQUIRED: Final = ("model", "run_id", "item_id", "label", "attribute", "group", "pred")
_NUMBERS: Final = ("label", "pred")
_TSV_ENDINGS: Final = (".tsv", ".tsv.gz")
_PIECE_ROWS: Final = 1 << 18

#: What is read besides where a file holds the answers of a prompted classifier.
ANSWERED: Final = ("parsed", "answer", "scores")

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

    def for_polars(self) -> Any:
        """The path of a local file, the content of any other."""
        local = self.store.is_local
        return self.store.path(self.name) if local else self.store.read_bytes(self.name)


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
    predictions = pl.concat(list(pieces(sources(paths), columns=list(_TYPES))))
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
    for uri, count in Counter(source.uri for source in found).items():
        if count > 1:
            raise DataError("is given twice", where=uri, cure="give each file once")
    if not found:
        raise DataError("no files of predictions are given", cure="name a TSV or Parquet file")
    return found


def _expand(path: str) -> list[Source]:
    store = Store(path)
    if store.is_file():
        folder, name = split_uri(path)
        if not name.endswith((*_TSV_ENDINGS, ".parquet")):
            raise DataError(
                "is neither .tsv, .tsv.gz nor .parquet",
                where=path,
                cure="give the third paper's TSV or raybias's own Parquet",
            )
        return [Source(folder, name)]
    if not store.exists(""):
        raise DataError("is not there", where=path, cure="check the path")
    within = "predictions" if store.exists("predictions") else ""
    names = store.files(within, suffix=".parquet", recursive=True)
    if not names:
        raise DataError(
            "holds no Parquet file of predictions", where=path, cure="name files, or a study's OUT"
        )
    return [Source(store, name) for name in names]


def pieces(files: Sequence[Source], *, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read files one after the other, joined or cut into pieces of a million rows, checked.

    Parameters
    ----------
    columns: those of schema.PREDICTIONS to read; all that every prediction needs must be
        among them. Pieces of files with answers also have those of `ANSWERED`.

    Raises
    ------
    DataError: as `read_predictions`, but for repeated items.
    """
    # Thousands of small files are read four times as fast in one scan as one by one.
    found = ((source, *_layout(source)) for source in files)
    kinds = groupby(found, key=lambda each: (each[0].store.is_local, *each[1:3]))
    for (_, layout, answered), members in kinds:
        alike, _, _, rows = zip(*members, strict=True)
        if layout is not None:
            wanted = dict.fromkeys((*columns, *ANSWERED)) if answered else columns
            yield from _parquet(alike, layout, list(wanted), rows=sum(rows))
            continue
        for source in alike:
            data = source.store.read_bytes(source.name)
            frame = read_paper_tsv(data, name=source.name, where=source.uri)
            yield frame.select(columns)


def _layout(source: Source) -> tuple[pa.Schema | None, bool, int]:
    """The columns of a Parquet file, checked, whether it may hold answers, and its rows.

    None for a TSV, of which nothing else is known.
    """
    if source.name.endswith(_TSV_ENDINGS):
        return None, False, 0
    try:
        path = source.store.path(source.name)
        metadata = pq.read_metadata(path, filesystem=source.store.fs)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(source, error) from error
    layout = metadata.schema.to_arrow_schema()
    missing = [name for name in _REQUIRED if name not in layout.names]
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=source.uri,
            cure=f"predictions need {', '.join(_REQUIRED)}",
        )
    for name in _NUMBERS:
        kind = layout.field(name).type
        if not pa.types.is_integer(kind):
            raise DataError(
                f"{name} is {kind}, not integer", where=source.uri, cure="use 0, 1 and 2"
            )
    if not metadata.num_rows:
        raise DataError("holds no predictions", where=source.uri, cure="leave it out")
    return layout, _answered(metadata), metadata.num_rows


def _answered(metadata: pq.FileMetaData) -> bool:
    """Whether a file may hold answers; reading its scores for nothing would be slow."""
    parts = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    columns = [part.column(place) for part in parts for place in range(part.num_columns)]
    return any(
        not (column.statistics and column.statistics.null_count == column.num_values)
        for column in columns
        if column.path_in_schema == "answer"
    )


def _parquet(
    files: Sequence[Source], layout: pa.Schema, columns: Sequence[str], *, rows: int
) -> Iterator[pl.DataFrame]:
    fault: Exception | None = None
    row = 0
    try:
        data = [source.for_polars() for source in files]
        frame = pl.scan_parquet(data, glob=False, hive_partitioning=False)
        wanted = frame.select(_column(name, layout.names) for name in columns)
        for piece in wanted.collect_batches(chunk_size=_PIECE_ROWS):
            if not _sound(piece):
                break
            yield piece.cast({name: _TYPES[name] for name in _NUMBERS})
            row += piece.height
        else:
            # Polars ends early, without an error, where a damaged page breaks one of its threads.
            if row == rows:
                return
            fault = EOFError(f"it ends after {row} rows")
    except (pl.exceptions.PolarsError, OSError) as error:
        fault = error
    if len(files) > 1:
        # Read one by one, the file at fault is named.
        for source in files:
            deque(_parquet([source], layout, columns, rows=_layout(source)[2]), maxlen=0)
    elif fault is None:
        _explain(piece, files[0].uri, row)
    raise _unreadable(files[0], fault) from fault


def _column(name: str, present: Sequence[str]) -> pl.Expr:
    if name not in present:
        return pl.lit(_DEFAULTS.get(name), _TYPES[name]).alias(name)
    column = pl.col(name)
    # Numbers stay as they are until they are known to be labels.
    if name in _NUMBERS:
        return column
    column = column.cast(_TYPES[name])
    return column.fill_null(_DEFAULTS[name]) if name in _DEFAULTS else column


def _unreadable(source: Source, error: Exception | None) -> DataError:
    return DataError(
        f"cannot be read as Parquet ({error})", where=source.uri, cure="write it again"
    )


def _sound(piece: pl.DataFrame) -> bool:
    first, last = min(schema.Label), max(schema.Label)
    label = pl.col("label").is_between(first, last).fill_null(False)
    pred = pl.col("pred").is_between(first, last).fill_null(True)
    filled = [pl.col(name).is_not_null() for name in _REQUIRED if name not in _NUMBERS]
    named = [pl.col(name) != "" for name in ("attribute", "group")]
    return bool(piece.select(pl.all_horizontal(label, pred, *filled, *named).all()).item())


def _explain(frame: pl.DataFrame, where: str, offset: int) -> None:
    """Raise for the first bad row, if this frame has it."""
    # `pred` may be null (no label could be read from an answer), nothing else.
    for name in _REQUIRED:
        column = frame[name]
        bad = {"is missing": column.is_null()}
        if name in _NUMBERS:
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
