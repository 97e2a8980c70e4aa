"""Do a study's tasks on a Ray cluster: packs on actors, shards on Serve replicas."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Lock
from typing import Final

from raybias.config import Backbone, Resources
from raybias.planning.inventory import Inventory, with_autoscaled_nodes
from raybias.planning.schedule import Task
from raybias.planning.stage_plans import Plan
from raybias.runtime.graph import Grant
from raybias.runtime.inventory import fetch, free, nodes_now
from raybias.runtime.owners import app_name
from raybias.runtime.predict.replica import Readers, scorers
from raybias.runtime.predict.stream import score_shards
from raybias.runtime.progress import Advance, Done
from raybias.runtime.tune.packs import PackWorkers
from raybias.runtime.tune.reports import ProgressAggregator
from raybias.runtime.tune.worker import tune_together
from raybias.runtime.worker_group import WorkerGroup
from raybias.runtime.workers import Pack, Reading
from raybias.storage import Store

#: Seconds between two looks at the nodes.
_LOOK_EVERY_S: Final = 2.0


class RayWorkers:
    """The workers of a study in the connected cluster.

    Parameters
    ----------
    app: prefix of the names of this OUT's Serve applications. The same study can run for another
        OUT in the same cluster.
    """

    starting = "starting workers, some 20 s; longer for a large model"

    def __init__(self, plan: Plan, app: str) -> None:
        self.plan, self.app = plan, app
        self.resources: Resources = plan.decided.resources
        self._gpus = plan.inventory.gpus_of_worker(self.resources) > 0
        self._packs = PackWorkers(self.resources)
        self._readers: dict[str, Readers] = {}
        self._lock = Lock()
        self._nodes, self._looked = plan.inventory, -math.inf

    def inventory(self) -> Inventory:
        """List the nodes of the cluster, looked at every two seconds, and those still to come."""
        if time.monotonic() - self._looked > _LOOK_EVERY_S:
            there = nodes_now(self.plan.inventory)
            self._nodes = with_autoscaled_nodes(there, self.resources.nodes)
            self._looked = time.monotonic()
        return self._nodes

    @property
    def free(self) -> float:
        """GPUs, or CPUs without them, that nothing holds."""
        return free(gpus=self._gpus)

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model to every machine, so that no worker holds a device while it waits."""
        fetch(backbone, gpus=self._gpus)

    def tune(self, pack: Pack, grant: Grant, progress: ProgressAggregator) -> None:
        """Tune a pack on an actor, or on a worker group that shares the backbone."""
        if pack.plan.sharded:
            self._tune_together(pack, progress)
        else:
            self._packs.tune(pack, grant, progress)

    def _tune_together(self, pack: Pack, progress: ProgressAggregator) -> None:
        group = WorkerGroup(
            name=pack.name,
            workers=pack.plan.workers,
            plan=pack.plan,
            max_failures=self.resources.max_failures,
            max_preemptions=self.resources.max_preemptions,
        )
        work = ((pack.task, pack.tokens), pack.trials)
        group.run(tune_together, work, Store(pack.task.out), progress)
        if progress.error is not None:
            raise progress.error

    def read(self, reading: Reading, grant: Grant, advance: Advance) -> None:
        """Compute shards on replicas, or on a worker group that shares the backbone."""
        if reading.plan.sharded:
            self._read_together(reading, advance)
        else:
            self._read_apart(reading, grant, advance)

    def _read_apart(self, reading: Reading, grant: Grant, advance: Advance) -> None:
        with self._lock:
            readers = self._readers.setdefault(reading.name, self._readers_of(reading))
        left = grant.enough = len(reading.todo)
        with readers.reading(grant):
            for row in score_shards(
                readers.name,
                reading.todo,
                reading.plan,
                reading.store,
                max_failures=self.resources.max_failures,
                meter=reading.meter,
                items=reading.items,
            ):
                advance(done=Done(rows=row["rows"], tokens=row["tokens"], retries=row["retries"]))
                left -= 1
                grant.enough = left
                readers.fit()

    def _readers_of(self, reading: Reading) -> Readers:
        name = app_name(self.app, reading.name)
        return Readers(
            name,
            lambda replicas: scorers(
                name,
                reading.plan,
                reading.context,
                reading.methods,
                out=reading.store.uri,
                meter=reading.meter,
                replicas=replicas,
            ),
            most=reading.plan.replicas_max,
        )

    def _read_together(self, reading: Reading, advance: Advance) -> None:
        from raybias.runtime.predict.sharded import SharedReading, score_together

        work = SharedReading(
            context=reading.context,
            method=reading.methods[0],
            out=reading.store.uri,
            shards=reading.todo,
            meter=reading.meter,
        )
        score_together(
            f"{self.app}-{reading.name}",
            work,
            reading.plan,
            max_failures=self.resources.max_failures,
            max_preemptions=self.resources.max_preemptions,
            advance=advance,
        )

    def halve(self, fits: Callable[[Task], bool]) -> None:
        """Ask large packs for half of their trials, which idle devices could tune."""
        self._packs.halve(fits)

    def close(self) -> None:
        """End the idle workers and replicas."""
        self._packs.close()
        for readers in self._readers.values():
            readers.close()
