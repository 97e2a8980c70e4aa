"""Do the tasks of a study: the interface of all workers, and this process alone, without Ray.

This process does work that takes less than starting Ray does, and that of a debugger. Tokens,
threads and passes are those of the plan, so the rows are those of any cluster, on CPUs to the bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from transformers.utils.logging import disable_progress_bar

from raybias.config import Backbone, Resources
from raybias.engine.adapters.tuning import Trial
from raybias.engine.checkpoint import fetched
from raybias.engine.devices import as_found
from raybias.planning.inventory import Inventory
from raybias.planning.tasks import Task
from raybias.runtime.graph import Grant, Places
from raybias.runtime.pack_worker import PackWorker
from raybias.runtime.predict.shards import Reading, ShardWorker
from raybias.runtime.progress import Done
from raybias.terminal import debugging

if TYPE_CHECKING:
    from raybias.runtime.tuning import TuningStage

T = TypeVar("T")


class Workers(Places, Protocol):
    """Tune packs and compute shards, for one study; Stopped, RaybiasError or RayError where not."""

    starting: str
    """What a stage waits for before its first row or step, in words for a user."""

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model of the hub to where it will be loaded."""

    def tune(self, stage: TuningStage, trials: Sequence[Trial], grant: Grant) -> None:
        """Tune a pack of a stage's trials to its end."""

    def read(self, reading: Reading, grant: Grant, add: Callable[[Done], None]) -> None:
        """Compute shards and commit their files; `add` is called for each."""

    def close(self) -> None:
        """End what is held; waits for what still computes."""


class ThisProcess(Workers):
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
        grant.check()

    def read(self, reading: Reading, grant: Grant, add: Callable[[Done], None]) -> None:
        with self._turn, as_found():
            # A scorer that is held was made under settings that were given back.
            reading.context.execution.set_torch()
            worker = self._holding(
                f"read/{reading.name}",
                lambda: ShardWorker(reading.context.here(), reading.methods, reading.store),
            )
            items = reading.rows()
            for shard in reading.todo:
                grant.check()
                add(worker.compute(shard, items[shard.probe]))

    def inventory(self) -> Inventory:
        """List no nodes, so that tasks come one after another."""
        return Inventory((), "this process")

    def halve(self, fits: Callable[[Task], object]) -> None:
        """Do nothing: no device is idle while there is work."""

    def close(self) -> None:
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
