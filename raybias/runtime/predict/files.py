"""Find the shards that OUT lacks, and join the shards of a whole run to one file.

A shard is written in one piece to OUT/parts. When OUT holds all shards of a run on a probe, they
become one file with the same rows, so OUT has few files to list and each is of a whole run. A
process that is killed between the two leaves parts that nobody reads, and the next one deletes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from raybias.methods.base import PARTS, Shard
from raybias.runtime.progress import Advance, Done, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.schema import OutputSpec
from raybias.storage import Store

#: Files that are read at a time.
_CALLS: Final = 16
#: Rows that are in memory while shards are joined, and that stand together in the joined file.
_GROUP_ROWS: Final = 1 << 17


class ShardFiles:
    """The shards of a task; `todo` are those that OUT lacks, in their order.

    A file with wrong rows or columns is deleted.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], output: OutputSpec) -> None:
        self.store, self.shards, self.output = store, shards, output
        folders = {f"{shard.folder}/{shard.probe}" for shard in shards}
        there = {
            name
            for folder in folders
            for name in (
                *store.files(folder, suffix=".parquet"),
                *store.files(f"{PARTS}/{folder}", suffix=".parquet", recursive=True),
            )
        }
        rows = {shard.run_file: shard.total or shard.rows for shard in shards}
        with ThreadPoolExecutor(_CALLS) as pool:

            def fitting(rows: dict[str, int]) -> set[str]:
                names = sorted(there.intersection(rows))
                fits = pool.map(lambda name: self._fits(name, rows[name]), names)
                return {name for name, fit in zip(names, fits, strict=True) if fit}

            whole = fitting(rows)
            self._open = [shard for shard in shards if shard.run_file not in whole]
            done = fitting({shard.file: shard.rows for shard in self._open})
        self.todo = [shard for shard in self._open if shard.file not in done]
        parts = {shard.file for shard in shards if shard.run_file in whole} - whole
        self._left_over = {_folder(name) for name in there & parts}

    @property
    def lacking(self) -> float:
        """The share of the shards that OUT lacks, 0 to 1."""
        return len(self.todo) / max(1, len(self.shards))

    def _fits(self, name: str, rows: int) -> bool:
        """Tell whether a file has the rows and columns of its shard; delete it if not."""
        try:
            footer = pq.read_metadata(self.store.path(name), filesystem=self.store.fs)
            schema = footer.schema.to_arrow_schema()
            wanted = rows * self.output.per_item
            if footer.num_rows == wanted and schema.equals(self.output.schema):
                return True
        except FileNotFoundError:
            # Joined to its run's file meanwhile, by the driver of this rank.
            return False
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError):
            # A broken file can still be read; a storage that fails says so here.
            self.store.read_bytes(name)
        self.store.delete(name)
        return False

    def complete(
        self,
        title: str,
        read: Callable[[Sequence[Shard], Advance], None],
        reporter: Reporter,
        *,
        starting: str,
    ) -> None:
        """Have `read` compute the shards that OUT lacks, and join those of each whole run.

        Parameters
        ----------
        title: of the stage that is shown, and what it is `starting` before the first shard.
        read: called with `todo`, if there is any, and with what it calls for each shard.
        """
        total, todo = len(self.shards), self.todo
        # The outer one is for ending the replicas, which fails where the cluster is gone.
        with translating_errors(title), ExitStack() as stack:
            if todo:
                advance = stack.enter_context(reporter.stage(title, total, starting=starting))
                advance(total - len(todo))
                read(todo, stack.enter_context(self._joining(advance)))
            else:
                stack.enter_context(self._joining(lambda *_, **__: None))

    @contextmanager
    def _joining(self, advance: Advance) -> Iterator[Advance]:
        """Join the shards of each run as soon as all are there, in a thread of its own.

        Yields what does as `advance`. At the end of the context all shards must be there.
        """
        left = Counter(shard.run_file for shard in self.todo)
        parts: dict[str, list[Shard]] = defaultdict(list)
        for shard in self._open:
            if shard.file != shard.run_file:
                parts[shard.run_file].append(shard)
        joined: list[Future[None]] = []
        pool = ThreadPoolExecutor(1)

        def told(count: int = 1, *, done: Done | None = None, **what: Any) -> None:
            advance(count, done=done, **what)
            if done is not None and done.shard is not None:
                run_file = done.shard.run_file
                left[run_file] -= 1
                if not left[run_file] and run_file in parts:
                    joined.append(pool.submit(self._join, parts.pop(run_file)))

        try:
            for folder in self._left_over:
                self.store.delete_folder(folder)
            yield told
            for each in (*joined, *(pool.submit(self._join, each) for each in parts.values())):
                each.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _join(self, shards: Sequence[Shard]) -> None:
        """Write the file of a whole run from its shards, in their order, and delete theirs."""
        store, schema, sink = self.store, self.output.schema, pa.BufferOutputStream()
        together = max(1, _GROUP_ROWS // shards[0].rows)
        with (
            ThreadPoolExecutor(_CALLS) as pool,
            pq.ParquetWriter(sink, schema, compression="zstd") as writer,
        ):
            for at in range(0, len(shards), together):
                names = [shard.file for shard in shards[at : at + together]]
                tables = pool.map(lambda name: store.read_table(name, schema=schema), names)
                writer.write_table(pa.concat_tables(tables).combine_chunks())
        store.write_bytes(shards[0].run_file, sink.getvalue().to_pybytes())
        store.delete_folder(_folder(shards[0].file))


def delete_empty_parts(store: Store) -> None:
    """Delete OUT/parts where it holds no file."""
    if store.exists(PARTS) and not store.files(PARTS, recursive=True):
        store.delete_folder(PARTS)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
