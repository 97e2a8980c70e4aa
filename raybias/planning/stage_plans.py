"""A plan and its stages: where one backbone rewrites, is tuned or reads, by how many workers."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raybias.config import Backbone, MethodFields, Study
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.engine.memory import MemoryTerm, process
from raybias.engine.model_shape import ModelShape
from raybias.methods.base import Method, methods_of
from raybias.methods.work import Asks, Work
from raybias.planning.inventory import Inventory, Precision
from raybias.planning.machine import CPU, Layout, ResourceRequest, Speed
from raybias.planning.prepared import PreparedStudy
from raybias.planning.workload import ReadingWork, TuningWork, rows_in
from raybias.providers.base import Provider
from raybias.providers.predict import Predict


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Work of one backbone, and the resources of each of its workers.

    memory, host: arithmetic of one of a worker's devices, and of its node beside a GPU.
    device_memory: bytes of the smallest device that is used, or of its node without GPUs.
    reason: why it is sharded or not.
    requests: Ray options of a worker beside CPUs and GPUs, where not every node would do.
    pending: nodes that an autoscaler must still bring for all workers.
    speed: of the slowest device that it may run on.
    deterministic: whether a GPU computes the same bits again.
    """

    backbone: str
    need: ResourceRequest
    layout: Layout
    memory: tuple[MemoryTerm, ...]
    device_memory: int
    host: tuple[MemoryTerm, ...] = ()
    reason: str = ""
    requests: Mapping[str, Any] = field(default_factory=dict)
    pending: int = 0
    speed: Speed = CPU
    deterministic: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of one worker or replica."""
        return self.need.gpus

    @property
    def sharded(self) -> bool:
        """Whether all workers share every weight with ZeRO-3."""
        return self.layout.sharded

    def context(
        self, spec: Backbone, study: Study | None = None, *, memory: str = ""
    ) -> ModelContext:
        """Return what one worker or replica computes with.

        study: whose labels and label words it has; None for work without labels.
        memory: URI of the answers that studies share; empty for none.
        """
        execution = Execution(
            self.layout.tokens,
            "cuda" if self.gpus else "cpu",
            self.need.cpus,
            devices=self.layout.devices,
            passes=self.layout.passes,
            deterministic=self.deterministic,
        )
        context = ModelContext(spec, (), execution, memory)
        if study is None:
            return context
        return replace(context, words=study.label_words, labels=study.labels)


@dataclass(frozen=True, kw_only=True)
class TunePlan(Stage):
    """Tuning of one backbone on one training set by one method.

    workers: that the nodes hold at once; all share the backbone if it is sharded, and tune one pack
        after another.
    pack: most runs that one worker tunes in one step.
    packs: of the runs of each stage, see `TuningWork.stages`.
    """

    method: str
    training: str
    work: TuningWork
    workers: int
    pack: int
    packs: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ScorePlan(Stage):
    """Reading the probes with one backbone and the kept runs of one method.

    replicas_min, replicas_max: of Ray Serve, or workers of a group that shares the backbone.
    replica_cpus, data_cpus: that one replica asks Ray for, and that all leave to Ray Data.
    rows_per_shard: items of one request and one predictions file.
    items: rows of each probe that the `runs` read.
    work: None where it is no reading of probes with a backbone's weights.
    """

    method: str
    replicas_min: int
    replicas_max: int
    replica_cpus: float
    data_cpus: float
    rows_per_shard: int
    items: Mapping[str, int]
    runs: int
    work: ReadingWork | None = None

    @property
    def shards(self) -> int:
        """Predictions files: probes x kept runs x row ranges."""
        ranges = (math.ceil(count / self.rows_per_shard) for count in self.items.values())
        return self.runs * sum(ranges)

    @property
    def seconds(self) -> float:
        """Seconds of one replica that reads everything."""
        if self.work is None:
            return 0.0
        return self.work.seconds(self.speed, self.layout, self.rows_per_shard)

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


#: Seconds of a request, for the schedule; nobody knows them before.
LATENCY_S: Final = 1.0
#: Seconds that a shard takes: its last requests are waited for before the next one begins.
_SHARD_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class AskPlan(ScorePlan):
    """Asking a provider by one method, from one process: how often, and at most how many tokens."""

    asks: Asks
    counted: str
    money: float
    at_once: int

    @property
    def seconds(self) -> float:
        """Seconds that it takes if requests take `LATENCY_S`."""
        return self.asks.requests * LATENCY_S / self.at_once


#: Seconds of a text, for the schedule of a user's function; nobody knows them before.
_TEXT_S: Final = 0.001


@dataclass(frozen=True, kw_only=True)
class FunctionPlan(ScorePlan):
    """Reading the probes with a user's function, in as many processes as there are CPUs."""

    @property
    def seconds(self) -> float:
        """Seconds of one process, if a text takes a thousandth of one."""
        return self.runs * sum(self.items.values()) * _TEXT_S


def function_plan(
    prepared: PreparedStudy,
    inventory: Inventory,
    backbone: Predict,
    method: MethodFields,
    work: Work,
) -> FunctionPlan:
    """Plan one method on a user's function."""
    resources = prepared.study.resources
    cpus = resources.cpus_per_worker
    room = max(1, int(inventory.cpus) // cpus)
    most = min(room, int(resources.replicas_max or room))
    return FunctionPlan(
        backbone=backbone.name,
        method=method.name,
        need=ResourceRequest(cpus=cpus, gpus=0),
        layout=Layout(resources.tokens_per_batch),
        memory=(process("cpu"),),
        device_memory=max(node.memory for node in inventory.nodes),
        replicas_min=min(int(resources.replicas_min), most),
        replicas_max=most,
        replica_cpus=cpus,
        data_cpus=max(0, inventory.cpus - most * cpus),
        rows_per_shard=prepared.rows_per_shard(backbone, method) or rows_in(_SHARD_S, _TEXT_S),
        items=work.items,
        runs=work.runs,
        reason=f"calls {backbone.predict}, at a thousandth of a second for a text if it is quick",
    )


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
    asks = Asks(*(sum(n * each[part] for n, each in asked) for part in range(3)))
    each = asks.requests * LATENCY_S / backbone.at_once / max(1, runs * sum(items.values()))
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
        rows_per_shard=prepared.rows_per_shard(backbone, method) or rows_in(_SHARD_S, each),
        items=items,
        runs=runs,
        reason=f"at {backbone.place}, {backbone.at_once} requests at once, from one process",
        asks=asks,
        counted=f"prompts of {runs} runs, and {backbone.repeat:.1%} of them once more",
        money=backbone.prices.of(asks.read, asks.written),
        at_once=backbone.at_once,
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study on an inventory."""

    prepared: PreparedStudy
    """With every dtype that the study left to the hardware."""
    precision: Precision | None
    """What was decided and why; None where the study, or OUT before it, says."""
    inventory: Inventory
    shapes: dict[str, ModelShape]
    """Of each backbone with weights, by name."""
    rewriting: tuple[RewritePlan, ...]
    tuning: tuple[TunePlan, ...]
    scoring: tuple[ScorePlan, ...]
    unfit: Mapping[tuple[str, str], str]
    """Backbones and methods that are left out, and why they do not fit."""
    notes: tuple[str, ...]
    """What a user should know before starting."""

    @property
    def study(self) -> Study:
        """The study, with every dtype decided."""
        return self.prepared.study

    @property
    def devices(self) -> int:
        """GPUs, or CPUs without them, that the study holds at most."""
        return self.inventory.devices(self.study.resources)

    def methods(self, backbone: Backbone) -> list[Method]:
        """List the methods of a backbone that the inventory has room for."""
        methods = methods_of(self.study, backbone)
        return [each for each in methods if (backbone.name, each.name) not in self.unfit]

    def tune(self, backbone: str, training: str, method: str) -> TunePlan:
        """Return the plan of a tuning, by names."""
        wanted = (backbone, training, method)
        return next(t for t in self.tuning if (t.backbone, t.training, t.method) == wanted)

    def score(self, backbone: str, method: str) -> ScorePlan:
        """Return the scoring plan of a backbone and method, by names."""
        return next(s for s in self.scoring if (s.backbone, s.method) == (backbone, method))
