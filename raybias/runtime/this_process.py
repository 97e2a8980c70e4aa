"""Do a study's tasks in this process, one after another, without Ray.

For work that takes less than starting Ray does, and for a debugger. Tokens, threads and passes are
those of the plan, so the rows are those of any cluster, on CPUs to the bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

from transformers.utils.logging import disable_progress_bar

from raybias.config import Backbone, Resources
from raybias.engine.adapters.tuning import Trial
from raybias.engine.checkpoint import fetched
from raybias.engine.devices import as_found
from raybias.planning.inventory import Inventory
from raybias.planning.tasks import Task
from raybias.runtime.graph import Grant, Stopped
from raybias.runtime.pack_worker import PackWorker
from raybias.runtime.predict.worker import ShardWorker
from raybias.runtime.progress import Advance
from raybias.runtime.ray_session import debugging
from raybias.runtime.tuning import TuningStage
from raybias.runtime.workers import Reading

T = TypeVar("T")


class ThisProcess:
    """One worker, which holds one backbone at a time."""

    starting = "loading the model"
    resources = Resources()

    def __init__(self) -> None:
        self._held: tuple[str, Any] = ("", None)
        self._turn = Lock()
        if not debugging():
            # Workers' bars go to log files.
            disable_progress_bar()

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model of the hub into this machine's cache."""
        fetched(backbone)

    def tune(self, stage: TuningStage, trials: Sequence[Trial], grant: Grant) -> None:
        """Tune a pack; one that is stopped keeps its states."""
        plan, leaving = stage.plan, grant.stopped.is_set
        with self._turn, as_found():
            worker = self._holding(
                f"tune/{plan.backbone}/{plan.method}",
                lambda: PackWorker(stage.task.context, leaving=leaving),
            )
            for report in worker.tune(stage.task, tuple(trials)):
                stage.progress.add(report)
        _check(grant)

    def read(self, reading: Reading, grant: Grant, advance: Advance) -> None:
        """Compute shards, in their order."""
        with self._turn, as_found():
            # A scorer that is held was made under settings that were given back.
            reading.context.execution.set_torch()
            worker = self._holding(
                f"read/{reading.name}",
                lambda: ShardWorker(reading.context.here(), reading.methods, reading.store),
            )
            items = reading.rows()
            for shard in reading.todo:
                _check(grant)
                advance(done=worker.compute(shard, items[shard.probe]))

    def inventory(self) -> Inventory:
        """List no nodes, so that tasks come one after another."""
        return Inventory((), "this process")

    def halve(self, fits: Callable[[Task], bool]) -> None:
        """Do nothing: no device is idle while there is work."""

    def close(self) -> None:
        """Free the backbone."""
        with self._turn:
            self._held = ("", None)
            gc.collect()

    def _holding(self, key: str, make: Callable[[], T]) -> T:
        """Return what is held under a key, or make it in the place of what is held."""
        if self._held[0] != key:
            self._held = ("", None)
            gc.collect()
            self._held = (key, make())
        held: T = self._held[1]
        return held


def _check(grant: Grant) -> None:
    if grant.stopped.is_set():
        raise Stopped("stopped before its end")
