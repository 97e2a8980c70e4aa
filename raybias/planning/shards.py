"""Fixed row ranges of a probe, each read by one run into one file.

A shard's file is named by probe, run and first row, so a study that is run again reads
only what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from raybias.methods.base import Shard
from raybias.schema import PAIRS, REWRITTEN_PAIRS, OutputSpec
from raybias.storage import Store

#: Footers that are read at a time.
_CALLS: Final = 16
#: Most items of a shard, and the seconds that one takes on a replica, from least to most.
ROWS: Final = 8_192
SECONDS: Final = (0.5, 5.0)
#: Pairs of one chunk. It names files, so it is no resource that a study may change.
CHUNK_ROWS: Final = 64


#: Where pairs that a model rewrote are stored.
STYLED: Final = OutputSpec("styled", REWRITTEN_PAIRS, items=PAIRS)
#: What stands for a method's name in the shards of pairs to be rewritten.
REWRITING: Final = "rewriting"


@dataclass(frozen=True)
class Chunk(Shard):
    """A shard of original pairs for a model to put into the style `run_id`."""

    @property
    def file(self) -> str:
        """Name the file of its pairs in OUT."""
        number = self.first_row // CHUNK_ROWS
        return f"{self.folder}/{self.probe}/{self.run_id}/part-{number:05d}.parquet"


def chunks_of(style: str, pairs: Mapping[str, int]) -> list[Chunk]:
    """List every chunk of probes that hold so many original `pairs`."""
    return [
        Chunk(
            probe=probe,
            run_id=style,
            model="",
            method=REWRITING,
            dataset="",
            first_row=first,
            rows=min(CHUNK_ROWS, count - first),
            folder=STYLED.folder,
        )
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


def rows_in(seconds: float, each: float) -> int:
    """Return the power of two of items, up to `ROWS`, that take so long if one takes `each`."""
    if each * ROWS <= seconds:
        return ROWS
    return int(2 ** max(0, math.floor(math.log2(seconds / each))))


_AnyShard = TypeVar("_AnyShard", bound=Shard)


def missing(store: Store, shards: Sequence[_AnyShard], output: OutputSpec) -> list[_AnyShard]:
    """List the shards whose file is absent; a file with wrong rows or columns is deleted first."""

    def whole(shard: Shard) -> bool:
        if shard.file not in there:
            return False
        if fits(shard):
            return True
        store.delete(shard.file)
        return False

    def fits(shard: Shard) -> bool:
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
