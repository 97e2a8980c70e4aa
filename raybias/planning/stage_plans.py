"""A plan and its stages: where one backbone rewrites, is tuned or reads, by how many workers."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from raybias.config import Backbone, MethodFields, Study
from raybias.engine.backbone import ModelContext, ModelShape
from raybias.engine.context import Execution
from raybias.engine.memory import MemoryTerm, process
from raybias.methods.base import Method, methods_of
from raybias.methods.work import Work
from raybias.planning.inventory import Inventory, Precision
from raybias.planning.machine import CPU, Layout, ResourceRequest, Speed
from raybias.planning.prepared import PreparedStudy
from raybias.planning.workload import Works, rows_in
from raybias.providers.base import Provider


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Work of one backbone, and the resources of each of its workers."""

    backbone: str
    need: ResourceRequest
    """Of one worker or replica; it computes on so many CPUs."""
    layout: Layout
    memory: tuple[MemoryTerm, ...]
    """Arithmetic of one of a worker's devices."""
    device_memory: int
    """Bytes of the smallest device that is used, or of its node without GPUs."""
    host: tuple[MemoryTerm, ...] = ()
    """Arithmetic of what a worker on a GPU takes of its node's memory."""
    reason: str = ""
    """Why it is sharded or not."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Ray options of a worker beside CPUs and GPUs, where not every node would do."""
    pending: int = 0
    """Nodes that an autoscaler must still bring for all workers."""
    speed: Speed = CPU
    """Of the slowest device that it may run on."""
    deterministic: bool = False
    """Whether a GPU computes the same bits again."""

    @property
    def gpus(self) -> int:
        """GPUs of one worker or replica, which the layers are split over."""
        return self.need.gpus

    @property
    def sharded(self) -> bool:
        """Whether all workers share every weight with ZeRO-3."""
        return self.layout.sharded

    def context(
        self, spec: Backbone, words: Sequence[str] = (), *, memory: str = ""
    ) -> ModelContext:
        """Return what one worker or replica computes with; `memory` is a URI of answers."""
        execution = Execution(
            self.layout.tokens,
            "cuda" if self.gpus else "cpu",
            self.need.cpus,
            devices=self.layout.devices,
            passes=self.layout.passes,
            deterministic=self.deterministic,
        )
        return ModelContext(spec, tuple(words), execution, memory)


@dataclass(frozen=True, kw_only=True)
class TunePlan(Stage):
    """Tuning of one backbone on one training set by one method."""

    method: str
    training: str
    sweep_units: int
    """Runs of the sweep; 0 where nothing is swept over."""
    final_units: int
    """Runs after the sweep; sweep runs of the chosen combination are used again."""
    workers: int
    """Workers that the nodes hold at once; all sharing one pack where the backbone is sharded."""
    pack: int
    """Most runs that one worker tunes in one step."""
    sweep_packs: int
    """Packs of the runs of the sweep; each is tuned by itself, on one worker."""
    final_packs: int
    """Packs of the final runs."""

    def packs(self, stage: str) -> int:
        """Return the packs of a stage, "sweep" or "final"."""
        return self.sweep_packs if stage == "sweep" else self.final_packs


@dataclass(frozen=True, kw_only=True)
class ScorePlan(Stage):
    """Reading the probes with one backbone and the kept runs of one method."""

    method: str
    replicas_min: int
    replicas_max: int
    """Ray Serve replicas; workers of one group where the backbone is sharded."""
    replica_cpus: float
    """CPUs that one replica asks Ray for."""
    data_cpus: float
    """CPUs left to Ray Data when all replicas run."""
    rows_per_shard: int
    """Items of one request and one predictions file."""
    items: Mapping[str, int]
    """Rows of each probe that is read."""
    runs: int
    """That read them."""
    shards: int
    """Predictions files: probes x kept runs x row ranges."""

    @property
    def replica(self) -> Hashable:
        """Number and resources of the replicas; stages where it is equal can share them."""
        counts = (self.replicas_min, self.replicas_max)
        each = (self.need.cpus, self.replica_cpus, self.gpus, self.layout.tokens)
        return (*counts, *each, json.dumps(self.requests, sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class RewritePlan(ScorePlan):
    """Rewriting of the probes' pairs in one style with a checkpoint, in shards of pairs."""

    style: str
    judge: str
    paired: Literal["separate", "mirror"]
    """Whether both sides of a pair are rewritten, or one and the edit is carried over."""


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
        need=ResourceRequest(cpus=1, gpus=0),
        layout=Layout(0),
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study on an inventory."""

    study: str
    decided: Study
    """The study, with every dtype that it left to the hardware."""
    precision: Precision | None
    """What was decided and why; None where the study, or OUT before it, says."""
    inventory: Inventory
    items: dict[str, int]
    """Rows per probe."""
    shapes: dict[str, ModelShape]
    """Of each backbone with weights, by name."""
    rewriting: tuple[RewritePlan, ...]
    tuning: tuple[TunePlan, ...]
    scoring: tuple[ScorePlan, ...]
    works: Works
    """What each stage has to do."""
    unfit: Mapping[tuple[str, str], str]
    """Backbones and methods that are left out, and why they do not fit."""
    notes: tuple[str, ...]
    """What a user should know before starting."""

    @property
    def devices(self) -> int:
        """Return the GPUs, or CPUs without them, that the study holds at most."""
        return self.inventory.devices(self.decided.resources)

    def methods(self, backbone: Backbone) -> list[Method]:
        """List the methods of a backbone that the inventory has room for."""
        methods = methods_of(self.decided, backbone)
        return [each for each in methods if (backbone.name, each.name) not in self.unfit]

    def rewrite(self, style: str) -> RewritePlan:
        """Return the plan of a style that a model makes."""
        return next(each for each in self.rewriting if each.style == style)

    def tune(self, backbone: str, training: str, method: str) -> TunePlan:
        """Return the tuning plan of a backbone, training set and method, by their names."""
        wanted = (backbone, training, method)
        return next(t for t in self.tuning if (t.backbone, t.training, t.method) == wanted)

    def score(self, backbone: str, method: str) -> ScorePlan:
        """Return the scoring plan of a backbone and method, by their names."""
        return next(s for s in self.scoring if (s.backbone, s.method) == (backbone, method))
