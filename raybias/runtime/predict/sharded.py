"""Compute shards with a Train worker group that shares a backbone too large for one device.

Every rank computes and commits shards of its own as a replica would, so neither the number of
ranks nor their share of the work changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from raybias.errors import RaybiasError
from raybias.methods.base import Shard, shard_of
from raybias.planning.shards import missing
from raybias.planning.stage_plans import RewritePlan, ScorePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Advance, Done
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.worker_group import WorkerGroup, within_memory
from raybias.runtime.workers import Served, keep_ways
from raybias.storage import Store

if TYPE_CHECKING:
    from ray.util.queue import Queue

    from raybias.engine.backbone import ModelContext


@dataclass(frozen=True, kw_only=True)
class SharedReading:
    """The work of all ranks that share a backbone."""

    context: ModelContext
    method: Served
    out: str
    shards: tuple[Shard, ...]
    meter: Meter


@dataclass
class _Reports:
    """Collects from ranks what is done, and the first error."""

    advance: Advance
    error: RaybiasError | None = None

    def add(self, report: Done | RaybiasError) -> None:
        if isinstance(report, Done):
            self.advance(done=report)
        else:
            self.error = self.error or report


def score_together(
    name: str,
    reading: SharedReading,
    plan: ScorePlan | RewritePlan,
    *,
    max_failures: int,
    max_preemptions: int | None = None,
    advance: Advance,
) -> None:
    """Compute the shards of `reading` and commit their files.

    Parameters
    ----------
    name: of the worker group.
    max_failures: how often the group is started again after a rank has died.
    max_preemptions: how often beside these for preempted nodes; any number by default.
    advance: called once per shard.

    Raises
    ------
    ModelError, WorkFailed: the backbone cannot be loaded, or a shard cannot be computed.
    """
    store, reports = Store(reading.out), _Reports(advance)
    group = WorkerGroup(
        name=name,
        workers=plan.replicas_max,
        plan=plan,
        max_failures=max_failures,
        max_preemptions=max_preemptions,
    )
    with translating_errors(f"score with {reading.context.spec.name}"):
        group.run(work, reading, store, reports)
    if reports.error is not None:
        raise reports.error
    if store.exists(group.folder):
        store.delete_folder(group.folder)


def work(config: Mapping[str, Any]) -> None:
    """Compute a rank's shards; Ray Train calls this on every rank."""
    import ray
    from ray.train.torch import get_device

    progress: Queue = config["progress"]
    reading: SharedReading = ray.get(config["work"])
    with within_memory(reading.context, Store(reading.out), config["folder"]) as context:
        for report in read_mine(replace(reading, context=context), get_device()):
            if isinstance(report, Done):
                reading.meter.add("raybias_rows_total", report.rows)
                reading.meter.add("raybias_tokens_total", report.tokens)
            progress.put(report)


def read_mine(reading: SharedReading, device: torch.device) -> Iterator[Done | RaybiasError]:
    """Compute this rank's share of the missing shards.

    All ranks of the process group must call it. Yields what was done as files are committed, and
    at the end the error, if any, that stopped this rank.
    """
    from raybias.runtime.zero3 import ShardedInference

    store, sharing = Store(reading.out), ShardedInference(reading.context.spec.dtype, device)
    # Loading waits for all ranks, so they all look before any of them writes.
    schema = reading.method.output().schema
    waiting = missing(store, reading.shards, reading.method.output())
    reader = reading.method.reader(reading.context.here(device, sharing), store)

    @cache
    def items(probe: str) -> pa.Table:
        return store.read_table(f"items/{probe}.parquet")

    @cache
    def run(run_id: str) -> Any:
        return reader.load(run_id)

    if sharing.ranks.rank == 0:
        keep_ways(store, reading.context)
    error: RaybiasError | None = None
    sharing.begin_alone()
    try:
        for shard in waiting[sharing.ranks.rank :: sharing.ranks.world]:
            mine = items(shard.probe).slice(shard.first_row, shard.rows)
            result = shard_of(reader, run(shard.run_id), shard, mine, schema)()
            store.write_table(shard.file, result.table)
            yield Done(rows=shard.rows, tokens=result.tokens)
    except RaybiasError as raised:
        error = raised
    sharing.end_alone()
    if error is not None:
        yield error
