"""Refuse files whose content would fill the memory, before or while they are unpacked."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from raybias.errors import DataError

#: Bytes that one file may unpack to: equal rows and blanks take next to nothing when packed.
MOST_UNPACKED: Final = 2 * 2**30
#: Bytes of a value that has no fixed size; how often a table's values are held at once; and what a
#: row of two columns takes, measured on 20 million.
_LEAST_WIDTH: Final = 16
_HELD_AT_ONCE: Final = 6
_LEAST_ROW: Final = 200
#: Rows that are unpacked before the next look at how much it is.
_BATCH_ROWS: Final = 8192


def unpacked(file: pq.ParquetFile, where: str, *, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns; `DataError` where it would fill the memory.

    Whether it would is estimated from the file's own numbers before it is read.
    """
    there = file.schema_arrow
    kept = there if columns is None else pa.schema([there.field(name) for name in columns])
    row_bytes = max(_LEAST_ROW, _HELD_AT_ONCE * sum(map(_width, kept.types)))
    check_memory(row_bytes * file.metadata.num_rows, where)
    batches, size = [], 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
        batches.append(batch)
        size += batch.nbytes
        check_unpacked(size, where)
    return pa.Table.from_batches(batches, schema=kept)


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value; of a text, list or other value of no fixed size, the least."""
    if not pa.types.is_primitive(kind):
        return _LEAST_WIDTH
    return max(1, int(kind.bit_width) // 8)


def check_memory(size: float, where: str) -> None:
    """Refuse a file whose work would take more bytes than this process can get."""
    free = free_memory()
    if size > free:
        raise DataError(
            f"needs about {size / 2**30:.2g} GiB of memory, of which {free / 2**30:.2g} are free",
            where=where,
            cure="give fewer rows, or several files",
        )


def free_memory() -> int:
    """Return the bytes that this process can still get, by the machine and its own limit."""
    free = int(psutil.virtual_memory().available)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return free
    return max(0, min(free, limit - int(psutil.Process().memory_info().vms)))


def check_unpacked(size: int, where: str) -> None:
    """Refuse a file that unpacks to more bytes than `MOST_UNPACKED`."""
    if size > MOST_UNPACKED:
        raise DataError(
            f"unpacks to more than {MOST_UNPACKED / 2**30:g} GiB",
            where=where,
            cure="give fewer rows, or several files",
        )
