"""Actors that tune packs: started, started again when they are lost, and taken over by packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Final

from raybias.config import Resources
from raybias.engine.adapters.tuning import Trial
from raybias.errors import RaybiasError
from raybias.planning.stage_plans import TunePlan
from raybias.runtime.graph import Grant
from raybias.runtime.tune.reports import ProgressAggregator
from raybias.runtime.tune.worker import PackWorker, TuneTask

#: Seconds that an idle worker keeps its backbone for another pack.
_LINGERS_S: Final = 2.0


@dataclass(frozen=True)
class Pack:
    """Trials for one worker.

    Attributes
    ----------
    work: a reference to the stage's task and tokens, which the worker receives.
    """

    task: TuneTask
    work: Any
    trials: Sequence[Trial]
    plan: TunePlan

    @property
    def key(self) -> str:
        """What the worker holds."""
        return f"{self.plan.backbone}/{self.plan.method}"


class PackWorkers:
    """The tuning workers of a study.

    Each holds the backbone of one method, and no other worker waits for it.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._idle: dict[str, list[Any]] = {}
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
        while True:
            try:
                if self._tuned(pack, grant, progress):
                    return
                preemptions += 1
            except RaybiasError:
                raise
            except RayError as error:
                preempted = isinstance(error, RayActorError) and error.preempted
                preemptions, failures = preemptions + preempted, failures + (not preempted)
                beyond = most is not None and preemptions > most
                if grant.stopped.is_set() or failures > self.resources.max_failures or beyond:
                    raise

    def _tuned(self, pack: Pack, grant: Grant, progress: ProgressAggregator) -> bool:
        """Tune on one worker; returns whether it came to the end."""
        import ray

        worker = self._take(pack)
        grant.on_stop(lambda: ray.kill(worker))
        left = {trial.run_id for trial in pack.trials}
        try:
            for reference in worker.tune.remote(pack.work, pack.trials):
                report = ray.get(reference)
                progress.add(report)
                left -= {*report.finished, *report.given}
                left -= {each.run_id for each in report.evaluated if each.stopped}
        except BaseException:
            ray.kill(worker)
            raise
        if left:
            ray.kill(worker)
        else:
            self._put(pack.key, worker)
        return not left

    def _take(self, pack: Pack) -> Any:
        import ray

        plan = pack.plan
        with self._lock:
            if self._idle.get(pack.key):
                return self._idle[pack.key].pop()
        # The second thread hears what the pack is asked while the first tunes it.
        actor = ray.remote(PackWorker).options(
            num_cpus=plan.threads, num_gpus=plan.gpus, max_concurrency=2, **plan.requests
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
