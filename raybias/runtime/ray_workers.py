"""Do a study's tasks on a Ray cluster: packs on actors, shards on Serve replicas.

A pack's worker is an actor in a placement group of its own. One that is lost is replaced; an idle
one waits a moment for another pack with its backbone, and takes half of the slowest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Lock, Timer
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raybias.config import Backbone, Resources
from raybias.engine.adapters.tuning import Trial
from raybias.engine.checkpoint import fetched
from raybias.errors import RaybiasError
from raybias.planning.inventory import Inventory, with_autoscaled_nodes
from raybias.planning.stage_plans import Plan, TunePlan
from raybias.planning.tasks import Task
from raybias.runtime.graph import LOOK_EVERY_S, Grant
from raybias.runtime.inventory import NODE_LABEL, alive_nodes, ask, nodes_now
from raybias.runtime.pack_worker import PackWorker, tune_together
from raybias.runtime.predict.shards import Reading, read_on_rank
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Done
from raybias.runtime.ray_internals import app_name, leaving_nodes
from raybias.runtime.tuning import TuningStage
from raybias.runtime.worker_group import run_group
from raybias.runtime.workers import Workers

#: Seconds that an idle worker keeps its backbone for another pack.
_LINGERS_S: Final = 2.0
#: Seconds for which a worker waits for a place on a node that is not reserved.
_AVOIDS_S: Final = 10.0


class _Seat:
    """A placement group for one worker of a backbone and method, its actor, and its pack.

    Ray gives places in the order in which they are asked for.

    task, left: of the pack that it tunes, and the pack's trials that have not stopped.
    begun: the time of its first report or split.
    asked: whether it is asked for half of its trials.
    """

    def __init__(self, key: str, plan: TunePlan, avoid: Collection[str]) -> None:
        self.key = key
        self.worker: Any = None
        self.task: Task
        self.left: Mapping[str, Trial]
        self.begun: float
        self.asked: bool
        asked = dict(plan.requests)
        selector = dict(asked.pop("label_selector", {}))
        if avoid:
            selector[NODE_LABEL] = f"!in({','.join(sorted(avoid))})"
        bundle = {"CPU": plan.need.cpus, "GPU": plan.gpus, **asked}
        self.group = placement_group(
            [{name: count for name, count in bundle.items() if count}],
            strategy="STRICT_PACK",
            bundle_label_selector=[selector] if selector else None,
        )

    def start(self, stage: TuningStage) -> None:
        plan = stage.plan
        # The second thread hears what the pack is asked while the first tunes it.
        actor = ray.remote(PackWorker).options(
            num_cpus=plan.need.cpus,
            num_gpus=plan.gpus,
            memory=plan.requests.get("memory"),
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.group),
        )
        self.worker = actor.remote(stage.task.context)

    @property
    def seconds(self) -> float:
        """Planned seconds of what is left of its pack."""
        return self.task.seconds * len(self.left) / max(1, self.task.runs)

    @property
    def node(self) -> str:
        nodes: dict[int, str] = placement_group_table(self.group)["bundles_to_node_id"]
        return nodes.get(0, "")

    def end(self) -> None:
        if self.worker is not None:
            ray.kill(self.worker)
        remove_placement_group(self.group)


class RayWorkers(Workers):
    """The workers of a study in the connected cluster; `app` is a prefix of Serve applications."""

    starting = "starting workers, some 20 s; longer for a large model"

    def __init__(self, plan: Plan, app: str) -> None:
        self.plan, self.app = plan, app
        self.resources: Resources = plan.study.resources
        self._gpus = plan.inventory.gpus_of_worker(self.resources) > 0
        self._idle: list[_Seat] = []
        self._busy: list[_Seat] = []
        self._sent: dict[str, Any] = {}
        self._replicas: dict[str, Replicas] = {}
        self._lock = Lock()
        self._nodes, self._looked = plan.inventory, -math.inf

    def inventory(self) -> Inventory:
        """List the nodes of the cluster, looked at every two seconds, and those still to come."""
        if time.monotonic() - self._looked > LOOK_EVERY_S:
            there = nodes_now(self.plan.inventory)
            self._nodes = with_autoscaled_nodes(there, self.resources.nodes)
            self._looked = time.monotonic()
        return self._nodes

    @property
    def full(self) -> bool:
        """Whether other work holds all GPUs, or CPUs without them, that are there."""
        kind = "GPU" if self._gpus else "CPU"
        return bool(
            ray.available_resources().get(kind, 0) < 1 <= ray.cluster_resources().get(kind, 0)
        )

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model to every machine that has workers, so that none waits on its device."""
        able = (node for node in alive_nodes() if node.gpus or not self._gpus)
        machines = {node.address: node.name for node in able}
        try:
            ask(machines.values(), partial(fetched, backbone), patience_s=math.inf)
        except RayError as error:
            # A node was lost. Workers fetch what a machine does not have.
            if isinstance(error, RayTaskError):
                raise

    def tune(self, stage: TuningStage, trials: Sequence[Trial], grant: Grant) -> None:
        if stage.plan.sharded:
            run_group(
                stage.name,
                stage.plan,
                self.resources,
                work=tune_together,
                task=(stage.task, trials),
                store=stage.job.store,
                add=stage.progress.add,
            )
            return
        failures = preemptions = 0
        most = self.resources.max_preemptions
        left = {trial.run_id: trial for trial in trials}
        while left:
            try:
                self._tune_on_one(stage, left, grant)
                # Its node is about to be taken away, if it left anything.
                preemptions += bool(left)
            except RayError as error:
                # Ray's wrapper of an error of ours inherits from both.
                if isinstance(error, RaybiasError):
                    raise
                preempted = isinstance(error, RayActorError) and error.preempted
                preemptions, failures = preemptions + preempted, failures + (not preempted)
                beyond = most is not None and preemptions > most
                if grant.stopped.is_set() or failures > self.resources.max_failures or beyond:
                    raise

    def _tune_on_one(self, stage: TuningStage, left: dict[str, Trial], grant: Grant) -> None:
        seat = self._take(stage, grant)
        grant.on_stop(seat.end)
        seat.task, seat.left, seat.begun, seat.asked = grant.task, left, math.inf, False
        self._busy.append(seat)
        try:
            with self._lock:
                if stage.name not in self._sent:
                    self._sent[stage.name] = ray.put(stage.task)
            for reference in seat.worker.tune.remote(self._sent[stage.name], tuple(left.values())):
                report = ray.get(reference)
                if seat.begun == math.inf:
                    seat.begun = time.monotonic()
                    grant.nodes = {seat.node: 1}
                if report.given:
                    stage.split(tuple(left.pop(run_id) for run_id in report.given), grant)
                    seat.asked, seat.begun = False, time.monotonic()
                for run_id in report.over:
                    left.pop(run_id)
                stage.progress.add(report)
        except BaseException:
            seat.end()
            raise
        finally:
            self._busy.remove(seat)
        if left:
            seat.end()
        else:
            self._keep(seat)

    def read(self, reading: Reading, grant: Grant, add: Callable[[Done], None]) -> None:
        if reading.plan.sharded:
            name = f"{self.app}-{reading.name}"
            run_group(
                name,
                reading.plan,
                self.resources,
                work=read_on_rank,
                task=reading,
                store=reading.store,
                add=add,
            )
            if reading.store.exists(f"train/{name}"):
                reading.store.delete_folder(f"train/{name}")
            return
        with self._lock:
            name = app_name(self.app, reading.name)
            replicas = self._replicas.setdefault(reading.name, Replicas(name, reading))
        replicas.read(reading, grant, add, max_failures=self.resources.max_failures)

    def halve(self, fits: Callable[[Task], object]) -> None:
        """Ask large packs to hand over half of their trials, where `fits` takes a free place.

        Not before they have run for as long as a worker takes to start.
        """
        now = time.monotonic()
        for seat in sorted(self._busy, key=lambda each: -each.seconds):
            trials = list(seat.left)
            ripe = now - seat.begun > seat.task.load and len(trials) > 1
            if ripe and not seat.asked and fits(seat.task):
                seat.asked = True
                seat.worker.give.remote(trials[len(trials) // 2 :])

    def _take(self, stage: TuningStage, grant: Grant) -> _Seat:
        """Take an idle worker that holds the backbone, or start one; end idle ones in its way."""
        plan, leaving = stage.plan, leaving_nodes()
        key = f"{plan.backbone}/{plan.method}"
        avoid = grant.avoid | leaving
        with self._lock:
            for seat in self._idle.copy():
                if seat.key == key and seat.node not in avoid:
                    self._idle.remove(seat)
                    return seat
                if seat.node in grant.nodes:
                    self._idle.remove(seat)
                    seat.end()
        seat = _Seat(key, plan, avoid)
        if grant.avoid and not seat.group.wait(_AVOIDS_S):
            # Its node was lost, or is another study's; what is reserved was so for this moment.
            seat.end()
            seat = _Seat(key, plan, leaving)
        grant.avoid = frozenset()
        seat.start(stage)
        return seat

    def _keep(self, seat: _Seat) -> None:
        with self._lock:
            self._idle.append(seat)

        def end() -> None:
            with self._lock:
                if seat not in self._idle:
                    return
                self._idle.remove(seat)
            seat.end()

        timer = Timer(_LINGERS_S, end)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for seat in idle:
            seat.end()
        for replicas in self._replicas.values():
            replicas.close()
