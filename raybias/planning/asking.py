"""Plan what is asked of a provider: one process, no device, so many requests, tokens and money."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from raybias.config import MethodFields
from raybias.engine.memory import process
from raybias.methods.work import Work
from raybias.planning.inventory import Inventory
from raybias.planning.prepared import PreparedStudy
from raybias.planning.shards import rows_in
from raybias.planning.stage_plans import ScorePlan
from raybias.providers.base import Provider

#: Seconds of a request, for the schedule; nobody knows them before.
LATENCY_S: Final = 1.0
#: Seconds that a shard takes: its last requests are waited for before the next one begins.
_SHARD_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class AskPlan(ScorePlan):
    """Asking a provider by one method, from one process."""

    calls: float
    """Requests, those that are repeated too."""
    counted: str
    """How they are counted."""
    read: float
    """Tokens of prompts."""
    written: float
    """Most tokens of answers."""
    money: float
    at_once: int

    @property
    def seconds(self) -> float:
        """Seconds that it takes if requests take `LATENCY_S`."""
        return self.calls * LATENCY_S / self.at_once


def asking_plan(
    prepared: PreparedStudy,
    inventory: Inventory,
    backbone: Provider,
    method: MethodFields,
    work: Work,
) -> AskPlan:
    """Plan one method on a provider's backbone."""
    items, runs = work.items, work.runs
    times = runs * (1 + backbone.repeat)
    asked = [(times * count, work.asks[name]) for name, count in items.items()]
    calls, read, written = (sum(n * each[part] for n, each in asked) for part in range(3))
    each = calls * LATENCY_S / backbone.at_once / max(1, runs * sum(items.values()))
    rows = prepared.rows_per_shard(backbone, method) or rows_in(_SHARD_S, each)
    return AskPlan(
        backbone=backbone.name,
        method=method.name,
        gpus=0,
        threads=1,
        tokens_per_batch=0,
        memory=(process("cpu"),),
        device_memory=max(node.memory for node in inventory.nodes),
        replicas_min=1,
        replicas_max=1,
        replica_cpus=0,
        data_cpus=inventory.cpus,
        rows_per_shard=rows,
        items=items,
        runs=runs,
        shards=runs * sum(math.ceil(count / rows) for count in items.values()),
        reason=f"at {backbone.place}, {backbone.at_once} requests at once, from one process",
        calls=calls,
        counted=f"prompts of {runs} runs, and {backbone.repeat:.1%} of them once more",
        read=read,
        written=written,
        money=backbone.prices.of(read, written),
        at_once=backbone.at_once,
    )
