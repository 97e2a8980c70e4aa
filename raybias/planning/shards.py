"""Fixed row ranges of a probe, each read by one run into one file.

A shard's file is named by probe, run and first row, so a study that is run again reads
only what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from raybias.methods.prediction import Shard
from raybias.schema import PAIRS, REWRITTEN_PAIRS, OutputSpec
from raybias.storage import Store

#: Footers that are read at a time.
_CALLS: Final = 16
#: Pairs of one chunk. It names files, so it is no resource that a study may change.
CHUNK_ROWS: Final = 64


#: Pairs that a model rewrote in a style.
STYLED: Final = OutputSpec("styled", REWRITTEN_PAIRS, items=PAIRS)


@dataclass(frozen=True)
class Chunk:
    """Pairs number * CHUNK_ROWS and so on of a probe, to be put into a style by a model."""

    probe: str
    style: str
    number: int
    rows: int

    @property
    def file(self) -> str:
        """Where its pairs go."""
        return f"{STYLED.folder}/{self.probe}/{self.style}/part-{self.number:05d}.parquet"


def chunks_of(style: str, pairs: Mapping[str, int]) -> list[Chunk]:
    """List every chunk of probes of so many `pairs` in a style."""
    return [
        Chunk(probe, style, first // CHUNK_ROWS, min(CHUNK_ROWS, count - first))
        for probe, count in pairs.items()
        for first in range(0, count, CHUNK_ROWS)
    ]


def shards_of(
    runs: Iterable[Mapping[str, Any]],
    items: Mapping[str, int],
    rows_per_shard: int,
    output: OutputSpec,
) -> list[Shard]:
    """List every shard of `runs` (rows of `schema.RUNS`) on probes of so many `items`."""
    return [
        Shard(
            probe=probe,
            run_id=run["run_id"],
            model=run["model"],
            method=run["method"],
            dataset=run["dataset"],
            first_row=first,
            rows=min(rows_per_shard, count - first),
            folder=output.folder,
        )
        for run in runs
        for probe, count in items.items()
        for first in range(0, count, rows_per_shard)
    ]


class _Part(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def rows(self) -> int: ...


_AnyPart = TypeVar("_AnyPart", bound=_Part)


def missing(store: Store, shards: Sequence[_AnyPart], output: OutputSpec) -> list[_AnyPart]:
    """Return the parts whose file is absent, after deleting files that are broken."""

    def whole(shard: _AnyPart) -> bool:
        if shard.file not in there:
            return False
        if fits(shard):
            return True
        store.delete(shard.file)
        return False

    def fits(shard: _AnyPart) -> bool:
        try:
            footer = pq.read_metadata(store.path(shard.file), filesystem=store.fs)
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError):
            # A broken file can still be read; a storage that fails says so here.
            store.read_bytes(shard.file)
            return False
        rows = shard.rows * output.per_item
        return bool(
            footer.num_rows == rows and footer.schema.to_arrow_schema().equals(output.schema)
        )

    folders = {shard.file.rpartition("/")[0] for shard in shards}
    there = {name for folder in folders for name in store.files(folder, suffix=".parquet")}
    with ThreadPoolExecutor(max_workers=_CALLS) as pool:
        done = pool.map(whole, shards)
        return [shard for shard, is_done in zip(shards, done, strict=True) if not is_done]
