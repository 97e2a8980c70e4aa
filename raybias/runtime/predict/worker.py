"""Compute and commit shards with one model, in a replica, in this process, or on a rank.

Ranks are a Train worker group that shares a backbone too large for one device. Each computes and
commits shards of its own as a replica would, so neither the number of ranks nor their share of the
work changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
import torch

from raybias.config.parts import Rewriting
from raybias.engine.backbone import ModelContext
from raybias.errors import RaybiasError
from raybias.methods.base import Answered, Compute, Method, Reader, Shard, shard_of
from raybias.planning.workload import REWRITING, STYLED
from raybias.probes.styles.rewriting import Rewrite, rewritten_pairs
from raybias.runtime.predict.files import ShardFiles
from raybias.runtime.progress import Done
from raybias.runtime.worker_group import ShardedInference, within_memory
from raybias.runtime.workers import Reading, keep_ways
from raybias.schema import OutputSpec
from raybias.storage import Store


class ShardWorker:
    """One model that computes the shards of methods which share its weights.

    It holds the reader of the method that was used last, at first that of the first. A change of
    method frees what the last one kept between shards (prefix caches); the weights stay loaded.

    `context` is of this process, as `ModelContext.here` gives it.
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
        """Load the method's reader, or return it if it is loaded."""
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


@dataclass(frozen=True, kw_only=True)
class StyleRewriting:
    """One style of a study, in a method's place; `seed` keys the draws of each pair."""

    style: str
    options: Rewriting
    paired: Literal["separate", "mirror"]
    seed: int

    name: ClassVar[str] = REWRITING
    runs_per_replica: ClassVar[int] = 1

    def output(self) -> OutputSpec:
        """Say that rewritten pairs go to OUT/styled."""
        return STYLED

    def reader(self, context: ModelContext, store: Store) -> _PairRewriter:
        """Load the checkpoint and its judge."""
        from raybias.engine.rewriter import Rewriter

        return _PairRewriter(self, Rewriter(self.options, context.execution, style=self.style))


@dataclass(frozen=True)
class _PairRewriter(Reader):
    """Rewrites pairs (`schema.PAIRS`); tokens are not counted."""

    work: StyleRewriting
    rewrite: Rewrite

    def prepare(self, run: None, items: pa.Table) -> Compute:
        pairs, work = pl.DataFrame(items), self.work

        def compute() -> Answered:
            made = rewritten_pairs(
                pairs, work.style, self.rewrite, paired=work.paired, seed=work.seed
            )
            return Answered(made.to_arrow(), tokens=0)

        return compute


#: What computes shards.
Served = Method | StyleRewriting


def read_on_rank(config: Mapping[str, Any]) -> None:
    """Compute a rank's shards; Ray Train calls this on every rank."""
    import ray
    from ray.train.torch import get_device

    reading: Reading = ray.get(config["work"])
    with within_memory(reading.context, reading.store, config["folder"]) as context:
        for report in read_mine(replace(reading, context=context), get_device()):
            if isinstance(report, Done):
                reading.meter.add("raybias_rows_total", report.rows)
                reading.meter.add("raybias_tokens_total", report.tokens)
            config["progress"].put(report)


def read_mine(reading: Reading, device: torch.device) -> Iterator[Done | RaybiasError]:
    """Compute this rank's share of the missing shards.

    All ranks of the process group must call it. Yields what was done as files are committed, and
    at the end the error, if any, that stopped this rank.
    """
    (method,) = reading.methods
    sharing = ShardedInference(reading.context.spec.dtype, device)
    # Loading waits for all ranks, so they all look before any of them writes.
    waiting = ShardFiles(reading.store, reading.todo, method.output()).todo
    worker = ShardWorker(reading.context.here(device, sharing), [method], reading.store)
    items = reading.rows()
    error: RaybiasError | None = None
    sharing.begin_alone()
    try:
        for shard in waiting[sharing.ranks.rank :: sharing.ranks.world]:
            yield worker.compute(shard, items[shard.probe])
    except RaybiasError as raised:
        error = raised
    sharing.end_alone()
    if error is not None:
        yield error
