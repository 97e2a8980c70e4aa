"""Compute shards with a Train worker group that shares a backbone too large for one device.

Every rank computes and commits shards of its own as a replica would, so neither the number of
ranks nor their share of the work changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from raybias.config import Resources
from raybias.errors import RaybiasError
from raybias.runtime.predict.files import missing
from raybias.runtime.predict.worker import ShardWorker
from raybias.runtime.progress import Advance, Done
from raybias.runtime.worker_group import run_group, within_memory
from raybias.runtime.workers import Reading

if TYPE_CHECKING:
    from ray.util.queue import Queue


def read_together(name: str, reading: Reading, resources: Resources, advance: Advance) -> None:
    """Compute the shards of a reading by one method, and commit their files.

    Parameters
    ----------
    name: of the worker group.
    resources: say how often the group is started again, after a rank has died or for a preempted
        node.
    advance: called once per shard.

    Raises
    ------
    ModelError, WorkFailed: the backbone cannot be loaded, or a shard cannot be computed.
    """
    run_group(
        name,
        reading.plan,
        reading.plan.replicas_max,
        resources,
        work=work,
        task=reading,
        store=reading.store,
        add=lambda done: advance(done=done),
    )
    if reading.store.exists(f"train/{name}"):
        reading.store.delete_folder(f"train/{name}")


def work(config: Mapping[str, Any]) -> None:
    """Compute a rank's shards; Ray Train calls this on every rank."""
    import ray
    from ray.train.torch import get_device

    progress: Queue = config["progress"]
    reading: Reading = ray.get(config["work"])
    with within_memory(reading.context, reading.store, config["folder"]) as context:
        for report in read_mine(replace(reading, context=context), get_device()):
            if isinstance(report, Done):
                reading.meter.add("raybias_rows_total", report.rows)
                reading.meter.add("raybias_tokens_total", report.tokens)
            progress.put(report)


def read_mine(reading: Reading, device: torch.device) -> Iterator[Done | RaybiasError]:
    """Compute this rank's share of the missing shards.

    All ranks of the process group must call it. Yields what was done as files are committed, and
    at the end the error, if any, that stopped this rank.
    """
    from raybias.runtime.zero3 import ShardedInference

    (method,) = reading.methods
    sharing = ShardedInference(reading.context.spec.dtype, device)
    # Loading waits for all ranks, so they all look before any of them writes.
    waiting = missing(reading.store, reading.todo, method.output())
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
