"""Lay a planned study out as a graph of tasks, with the seconds that each is planned to take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from raybias.config import Backbone
from raybias.engine.memory import total
from raybias.methods.base import Method
from raybias.planning.machine import Speed
from raybias.planning.prepared import PreparedStudy
from raybias.planning.schedule import Task
from raybias.planning.shards import CHUNK_ROWS
from raybias.planning.stage_plans import AskPlan

if TYPE_CHECKING:
    from raybias.config import Rewriting
    from raybias.planning.stage_plans import Plan, RewritePlan

#: Bytes/s at which a node takes weights from the hub.
_HUB: Final = 100e6
#: Tokens of a sentence that is rewritten.
_SENTENCE: Final = 16


def tasks_of(prepared: PreparedStudy, plan: Plan, *, early: bool = True) -> list[Task]:
    """List the tasks of a study.

    Parameters
    ----------
    early: whether runs stop at the steps that are planned for, or all at the last.
    """
    graph = _Graph(prepared, plan, early)
    tasks = [task for backbone in prepared.study.backbones for task in graph.of(backbone)]
    return [*graph.rewriting(), *graph.fetching(), *tasks]


def fetched_models(prepared: PreparedStudy, plan: Plan) -> dict[str, tuple[Backbone, int]]:
    """Return the models of the hub that workers load, by their task, and their weights' bytes."""
    from raybias.engine.checkpoint import folder_of

    study = prepared.study
    found = {
        f"fetch/{each.name}": (each, plan.shapes[each.name].weight_bytes)
        for each in study.backbones
        if each.is_checkpoint
    }
    works = plan.works.whole.values()
    beside = [(each.spec, each.shape.weight_bytes) for work in works for each in work.beside]
    for stage in plan.rewriting:
        weights = (term.bytes for term in stage.memory)
        beside += zip(study.styles.rewriting[stage.style].specs, weights, strict=False)
    found |= {_fetching(each[0]): each for each in beside}
    return {key: each for key, each in found.items() if folder_of(each[0].id) is None}


def _fetching(spec: Backbone) -> str:
    """Name the fetching of a model that is no backbone, once for all that load it."""
    return f"fetch/{spec.id}@{spec.revision}"


@dataclass(frozen=True)
class _Graph:
    """The tasks of a plan."""

    prepared: PreparedStudy
    plan: Plan
    early: bool

    def of(self, backbone: Backbone) -> Iterator[Task]:
        """Yield the tasks of one backbone."""
        own = f"fetch/{backbone.name}"
        fetched = (own,) if own in self.fetched else ()
        for method in self.plan.methods(backbone):
            if not method.trains:
                work = self.plan.works.whole[backbone.name, method.name]
                beside = (_fetching(each.spec) for each in work.beside)
                models = (*fetched, *(key for key in beside if key in self.fetched))
                yield self._reading(backbone, method, "", (*models, *self._rewritten(method)))
                continue
            for training in self.prepared.study.training:
                packs = list(self._tuning(backbone, method, training.name, fetched))
                yield from packs
                last = tuple(pack.key for pack in packs if pack.stage == packs[-1].stage)
                yield self._reading(backbone, method, training.name, last)

    @cached_property
    def fetched(self) -> dict[str, tuple[Backbone, int]]:
        """Return the models of the hub, by the task that fetches each."""
        return fetched_models(self.prepared, self.plan)

    def fetching(self) -> Iterator[Task]:
        """Yield the fetching of each model of the hub, once for all that load it."""
        for key, (spec, count) in self.fetched.items():
            yield Task(key=key, kind="fetch", backbone=spec.name, seconds=count / _HUB)

    def _tuning(
        self, backbone: Backbone, method: Method, training: str, after: tuple[str, ...]
    ) -> Iterator[Task]:
        """Yield the packs of one training set: of the sweep, then of the final runs."""
        stage = self.plan.tune(backbone.name, training, method.name)
        work = self.plan.works.tuning[backbone.name, training, method.name]
        speed, layout = stage.speed, stage.layout
        for name, runs in (("sweep", work.sweep), ("final", work.final)):
            packs = stage.packs(name)
            stops = work.stops(runs, early=self.early)
            made = []
            for pack in range(packs):
                own = stops[pack::packs]
                alone = work.pack_seconds(speed, layout, (max(own),))
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
                    alone=0.0 if stage.sharded else alone,
                    load=speed.load(work.passes.all_bytes / layout.ranks),
                    need=stage.need,
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
        if isinstance(stage, AskPlan):
            return Task(
                key=f"read/{backbone.name}/{method.name}",
                kind="read",
                backbone=backbone.name,
                method=method.name,
                seconds=stage.seconds,
                after=after,
            )
        work = self.plan.works.reading[backbone.name, method.name]
        speed, layout = stage.speed, stage.layout
        parts = len(self.prepared.study.training) if training else 1
        least = stage.replicas_max if stage.sharded else 1
        most = min(stage.replicas_max, stage.shards // parts)
        return Task(
            key="/".join(filter(None, ("read", backbone.name, training, method.name))),
            kind="read",
            backbone=backbone.name,
            method=method.name,
            training=training,
            seconds=work.seconds(speed, layout, stage.rows_per_shard) / parts,
            load=speed.load(work.passes.all_bytes / layout.ranks),
            need=stage.need,
            least=least,
            most=max(least, most),
            after=after,
        )

    def rewriting(self) -> Iterator[Task]:
        """Yield the rewriting of pairs, one task for each style."""
        for stage in self.plan.rewriting:
            options = self.prepared.study.styles.rewriting[stage.style]
            models = (_fetching(spec) for spec in options.specs)
            yield Task(
                key=f"rewrite/{stage.style}",
                kind="rewrite",
                backbone=stage.backbone,
                seconds=_rewriting_seconds(stage, options, stage.speed),
                load=stage.speed.load(total(stage.memory[:2])),
                need=stage.need,
                most=stage.replicas_max,
                after=tuple(key for key in models if key in self.fetched),
            )

    def _rewritten(self, method: Method) -> tuple[str, ...]:
        styles = self.plan.rewriting if method.reads == "pairs" else ()
        return tuple(f"rewrite/{stage.style}" for stage in styles)


def _rewriting_seconds(stage: RewritePlan, options: Rewriting, speed: Speed) -> float:
    """Estimate the seconds of one replica: every new token of a batch reads all weights."""
    rows = max(1, stage.tokens_per_batch // _SENTENCE)
    batches = stage.chunks * math.ceil(2 * CHUNK_ROWS / rows)
    return batches * options.max_length * speed.work(0.0, total(stage.memory[:1]))
