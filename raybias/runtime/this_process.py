"""Do a study's tasks in this process, one after another, without Ray.

For work that takes less than starting Ray does, and for a debugger. Tokens, threads and passes are
those of the plan, so the rows are those of any cluster, on CPUs to the bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache, lru_cache
from threading import Lock
from typing import Any, TypeVar

import pyarrow as pa
from transformers.utils.logging import disable_progress_bar

from raybias.config import Backbone, Resources
from raybias.engine.checkpoint import fetched
from raybias.engine.devices import as_found
from raybias.methods.base import Shard, shard_of
from raybias.planning.inventory import Inventory
from raybias.planning.schedule import Task
from raybias.runtime.graph import Grant, Stopped
from raybias.runtime.progress import Advance, Done
from raybias.runtime.ray_session import debugging
from raybias.runtime.tune.reports import ProgressAggregator
from raybias.runtime.tune.worker import PackWorker
from raybias.runtime.workers import Pack, ReaderCache, Reading, keep_ways

T = TypeVar("T")


class ThisProcess:
    """One worker, which holds one backbone at a time."""

    starting = "loading the model"

    def __init__(self, resources: Resources | None = None) -> None:
        self.resources = resources or Resources()
        self._held: tuple[str, Any] = ("", None)
        self._turn = Lock()
        if not debugging():
            # Workers' bars go to log files.
            disable_progress_bar()

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model of the hub into this machine's cache."""
        fetched(backbone)

    def tune(self, pack: Pack, grant: Grant, progress: ProgressAggregator) -> None:
        """Tune a pack; one that is stopped keeps its states."""
        with self._turn, as_found():
            worker = self._holding(
                f"tune/{pack.key}", lambda: PackWorker(pack.task, leaving=grant.stopped.is_set)
            )
            for report in worker.tune((pack.task, pack.tokens), tuple(pack.trials)):
                progress.add(report)
        _check(grant)

    def read(self, reading: Reading, grant: Grant, advance: Advance) -> None:
        """Compute shards, in their order."""
        with self._turn, as_found():
            # A scorer that is held was made under settings that were given back.
            reading.context.execution.set_torch()
            scorer = self._holding(f"read/{reading.name}", lambda: _Scorer(reading))
            for shard in reading.todo:
                _check(grant)
                advance(done=scorer.score(shard, reading))

    def inventory(self) -> Inventory:
        """List no nodes, so that tasks come one after another."""
        return Inventory((), "this process")

    def halve(self, fits: Callable[[Task], bool]) -> None:
        """Do nothing: no device is idle while there is work."""

    def close(self) -> None:
        """Free the backbone."""
        with self._turn:
            self._held = ("", None)
            gc.collect()

    def _holding(self, key: str, make: Callable[[], T]) -> T:
        """Return what is held under a key, or make it in the place of what is held."""
        if self._held[0] != key:
            self._held = ("", None)
            gc.collect()
            self._held = (key, make())
        held: T = self._held[1]
        return held


class _Scorer:
    """A backbone whose methods and their runs compute shards."""

    def __init__(self, reading: Reading) -> None:
        self.store = reading.store
        self.readers = ReaderCache(reading.context.here(), self.store)
        self.methods = {method.name: method for method in reading.methods}
        runs = min(method.runs_per_replica for method in reading.methods)
        self.run = lru_cache(maxsize=runs)(self._run)
        self.items = cache(self._items)
        self._told: set[str] = set()

    def _run(self, method: str, run_id: str) -> Any:
        return self.readers.of(self.methods[method]).load(run_id)

    def _items(self, probe: str) -> pa.Table:
        return self.store.read_table(f"items/{probe}.parquet")

    def score(self, shard: Shard, reading: Reading) -> Done:
        """Compute one shard and commit its file."""
        items = self.items(shard.probe) if reading.items is None else reading.items[shard.probe]
        method, run = self.methods[shard.method], self.run(shard.method, shard.run_id)
        mine = items.slice(shard.first_row, shard.rows)
        reader, schema = self.readers.of(method), method.output().schema
        result = shard_of(reader, run, shard, mine, schema)()
        self.store.write_table(shard.file, result.table)
        if shard.method not in self._told:
            self._told.add(shard.method)
            keep_ways(self.store, self.readers.context)
        return Done(rows=shard.rows, tokens=result.tokens)


def _check(grant: Grant) -> None:
    if grant.stopped.is_set():
        raise Stopped("stopped before its end")
