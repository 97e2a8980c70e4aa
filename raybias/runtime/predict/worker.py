"""Compute and commit shards with one model, in a replica, on a rank or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from raybias.methods.base import Compute, Shard, shard_of
from raybias.runtime.progress import Done
from raybias.runtime.workers import Served, keep_ways
from raybias.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from raybias.engine.backbone import ModelContext


class ShardWorker:
    """One model that computes the shards of methods which share its weights.

    It holds the reader of the method that was used last. A change of method frees what the last
    one kept between shards (prefix caches); the weights stay loaded.

    Parameters
    ----------
    context: of this process, as `ModelContext.here` gives it.
    methods: whose shards may come; the first one's reader is loaded at once.
    store: the study's OUT, which holds the runs' adapters or prompts.

    Raises
    ------
    ModelError: the backbone cannot be loaded, or not for the first method.
    """

    def __init__(self, context: ModelContext, methods: Sequence[Served], store: Store) -> None:
        self.context, self.store = context, store
        self.methods = {method.name: method for method in methods}
        self._held: tuple[str, Any] = ("", None)
        self._changing = Lock()
        self._told: set[str] = set()
        most = min(method.runs_per_replica for method in methods)
        self._run = lru_cache(maxsize=most)(lambda name, run: self.reader(name).load(run))
        self.reader(methods[0].name)

    def reader(self, method: str) -> Any:
        """Load the method's reader, or return it if it is loaded.

        Raises
        ------
        ModelError: the backbone cannot be loaded for this method.
        """
        with self._changing:
            if self._held[0] != method:
                self._held = ("", None)
                self._held = method, self.methods[method].reader(self.context, self.store)
            return self._held[1]

    def prepare(self, run: Any, shard: Shard, items: pa.Table) -> Compute:
        """Do the host's part of a shard; return what computes the rows of its file."""
        schema = self.methods[shard.method].output().schema
        return shard_of(self.reader(shard.method), run, shard, items, schema)

    def commit(self, shard: Shard, table: pa.Table) -> None:
        """Write a shard's file, and how its method reads the backbone where OUT lacks that."""
        self.store.write_table(shard.file, table)
        if shard.method not in self._told:
            self._told.add(shard.method)
            keep_ways(self.store, self.context)

    def compute(self, shard: Shard, items: pa.Table) -> Done:
        """Compute a shard of a probe's items, and commit its file."""
        run = self._run(shard.method, shard.run_id)
        result = self.prepare(run, shard, items.slice(shard.first_row, shard.rows))()
        self.commit(shard, result.table)
        return Done(rows=shard.rows, tokens=result.tokens, shard=shard)
