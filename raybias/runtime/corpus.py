"""Count with Ray Data how often a corpus marks a probe's nouns.

Each task reads a piece of the corpus, counts in it and returns a few hundred sums. A document
belongs to one piece whole, so that the pieces never change a count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes.corpus import FOUND, Vocabulary, counts, find, vocabularies
from raybias.probes.published.training import load_splits
from raybias.runtime.ray_session import connected, translating_errors
from raybias.storage import Store, split_uri

#: What a data set of the hub, or one that `datasets` reads from a folder, begins with.
HUB: Final = "hub:"

_PARQUET: Final = ".parquet"
_PACKED: Final = (".gz", ".bz2", ".zst")
_TEXT: Final = tuple(f".txt{packed}" for packed in ("", *_PACKED))
#: Bytes of a text file that one task reads at a time.
_PIECE: Final = 16 * 2**20
_LOOK: Final = 64 * 2**10
#: The number under which documents are counted, beside the vocabularies.
_DOCUMENTS: Final = -1


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one text file; the lines that begin in it are its own."""

    name: str
    start: int
    end: int
    packed: bool = False
    """Compressed: there are no ranges in it, so it is one piece."""


def count_corpus(
    source: str,
    probe: Probe,
    *,
    column: str,
    split: str,
    address: str | None,
    on_part: Callable[[int], None] = lambda documents: None,
) -> tuple[pl.DataFrame, int]:
    """Connect to Ray and count the terms of a probe; see `corpus_counts`.

    Raises
    ------
    DataError: what is wrong with the probe or the source, before Ray is started.
    """
    known = vocabularies(probe)
    _check_source(source, column)
    with connected(address):
        return corpus_counts(source, known, column=column, split=split, on_part=on_part)


def corpus_counts(
    source: str,
    known: Sequence[Vocabulary],
    *,
    column: str = "text",
    split: str = "train",
    piece_bytes: int = _PIECE,
    on_part: Callable[[int], None] = lambda documents: None,
) -> tuple[pl.DataFrame, int]:
    """Count how often each term stands at each noun (schema.CORPUS), and the documents.

    Ray must be connected.

    Parameters
    ----------
    source: a text file (one document a line; .gz, .bz2 and .zst are unpacked), a Parquet file,
        a folder or a pattern such as `texts/*.txt` of either, local or a URI that all nodes
        reach; or `hub:NAME` or `hub:NAME:CONFIG` for `datasets.load_dataset`.
    column: the texts' column of Parquet and the hub.
    split: of a hub data set.
    piece_bytes: of a text file, read by one task at a time; it changes no count.
    on_part: called with the number of documents of each part that is done.

    Raises
    ------
    DataError: no such source, column or split, or no document in it.
    WorkFailed: a file cannot be read.
    """
    patterns = [vocabulary.pattern() for vocabulary in known]
    found: list[pl.DataFrame] = []
    total = 0
    with translating_errors(f"counting in {source}"):
        parts = _documents(source, column, split, piece_bytes).map_batches(
            _count, fn_kwargs={"patterns": patterns}, batch_size=None, batch_format="pyarrow"
        )
        for table in parts.iter_batches(batch_size=None, batch_format="pyarrow"):
            part = pl.DataFrame(table)
            read = int(part.filter(vocabulary=_DOCUMENTS)["n"].sum())
            found.append(part.filter(pl.col("vocabulary") != _DOCUMENTS))
            total += read
            on_part(read)
    if not total:
        raise DataError("holds no documents", where=source, cure="give a corpus with text")
    return counts(known, pl.concat([FOUND.to_frame(), *found])), total


def _check_source(source: str, column: str) -> None:
    """Refuse a wrong path, pattern or Parquet column."""
    if not source.startswith(HUB):
        store, names = _files(source)
        if names[0].endswith(_PARQUET):
            _check_parquet(store, names[0], column)


def _count(batch: pa.Table, patterns: Sequence[str]) -> pa.Table:
    texts = pl.Series(batch["text"])
    documents = pl.DataFrame([(_DOCUMENTS, "", len(texts))], schema=FOUND, orient="row")
    # Counting copies the text a few times; a block of Parquet may be large.
    rows = max(1, len(texts) * _PIECE // max(1, batch.nbytes))
    parts = (find(texts[at : at + rows], patterns) for at in range(0, len(texts), rows))
    return pl.concat([documents, *parts]).to_arrow()


def _documents(source: str, column: str, split: str, piece_bytes: int) -> ray.data.Dataset:
    """Read the texts of a corpus as one column `text`."""
    if source.startswith(HUB):
        return _hub(source.removeprefix(HUB), column, split)
    store, names = _files(source)
    if names[0].endswith(_PARQUET):
        return _parquet(store, names, column)
    pieces = [piece for name in names for piece in _pieces(store, name, piece_bytes)]
    if not pieces:
        raise DataError("holds no documents", where=source, cure="give a corpus with text")
    # One block a piece, for a block is what one task reads at a time.
    rows = ray.data.from_items(list(map(asdict, pieces)), override_num_blocks=len(pieces))
    return rows.map_batches(_read, fn_args=(store,), batch_size=1, batch_format="pyarrow")


def _files(source: str) -> tuple[Store, list[str]]:
    """List the files of a path, folder or pattern, all text or all Parquet."""
    pattern = any(sign in source for sign in "*?[")
    if pattern:
        fixed = source[: min(source.index(sign) for sign in "*?[" if sign in source)]
        folder = fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")
        store = Store(folder)
        wanted = source.removeprefix(folder).lstrip("/")
        names = [name for name in store.files(recursive=True) if fnmatch(name, wanted)]
    else:
        store, name = split_uri(source)
        if not store.exists(name):
            raise DataError(
                "no such file or folder", where=source, cure=f"or did you mean {HUB}{source}?"
            )
        if store.is_file(name):
            return store, [name]
        store = Store(source)
        names = store.files(recursive=True)
    texts = [name for name in names if pattern or name.endswith((*_TEXT, _PARQUET))]
    tables = [name for name in texts if name.endswith(_PARQUET)]
    if not texts:
        raise DataError("matches no files", where=source, cure="texts end in .txt or .parquet")
    if tables and len(tables) < len(texts):
        raise DataError(
            "holds text and Parquet", where=source, cure=f"give a pattern such as {source}/*.txt"
        )
    return store, texts


def _check_parquet(store: Store, name: str, column: str) -> None:
    where = store.uri_of(name)
    try:
        schema = pq.read_schema(store.path(name), filesystem=store.fs)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise DataError(f"not a Parquet table ({error})", where=where) from error
    _check_column(column, schema.names, where=where)
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"column {column!r} holds {kind}, not text", where=where)


def _parquet(store: Store, names: Sequence[str], column: str) -> ray.data.Dataset:
    _check_parquet(store, names[0], column)
    paths = [store.path(name) for name in names]
    tables = ray.data.read_parquet(paths, filesystem=store.fs, partitioning=None)
    return _as_text(tables.select_columns([column]), column)


def _hub(words: str, column: str, split: str) -> ray.data.Dataset:
    name, _, config = words.partition(":")
    texts = load_splits(name, [split], config=config or None)[split]
    _check_column(column, texts.column_names, where=f"data set {words}")
    # `from_huggingface` first loads what the hub has under that name, a stranger's for a folder.
    table = texts.select_columns([column]).with_format("arrow")[:]
    blocks = max(1, table.nbytes // _PIECE)
    return _as_text(ray.data.from_arrow(table, override_num_blocks=blocks), column)


def _as_text(dataset: ray.data.Dataset, column: str) -> ray.data.Dataset:
    return dataset if column == "text" else dataset.rename_columns({column: "text"})


def _check_column(column: str, there: Sequence[str], *, where: str) -> None:
    if column not in there:
        raise DataError(
            f"no column {column!r}",
            where=where,
            cure=f"choose with --text-column from {', '.join(there)}",
        )


def _pieces(store: Store, name: str, size: int) -> Iterator[Piece]:
    length = store.fs.get_file_info(store.path(name)).size
    if name.endswith(_PACKED):
        yield Piece(name, 0, length, packed=True)
        return
    for start in range(0, length, size):
        yield Piece(name, start, min(start + size, length))


def _read(batch: pa.Table, store: Store) -> Iterator[pa.Table]:
    for row in batch.to_pylist():
        piece = Piece(**row)
        for data in _unpacked(store, piece) if piece.packed else [_lines(store, piece)]:
            # Bytes that are not UTF-8 become a mark that is no part of any word.
            text = data.decode("utf-8", errors="replace").removesuffix("\n")
            yield pa.table({"text": text.split("\n") if data else pa.array([], pa.string())})


def _lines(store: Store, piece: Piece) -> bytes:
    with store.fs.open_input_file(store.path(piece.name)) as file:
        # A line that began in the piece before was read there to its end.
        begin = _line_from(file, piece.start)
        end = _line_from(file, piece.end)
        file.seek(begin)
        return bytes(file.read(end - begin))


def _line_from(file: Any, place: int) -> int:
    """Find the offset of the first line that begins at `place` or later."""
    if place == 0:
        return 0
    file.seek(place - 1)
    while chunk := file.read(_LOOK):
        found = chunk.find(b"\n")
        if found >= 0:
            return int(file.tell() - len(chunk) + found + 1)
    return int(file.size())


def _unpacked(store: Store, piece: Piece) -> Iterator[bytes]:
    """Read a compressed file in parts that end with a line."""
    rest = b""
    with store.fs.open_input_stream(store.path(piece.name), compression="detect") as stream:
        while chunk := stream.read(_PIECE):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            yield whole + newline
    yield rest
