"""Actors that tune packs: started, started again when they are lost, and taken over by packs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Final

from raybias.config import Resources
from raybias.engine.adapters.tuning import Trial
from raybias.errors import RaybiasError
from raybias.planning.schedule import Task
from raybias.runtime.graph import Grant
from raybias.runtime.tune.reports import ProgressAggregator
from raybias.runtime.tune.worker import PackWorker
from raybias.runtime.workers import Pack

#: Seconds that an idle worker keeps its backbone for another pack.
_LINGERS_S: Final = 2.0


@dataclass(eq=False)
class _Running:
    """A worker that tunes a pack.

    Attributes
    ----------
    left: trials that have not stopped.
    begun: when it first told of itself, or gave trials up.
    """

    task: Task
    worker: Any
    left: Mapping[str, Trial]
    begun: float = math.inf
    asked: bool = False

    @property
    def seconds(self) -> float:
        """Planned seconds of what is left."""
        return self.task.seconds * len(self.left) / max(1, self.task.runs)


class PackWorkers:
    """The tuning workers of a study.

    Each holds the backbone of one method, and no other worker waits for it.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._idle: dict[str, list[Any]] = {}
        self._running: dict[str, _Running] = {}
        self._sent: dict[str, Any] = {}
        self._lock = Lock()

    def tune(self, pack: Pack, grant: Grant, progress: ProgressAggregator) -> None:
        """Tune a pack on one worker, and on another when it is lost.

        Raises
        ------
        RaybiasError: what a restart would not mend.
        RayError: more workers failed than the study allows.
        """
        from ray.exceptions import RayActorError, RayError

        failures = preemptions = 0
        most = self.resources.max_preemptions
        left = {trial.run_id: trial for trial in pack.trials}
        while left:
            try:
                self._tune(pack, left, grant, progress)
                # Its node is about to be taken away, if it left anything.
                preemptions += bool(left)
            except RaybiasError:
                raise
            except RayError as error:
                preempted = isinstance(error, RayActorError) and error.preempted
                preemptions, failures = preemptions + preempted, failures + (not preempted)
                beyond = most is not None and preemptions > most
                if grant.stopped.is_set() or failures > self.resources.max_failures or beyond:
                    raise

    def _tune(
        self, pack: Pack, left: dict[str, Trial], grant: Grant, progress: ProgressAggregator
    ) -> None:
        """Tune on one worker, and take what it is done with out of `left`."""
        import ray

        worker = self._take(pack)
        running = self._running[grant.task.key] = _Running(grant.task, worker, left)
        grant.on_stop(lambda: ray.kill(worker))
        try:
            for reference in worker.tune.remote(self._work(pack), tuple(left.values())):
                report = ray.get(reference)
                running.begun = min(running.begun, time.monotonic())
                if report.given:
                    pack.split(tuple(left.pop(run_id) for run_id in report.given), grant)
                    running.asked, running.begun = False, time.monotonic()
                stopped = [each.run_id for each in report.evaluated if each.stopped]
                for run_id in (*report.finished, *stopped):
                    left.pop(run_id)
                progress.add(report)
        except BaseException:
            ray.kill(worker)
            raise
        finally:
            del self._running[grant.task.key]
        if left:
            ray.kill(worker)
        else:
            self._put(pack.key, worker)

    def halve(self, idle: int) -> None:
        """Ask large packs for half of their trials, which idle devices could tune.

        A pack is asked once it has run for as long as a worker takes to begin, so that what a
        takeover costs is never more than what was computed.
        """
        now = time.monotonic()
        running = sorted(self._running.copy().values(), key=lambda each: -each.seconds)
        for each in running:
            trials = list(each.left)
            devices = each.task.devices * each.task.least
            ripe = now - each.begun > each.task.load and len(trials) > 1
            if ripe and not each.asked and devices <= idle and each.task.least == 1:
                each.asked, idle = True, idle - devices
                each.worker.give.remote(trials[len(trials) // 2 :])

    def _work(self, pack: Pack) -> Any:
        """Return a reference to what all packs of a stage are sent."""
        import ray

        with self._lock:
            if pack.name not in self._sent:
                self._sent[pack.name] = ray.put((pack.task, pack.tokens))
            return self._sent[pack.name]

    def _take(self, pack: Pack) -> Any:
        import ray

        plan = pack.plan
        with self._lock:
            if self._idle.get(pack.key):
                return self._idle[pack.key].pop()
        # The second thread hears what the pack is asked while the first tunes it.
        actor = ray.remote(PackWorker).options(
            num_cpus=plan.threads,
            num_gpus=plan.gpus / plan.sharers,
            max_concurrency=2,
            **plan.requests,
        )
        return actor.remote(pack.task)

    def _put(self, key: str, worker: Any) -> None:
        import ray

        with self._lock:
            self._idle.setdefault(key, []).append(worker)

        def end() -> None:
            with self._lock:
                if worker not in self._idle.get(key, ()):
                    return
                self._idle[key].remove(worker)
            ray.kill(worker)

        timer = Timer(_LINGERS_S, end)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the idle workers."""
        import ray

        with self._lock:
            idle = [worker for workers in self._idle.values() for worker in workers]
            self._idle.clear()
        for worker in idle:
            ray.kill(worker)
