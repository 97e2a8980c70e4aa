"""A planned study as a graph of tasks with dependencies and seconds, for `runtime/graph.py`.

Of the ready tasks the widest starts first, then the one with the longest path to the end (list
scheduling by critical path).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from graphlib import TopologicalSorter
from typing import Final, Literal

from raybias.config import Backbone
from raybias.engine.checkpoint import base_of, folder_of
from raybias.engine.memory import total
from raybias.planning.machine import ResourceRequest
from raybias.planning.stage_plans import FunctionPlan, Plan, RewritePlan, ScorePlan, TunePlan
from raybias.planning.workload import CHUNK_ROWS

#: Bytes/s at which a node takes weights from the hub.
_HUB: Final = 100e6
#: Tokens of a sentence that is rewritten.
_SENTENCE: Final = 16

Kind = Literal["fetch", "rewrite", "tune", "read"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work of one worker, one worker group or some replicas.

    stage: of tuning, see `TuningWork.stages`.
    pack, packs: the task has every `packs`-th run of its stage, from the one at `pack`.
    runs: number of these runs.
    seconds: of computing, once the backbone is loaded; of one replica, where several share it.
    alone: seconds of a pack's longest run by itself; 0 for a task that cannot be halved.
    singly: seconds of a pack's runs one after another; 0 alike.
    rounds: seconds until all packs of the stage have ended, if nothing else holds devices; 0 alike.
    load: seconds in which a worker loads the backbone.
    need: of each worker; None for a task without a device.
    least, most: workers; where these differ they are replicas, which come and go.
    after: keys of the tasks that it depends on.
    """

    key: str
    kind: Kind
    backbone: str
    method: str = ""
    training: str = ""
    stage: str = ""
    pack: int = 0
    packs: int = 1
    runs: int = 0
    seconds: float
    alone: float = 0.0
    singly: float = 0.0
    rounds: float = 0.0
    load: float = 0.0
    need: ResourceRequest | None = None
    least: int = 1
    most: int = 1
    after: tuple[str, ...] = ()

    @property
    def divisible(self) -> bool:
        """Whether replicas share it, however many there are."""
        return self.least < self.most

    @property
    def devices(self) -> int:
        """GPUs, or CPUs without them, of one worker."""
        return self.need.devices if self.need else 0

    @property
    def work(self) -> float:
        """Device-seconds of computing, loading aside."""
        workers = 1 if self.divisible else self.least
        return self.seconds * self.devices * workers


def remaining(tasks: Iterable[Task]) -> dict[str, float]:
    """Return by task the seconds of the longest path from its beginning to the study's end."""
    known = {task.key: task for task in tasks}
    order = TopologicalSorter({key: task.after for key, task in known.items()}).static_order()
    paths = dict.fromkeys(known, 0.0)
    for task in map(known.__getitem__, reversed(list(order))):
        paths[task.key] += task.load + task.seconds / (task.most if task.divisible else 1)
        for before in task.after:
            paths[before] = max(paths[before], paths[task.key])
    return paths


def tasks_of(plan: Plan, *, early: bool = True) -> list[Task]:
    """List the tasks of a study; runs stop early, as planned, or all at their last step."""
    fetched = fetched_models(plan)
    tasks = [
        Task(key=key, kind="fetch", backbone=spec.name, seconds=count / _HUB)
        for key, (spec, count) in fetched.items()
    ]
    for rewriting in plan.rewriting:
        specs = plan.study.styles.rewriting[rewriting.style].specs
        models = [key for spec in specs if (key := _fetching(spec)) in fetched]
        tasks.append(_rewriting(plan, rewriting, tuple(models)))
    styles = tuple(task.key for task in tasks if task.kind == "rewrite")
    for backbone in plan.study.backbones:
        own = [key for key in [f"fetch/{backbone.name}"] if key in fetched]
        for method in plan.methods(backbone):
            sets = plan.study.training_of(method)
            for training in sets if method.trains else (None,):
                if training is not None:
                    tuned = plan.tune(backbone.name, training.name, method.name)
                    packs = list(tuning_tasks(plan, tuned, tuple(own), early=early))
                    after = [pack.key for pack in packs if pack.stage == packs[-1].stage]
                    tasks += packs
                else:
                    beside = plan.prepared.works[backbone.name, method.name].beside
                    models = [key for each in beside if (key := _fetching(each.spec)) in fetched]
                    after = [*own, *models, *(styles if method.reads == "pairs" else ())]
                name, parts = (training.name, len(sets)) if training else ("", 1)
                stage = plan.score(backbone.name, method.name)
                tasks.append(replace(_reading(stage, name, parts), after=tuple(after)))
    return tasks


def fetched_models(plan: Plan) -> dict[str, tuple[Backbone, int]]:
    """Return the models of the hub that workers load, by their task, and their weights' bytes."""
    study = plan.study
    found = {
        f"fetch/{each.name}": (each, plan.shapes[each.name].weight_bytes)
        for each in study.backbones
        if each.is_checkpoint
    }
    works = plan.prepared.works.values()
    beside = [(each.spec, each.shape.weight_bytes) for work in works for each in work.beside]
    for stage in plan.rewriting:
        weights = (term.bytes for term in stage.memory)
        beside += zip(study.styles.rewriting[stage.style].specs, weights, strict=False)
    found |= {_fetching(each[0]): each for each in beside}
    return {key: each for key, each in found.items() if folder_of(base_of(each[0]).id) is None}


def _fetching(spec: Backbone) -> str:
    """Name the download of a model beside the backbones, shared by all that load it."""
    return f"fetch/{spec.id}@{spec.revision}"


def tuning_tasks(
    plan: Plan, stage: TunePlan, after: tuple[str, ...] = (), *, early: bool
) -> Iterator[Task]:
    """Yield the packs of a training set, stage by stage; the first stage is after `after`."""
    work = stage.work
    load = stage.speed.load(work.passes.all_bytes / stage.layout.ranks)

    # Runs are planned to stop at few different steps, and of thousands most packs are alike.
    @cache
    def pack_seconds(stops: tuple[int, ...], name: str) -> float:
        return work.pack_seconds(stage.speed, stage.layout, stops, name)

    def seconds(stops: tuple[int, ...], packs: int, name: str) -> list[float]:
        return [pack_seconds(stops[pack::packs], name) for pack in range(packs)]

    for name, (runs, _) in work.stages.items():
        packs, stops = stage.packs[name], work.stops(runs, early=early, stage=name)
        if not packs:
            continue
        each, rounds = seconds(stops, packs, name), 0.0
        if not stage.sharded:
            # Packs take turns. In the last turn, devices without one take halves of the others.
            room = max(1, plan.devices // stage.need.devices)
            last = (packs - 1) % room + 1
            some = stops[:: packs // last]
            rounds = max(seconds(some, last, name))
            if last < (halved := min(room, len(some))):
                rounds = min(rounds, load + max(seconds(some, halved, name)))
            rounds += (packs - last) // room * sum(each) / packs
        made: list[str] = []
        for pack in range(packs):
            own = stops[pack::packs]
            apart = [0.0] if stage.sharded else seconds(own, len(own), name)
            task = Task(
                key=f"tune/{stage.backbone}/{stage.training}/{stage.method}/{name}/{pack}",
                kind="tune",
                backbone=stage.backbone,
                method=stage.method,
                training=stage.training,
                stage=name,
                pack=pack,
                packs=packs,
                runs=len(own),
                seconds=each[pack],
                alone=max(apart),
                singly=sum(apart),
                rounds=rounds,
                load=load,
                need=stage.need,
                least=stage.layout.ranks,
                most=stage.layout.ranks,
                # Packs that share the backbone are tuned one after another, on all of its workers.
                after=(*after, *made[-1:]) if stage.sharded else after,
            )
            made.append(task.key)
            yield task
        after = tuple(made)


def _reading(stage: ScorePlan, training: str, parts: int) -> Task:
    """Return the scoring of one of `parts` training sets' runs, or of all where none is tuned."""
    task = Task(
        key="/".join(filter(None, ("read", stage.backbone, training, stage.method))),
        kind="read",
        backbone=stage.backbone,
        method=stage.method,
        training=training,
        seconds=stage.seconds / parts,
    )
    if isinstance(stage, FunctionPlan):
        return replace(task, need=stage.need, most=min(stage.replicas_max, stage.shards))
    if (work := stage.work) is None:
        return task
    least = stage.replicas_max if stage.sharded else 1
    return replace(
        task,
        load=stage.speed.load(work.passes.all_bytes / stage.layout.ranks),
        need=stage.need,
        least=least,
        most=max(least, min(stage.replicas_max, stage.shards // parts)),
    )


def _rewriting(plan: Plan, stage: RewritePlan, after: tuple[str, ...]) -> Task:
    """Return the rewriting of pairs in one style; every new token of a batch reads all weights."""
    rows = max(1, stage.layout.tokens // _SENTENCE)
    batches = stage.shards * math.ceil(2 * CHUNK_ROWS / rows)
    length = plan.study.styles.rewriting[stage.style].max_length
    return Task(
        key=f"rewrite/{stage.style}",
        kind="rewrite",
        backbone=stage.backbone,
        seconds=batches * length * stage.speed.work(0.0, total(stage.memory[:1])),
        load=stage.speed.load(total(stage.memory[:2])),
        need=stage.need,
        most=stage.replicas_max,
        after=after,
    )
