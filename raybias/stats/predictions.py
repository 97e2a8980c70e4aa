"""Read and check predictions: our own Parquet, Kohankhaki2024's TSV, anyone's CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raybias import schema
from raybias.errors import DataError
from raybias.stats import sentiment
from raybias.stats.checks import warn
from raybias.stats.classes import (
    NEVER_KEY,
    Classes,
    as_one_class,
    labels_of_metadata,
)
from raybias.stats.foreign import (
    EXTRA,
    PAPER_LABELS,
    Columns,
    classes_in,
    plain_predictions,
    read_paper_tsv,
)
from raybias.stats.group_columns import POOLED
from raybias.stats.untold import untold_labels, without_untold
from raybias.storage import Store, reading, split_uri
from raybias.table_files import (
    columns_of,
    match_columns,
    need_columns,
    read_frame,
    refuse,
    rename_reserved,
)
from raybias.table_rules import check_rows

_TYPES: Final = pl.Schema(schema.PREDICTIONS)
_REQUIRED: Final = ("model", "run_id", "item_id", "label", "attribute", "group", "pred")
_NUMBERS: Final = ("label", "pred")
#: Most classes whose numbers a message lists.
_LISTED: Final = 3
_TSV_ENDINGS: Final = (".tsv", ".tsv.gz")
#: Of other tables of text, which are no predictions of our own.
_TABLE_ENDINGS: Final = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", *_TSV_ENDINGS)
#: A file of a table that Spark, or another program of many workers, writes as a folder.
_PART: Final = re.compile(r"part-\d+")
_PIECE_ROWS: Final = 1 << 18
#: Columns of few different texts.
_REPEATED: Final = (
    *("model", "method", "dataset", "run_id", "probe", "style", "attribute", "group"),
    *("template_id", "term", "family"),
)
#: Of a piece: categories spare the work of a million equal strings.
_PIECE_TYPES: Final = pl.Schema({**_TYPES, **EXTRA, **dict.fromkeys(_REPEATED, pl.Categorical())})

#: Columns that are also read where a file holds the answers of a prompted classifier.
ANSWERED: Final = ("parsed", "unread", "answer", "scores")

#: What a file of our own may leave out.
_DEFAULTS: Final = {"method": "", "dataset": "", "probe": "", "style": "original", "parsed": True}


@dataclass(frozen=True)
class Source:
    """One file of predictions, `name` in `store`; or a table in memory, which is called `name`."""

    store: Store
    name: str
    table: pl.DataFrame | None = None
    parts: tuple[str, ...] = ()
    """The files that are one table, in the folder `name`."""
    columns: Columns = field(default_factory=Columns)
    """Where a table of others has what predictions need."""
    of_study: bool = False
    """Whether a study wrote it, so that it is no table of others, whatever it lacks."""

    @property
    def uri(self) -> str:
        """The file's path or URI."""
        return self.name if self.table is not None else self.store.uri_of(self.name)

    @cached_property
    def is_paper_tsv(self) -> bool:
        """Whether this is a file of Kohankhaki2024's format, and no other table in tabs."""
        if self.table is not None or self.parts or not self.name.endswith(_TSV_ENDINGS):
            return False
        return not PAPER_LABELS.isdisjoint(columns_of(self.store, self.name))

    @cached_property
    def is_foreign(self) -> bool:
        """Whether this is a table of others, whose columns and classes are as `columns` say."""
        if self.is_paper_tsv:
            return False
        if self.table is not None or self.parts or self.name.endswith(_TABLE_ENDINGS):
            return True
        columns = columns_of(self.store, self.name)
        names = {*columns, *self._renamed(columns, self.uri).values()}
        plain = {"label", "group"} <= names and not names.isdisjoint(("pred", "score"))
        if self.columns.are_named:
            return True
        return plain and not self.of_study and not names.issuperset(_REQUIRED)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of classes in the file's metadata; empty if it has none."""
        return labels_of_metadata(self._texts_of_footer, self.uri)

    @cached_property
    def never(self) -> frozenset[int]:
        """Numbers of the labels that the file's classifier never gives, by its metadata."""
        names = labels_of_metadata(self._texts_of_footer, self.uri, key=NEVER_KEY)
        known = self.labels or sentiment.NAMES
        return frozenset(known.index(name) for name in names if name in known)

    @property
    def _texts_of_footer(self) -> Mapping[bytes, bytes] | None:
        if self.table is not None or self.parts or not self.name.endswith(".parquet"):
            return None
        texts: Mapping[bytes, bytes] | None = self.footer.metadata
        return texts

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """The footer of one Parquet file, read once: its columns, rows and metadata."""
        with (
            self.store.reading(self.name, "as predictions"),
            self.store.open_file(self.name) as stream,
        ):
            return pq.read_metadata(stream)

    def read_foreign(self) -> pl.DataFrame:
        """Read a table of others whole: schema.PREDICTIONS, and the columns of `EXTRA`."""
        table = self._read_columns()
        with reading(self.uri, "as predictions"):
            return plain_predictions(table, name=self.name, where=self.uri, columns=self.columns)

    def read_classes(self) -> Classes:
        """Read what the labels and predictions of a table of others stand for."""
        columns = self.columns.of_classes
        table = replace(self, columns=columns)._read_columns()
        with reading(self.uri, "as predictions"):
            return classes_in(table, columns, self.uri)

    def _read_columns(self) -> pl.DataFrame:
        """Read the columns that are used, under the names by which they are known."""
        if self.table is not None:
            return self.table.rename(self._renamed(self.table.columns, self.uri))
        frames = []
        for name in self.parts or (self.name,):
            where = self.store.uri_of(name)
            columns = columns_of(self.store, name)
            renamed = self._renamed(columns, where)
            used = self.columns.used([renamed.get(each, each) for each in columns], where)
            chosen = [each for each in columns if renamed.get(each, each) in used]
            frame = read_frame(self.store, name, chosen).rename(renamed, strict=False)
            frames.append(self._with_names(frame))
            if frames[-1].schema != frames[0].schema:
                raise DataError(
                    "has other columns than the first file of its table",
                    where=where,
                    cure="give each table a folder of its own",
                )
        return pl.concat(frames)

    def _with_names(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace the numbers of classes by their names, if the file's metadata has names."""
        columns = [name for name in (self.columns.label, self.columns.pred) if name in frame]
        if not self.labels or not all(frame[name].dtype.is_integer() for name in columns):
            return frame
        for name in columns:
            _refuse_unknown(frame[name], len(self.labels), self.uri)
        names = dict(enumerate(self.labels))
        return frame.with_columns(
            pl.col(name).replace_strict(names, return_dtype=pl.String) for name in columns
        )

    def _renamed(self, columns: Sequence[str], where: str) -> dict[str, str]:
        """Map columns to their known names, but for capitals and blanks around."""
        named = self.columns.named
        known = dict.fromkeys((*named, *_TYPES, *EXTRA))
        return match_columns(columns, known, where, taken=named)


def join_pieces(
    files: Sequence[Source], *, where: str, columns: Sequence[str] = tuple(_TYPES)
) -> pl.DataFrame:
    """Read all files into one table of these columns; `DataError` for an item given twice.

    Sentences whose right label a classifier never gives are left out.
    """
    predictions = pl.concat(piece.select(columns) for piece in pieces(files, columns=columns))
    predictions = without_untold(predictions, untold_labels(files)).drop_nulls("label")
    keys = (*schema.KEYS, "run_id", "item_id")
    repeated = predictions.filter(pl.struct(keys).is_duplicated()).head(1)
    if repeated.height:
        first = repeated.row(0, named=True)
        raise DataError(
            f"item {first['item_id']!r} of run {first['run_id']!r} of {first['model']!r} "
            "is given more than once",
            where=where,
            cure="give each prediction once, and different probes of one TSV run one by one",
        )
    return predictions


def sources(
    given: Sequence[str | Path | pl.DataFrame], columns: Columns | None = None
) -> list[Source]:
    """List the files that paths mean, and tables, in order.

    Paths are of Kohankhaki2024's format (.tsv, .tsv.gz), Parquet files of schema.PREDICTIONS, or
    folders: of Parquet files, TSV or CSV, or a study's output. Tables of others (.csv, .csv.gz,
    .parquet, a folder of part files as Spark writes it, or in memory) need `label`, `group`, and
    `pred` or `score`; `columns` say where. A DataError names a path that is missing, unknown or
    given twice.
    """
    found = []
    for place, one in enumerate(given, start=1):
        if isinstance(one, pl.DataFrame):
            name = "the table" if len(given) == 1 else f"table {place}"
            found.append(Source(Store("."), name, one))
        else:
            found += _expand(str(one))
    if columns is not None:
        found = [replace(source, columns=columns) for source in found]
    for uri, count in Counter(source.uri for source in found).items():
        if count > 1:
            raise DataError("is given twice", where=uri, cure="give each file once")
    if not found:
        raise DataError("no files of predictions are given", cure="name a TSV or Parquet file")
    return found


def _expand(path: str) -> list[Source]:
    suffixes = (*_TABLE_ENDINGS, ".parquet")
    if single := one_file(path, suffixes, "give a CSV, TSV, JSON Lines or Parquet file"):
        return [single]
    store = Store(path)
    within = "predictions" if store.exists("predictions") else ""
    tables = store.files(within, suffix=".parquet", recursive=True)
    others = store.files()
    names = (
        tables
        or [name for name in others if name.endswith(_TSV_ENDINGS)]
        or [name for name in others if name.endswith(_TABLE_ENDINGS)]
    )
    if not names:
        raise DataError(
            "holds no Parquet, TSV, CSV or JSON Lines file of predictions",
            where=path,
            cure="name the files, or a study's OUT",
        )
    of_study = bool(within) and store.exists("study.yaml")
    files = [Source(store, name, of_study=of_study) for name in names]
    if all(_PART.match(name) for name in names) and files[0].is_foreign:
        above, folder = split_uri(store.uri)
        return [Source(above, folder, parts=tuple(f"{folder}/{name}" for name in names))]
    return files


def one_file(path: str, suffixes: Sequence[str], cure: str) -> Source | None:
    """Return a path's file, or None for a folder; `DataError` for nothing or another suffix."""
    store = Store(path)
    if not store.is_file():
        if not store.exists(""):
            raise DataError("is not there", where=path, cure="check the path")
        return None
    source = Source(*split_uri(path))
    if not source.name.endswith(tuple(suffixes)):
        *others, last = suffixes
        raise DataError(f"is neither {', '.join(others)} nor {last}", where=path, cure=cure)
    return source


def pieces(files: Sequence[Source], *, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read files one after the other, joined or cut into pieces of some 260,000 rows, checked.

    `columns` are those of schema.PREDICTIONS to read, among them all that every prediction needs.
    Pieces of files with answers also have those of `ANSWERED`. Texts that repeat are categorical.

    Raises DataError: an unreadable or empty file, a missing column, a wrong label or empty group.
    """
    held: list[pl.DataFrame] = []
    rows = 0
    for source in files:
        for frame in _frames(source, columns):
            if held and (rows >= _PIECE_ROWS or frame.schema != held[0].schema):
                yield pl.concat(held)
                held, rows = [], 0
            held.append(frame)
            rows += frame.height
    if held:
        yield pl.concat(held)


def _frames(source: Source, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Read a file's rows, each checked; a Parquet file of our own some 260,000 at a time."""
    if source.is_paper_tsv:
        data = source.store.read_bytes(source.name)
        yield _selected(read_paper_tsv(data, name=source.name, where=source.uri), columns)
        return
    if source.is_foreign:
        yield _selected(source.read_foreign(), columns)
        return
    row = 0
    with (
        source.store.reading(source.name, "as predictions"),
        source.store.open_file(source.name) as stream,
    ):
        metadata, names = source.footer, source.labels
        layout = _layout(metadata, source.uri)
        # As dictionaries, texts that repeat are read several times as fast.
        kinds = {field.name: field.type for field in layout if field.name in _REPEATED}
        texts = [name for name, kind in kinds.items()
                 if pa.types.is_string(kind) or pa.types.is_large_string(kind)]  # fmt: skip
        file = pq.ParquetFile(stream, metadata=metadata, read_dictionary=texts)
        # Reading the scores of tuned classifiers, which have no answers, for nothing is slow.
        answers = file.read(["answer"] if "answer" in layout.names else [], use_threads=False)
        answered = any(each.null_count < len(each) for each in answers.columns)
        wanted = list(dict.fromkeys((*columns, *(ANSWERED if answered else ()))))
        there = [name for name in wanted if name in layout.names]
        for batch in file.iter_batches(_PIECE_ROWS, columns=there, use_threads=False):
            table = pa.table(batch.replace_schema_metadata(None))
            table.validate(full=True)
            frame = _selected(pl.DataFrame(table), wanted)
            _check(frame, source.uri, row, len(names or sentiment.NAMES))
            frame = rename_reserved(frame, POOLED, source.uri, warn)
            frame = frame.cast({name: _TYPES[name] for name in _NUMBERS})
            yield as_one_class(frame, source.columns.positive, names)
            row += frame.height
        if row != metadata.num_rows:
            raise pa.ArrowInvalid(f"{row} rows, not {metadata.num_rows}")


def _layout(metadata: pq.FileMetaData, where: str) -> pa.Schema:
    layout = metadata.schema.to_arrow_schema()
    need_columns(_REQUIRED, layout.names, where, f"predictions need {', '.join(_REQUIRED)}")
    for name in _TYPES:
        if layout.names.count(name) > 1:
            raise DataError(f"has the column {name} twice", where=where, cure="drop one")
    for name in _NUMBERS:
        kind = layout.field(name).type
        if not pa.types.is_integer(kind):
            raise DataError(
                f"{name} is {kind}, not integer",
                where=where,
                cure="use the numbers of the classes, or read it as a table of your own with --by",
            )
    if not metadata.num_rows:
        raise DataError("holds no predictions", where=where, cure="leave it out")
    return layout


def _selected(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    layout = frame.schema
    return frame.select(_column(name, layout) for name in columns)


def _column(name: str, layout: pl.Schema) -> pl.Expr:
    if name not in layout:
        return pl.lit(_DEFAULTS.get(name), _PIECE_TYPES[name]).alias(name)
    column = pl.col(name)
    # Numbers stay as they are until they are known to be labels.
    if name in _NUMBERS:
        return column
    if layout[name] != _PIECE_TYPES[name]:
        column = column.cast(_TYPES[name]).cast(_PIECE_TYPES[name])
    return column.fill_null(_DEFAULTS[name]) if name in _DEFAULTS else column


def _check(rows: pl.DataFrame, where: str, offset: int, classes: int) -> None:
    """Refuse the first bad row, or the first label that is not one of so many classes."""
    cure = "correct the row or leave it out"
    check_rows(rows, schema.PREDICTIONS, where, cure=cure, offset=offset)
    for name in ("attribute", "group"):
        refuse(rows[name] == "", rows[name], "is empty", where, cure, offset=offset)
    for name in _NUMBERS:
        _refuse_unknown(rows[name], classes, where, offset)
    if "scores" in rows.columns:
        # A judge's verdict has one.
        wrong = ~rows["scores"].list.len().is_in([0, 1, classes])
        problem = f"are not one for each of {classes} labels"
        refuse(wrong, rows["scores"], problem, where, cure, offset=offset)


def _refuse_unknown(column: pl.Series, classes: int, where: str, offset: int = 0) -> None:
    """Refuse the first number that is not one of so many classes; missing ones are allowed."""
    numbers = f"{', '.join(map(str, range(classes - 1)))} or {classes - 1}"
    if classes > _LISTED:
        numbers = f"from 0 to {classes - 1}"
    cure = (
        "correct the row; or, if the file has other classes, name them in its metadata "
        "(docs/metrics.md); or read it as a table of your own with --by group"
    )
    unknown = ~column.is_between(0, classes - 1).fill_null(True)
    refuse(unknown, column, f"is not {numbers}", where, cure, offset=offset)
