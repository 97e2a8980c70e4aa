"""Lay a planned study out as a graph of tasks, with the seconds that each is planned to take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.config import Backbone, Method
from raybias.engine.memory import total
from raybias.methods import Tuned
from raybias.planning.layout import runs_read
from raybias.planning.placement import ResourceRequest
from raybias.planning.plan import Plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.schedule import Task
from raybias.planning.shards import CHUNK_ROWS
from raybias.planning.speed import Machine, Speed
from raybias.planning.stage_plans import ScorePlan, Stage, TunePlan
from raybias.planning.workload import Layout, ReadingWork, TuningWork

if TYPE_CHECKING:
    from raybias.config import Rewriting
    from raybias.planning.stage_plans import RewritePlan

#: Bytes/s at which a node takes weights from the hub.
_HUB: Final = 100e6
#: Tokens of a sentence that is rewritten.
_SENTENCE: Final = 16


@dataclass(frozen=True)
class Works:
    """The work of all stages of a study.

    Attributes
    ----------
    tuning: by backbone, training set and method.
    reading: by backbone and method.
    """

    tuning: Mapping[tuple[str, str, str], TuningWork]
    reading: Mapping[tuple[str, str], ReadingWork]


def works_of(prepared: PreparedStudy, plan: Plan) -> Works:
    """Count the work of all stages of a study."""
    study, tuning, reading = prepared.study, {}, {}
    for backbone in study.backbones:
        shape = plan.shapes[backbone.name]
        for method in study.methods_of(backbone):
            text = prepared.text(method, backbone)
            runs = runs_read(study, method)
            reading[backbone.name, method.name] = ReadingWork.of(method, shape, text, runs)
            if isinstance(method, Tuned):
                for training in text.sentences:
                    work = TuningWork.of(method, shape, text, training)
                    tuning[backbone.name, training, method.name] = work
    return Works(tuning, reading)


def tasks_of(
    prepared: PreparedStudy,
    plan: Plan,
    machine: Machine,
    *,
    works: Works | None = None,
    early: bool = True,
) -> list[Task]:
    """List the tasks of a study.

    Parameters
    ----------
    works: of `works_of`, where they were counted before.
    early: whether runs stop at the steps that are planned for, or all at the last.
    """
    graph = _Graph(prepared, plan, machine, works or works_of(prepared, plan), early)
    tasks = [task for backbone in prepared.study.backbones for task in graph.of(backbone)]
    return [*graph.rewriting(), *tasks]


@dataclass(frozen=True)
class _Graph:
    """The tasks of a plan."""

    prepared: PreparedStudy
    plan: Plan
    machine: Machine
    works: Works
    early: bool

    def of(self, backbone: Backbone) -> Iterator[Task]:
        """Yield the tasks of one backbone."""
        from raybias.engine.checkpoint import folder_of

        fetched: tuple[str, ...] = ()
        if folder_of(backbone.id) is None:
            seconds = self.plan.shapes[backbone.name].weight_bytes / _HUB
            fetch = Task(
                key=f"fetch/{backbone.name}", kind="fetch", backbone=backbone.name, seconds=seconds
            )
            fetched = (fetch.key,)
            yield fetch
        for method in self.prepared.study.methods_of(backbone):
            if isinstance(method, Tuned):
                for training in self.prepared.study.training:
                    packs = list(self._tuning(backbone, method, training.name, fetched))
                    yield from packs
                    last = tuple(pack.key for pack in packs if pack.stage == "final")
                    yield self._reading(backbone, method, training.name, last)
            else:
                yield self._reading(backbone, method, "", (*fetched, *self._rewritten(method)))

    def _tuning(
        self, backbone: Backbone, method: Tuned, training: str, after: tuple[str, ...]
    ) -> Iterator[Task]:
        """Yield the packs of one training set: of the sweep, then of the final runs."""
        stage = self.plan.tune(backbone.name, training, method.name)
        work = self.works.tuning[backbone.name, training, method.name]
        speed, layout = self.speed(stage), layout_of(stage, self.plan)
        for name, runs in (("sweep", work.sweep), ("final", work.final)):
            packs = stage.packs(name)
            stops = work.stops(runs, early=self.early)
            made = []
            for pack in range(packs):
                own = stops[pack::packs]
                task = Task(
                    key=f"tune/{backbone.name}/{training}/{method.name}/{name}/{pack}",
                    kind="tune",
                    backbone=backbone.name,
                    method=method.name,
                    training=training,
                    stage=name,
                    pack=pack,
                    packs=packs,
                    runs=len(own),
                    seconds=work.pack_seconds(speed, layout, own),
                    load=speed.load(work.passes.all_bytes / layout.ranks),
                    need=need_of(stage),
                    least=stage.workers if stage.sharded else 1,
                    most=stage.workers if stage.sharded else 1,
                    after=after,
                )
                made.append(task.key)
                yield task
            after = tuple(made) or after

    def _reading(
        self, backbone: Backbone, method: Method, training: str, after: tuple[str, ...]
    ) -> Task:
        """Return the reading of all runs of one training set, or of all where none is tuned on."""
        stage = self.plan.score(backbone.name, method.name)
        work = self.works.reading[backbone.name, method.name]
        speed, layout = self.speed(stage), layout_of(stage, self.plan)
        parts = len(self.prepared.study.training) if training else 1
        least = stage.replicas_max if stage.sharded else 1
        most = min(stage.replicas_max, stage.shards // parts)
        return Task(
            key="/".join(filter(None, ("read", backbone.name, training, method.name))),
            kind="read",
            backbone=backbone.name,
            method=method.name,
            training=training,
            seconds=work.seconds(speed, layout) / parts,
            load=speed.load(work.passes.all_bytes / layout.ranks),
            need=need_of(stage),
            least=least,
            most=max(least, most),
            after=after,
        )

    def rewriting(self) -> Iterator[Task]:
        """Yield the rewriting of pairs, one task for each style."""
        for stage in self.plan.rewriting:
            options = self.prepared.study.styles.rewriting[stage.style]
            yield Task(
                key=f"rewrite/{stage.style}",
                kind="rewrite",
                backbone=stage.backbone,
                seconds=_rewriting_seconds(stage, options, self.speed(stage)),
                load=self.speed(stage).load(total(stage.memory[:2])),
                need=need_of(stage),
                most=stage.replicas_max,
            )

    def _rewritten(self, method: Method) -> tuple[str, ...]:
        styles = self.plan.rewriting if method.reads_pairs else ()
        return tuple(f"rewrite/{stage.style}" for stage in styles)

    def speed(self, stage: Stage) -> Speed:
        """Return the speed of the slowest device that a stage may run on."""
        needed = total(stage.memory)
        nodes = [
            node
            for node in self.plan.inventory.nodes
            if not stage.gpus or (node.gpus and (node.gpu_memory or needed) >= needed)
        ]
        return self.machine.speed(nodes, gpus=stage.gpus, threads=stage.threads)


def need_of(stage: Stage) -> ResourceRequest:
    """Return what one worker of a stage asks of a node."""
    held, host = total(stage.memory), total(stage.host)
    return ResourceRequest(
        cpus=stage.threads,
        gpus=stage.gpus,
        device=held if stage.gpus else 0,
        host=host if stage.gpus else held,
    )


def layout_of(stage: TunePlan | ScorePlan, plan: Plan) -> Layout:
    """Return how each worker of a stage holds its backbone."""
    ranks = 1
    if stage.sharded:
        ranks = stage.workers if isinstance(stage, TunePlan) else stage.replicas_max
    most = max(node.gpus if stage.gpus else int(node.cpus) for node in plan.inventory.nodes)
    return Layout(
        tokens=stage.tokens_per_batch,
        devices=max(1, stage.gpus),
        ranks=ranks,
        across=ranks > most,
    )


def _rewriting_seconds(stage: RewritePlan, options: Rewriting, speed: Speed) -> float:
    """Estimate the seconds of one replica: every new token of a batch reads all weights."""
    rows = max(1, stage.tokens_per_batch // _SENTENCE)
    batches = stage.chunks * math.ceil(2 * CHUNK_ROWS / rows)
    return batches * options.max_length * speed.work(0.0, total(stage.memory[:1]))
