"""What ranks tell the driver while they tune, added up for progress and the record.

Plain values only, so that the queue between them need not import torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raybias.errors import RaybiasError
from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Advance, Done

if TYPE_CHECKING:
    from ray.util.queue import Queue

_POLL_S = 0.5


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of one trial."""

    run_id: str
    step: int
    accuracy: float
    stopped: bool


@dataclass(frozen=True)
class WorkerReport:
    """What one rank did between two reports."""

    rank: int
    evaluated: tuple[Evaluated, ...] = ()
    finished: tuple[str, ...] = ()
    """Units that an earlier worker finished; only before the first round."""
    resumed: tuple[str, ...] = ()
    """Units that were under way before; only before the first round."""
    repeated: int = 0
    """Steps of whole rounds that these have to do again."""
    steps: int = 0
    """Optimiser steps, one for each seed."""
    tokens: int = 0
    """Tokens of those steps' batches."""
    error: RaybiasError | None = None
    """What cannot be mended by trying again."""


@dataclass
class ProgressAggregator:
    """All rounds of a stage."""

    advance: Advance
    meter: Meter
    left: set[str]
    """Units of the stage that have not stopped."""
    error: RaybiasError | None = None
    resumed: int = 0
    repeated: int = 0
    begun: int = 0
    """Worker groups that took up the work."""
    best: float = 0.0

    def add(self, told: WorkerReport) -> None:
        """Count one round of one rank."""
        self.error = self.error or told.error
        self.resumed += len(told.resumed)
        self.repeated += told.repeated
        self.meter.add("raybias_repeated_total", told.repeated)
        if not told.evaluated:
            self._begin(told)
        # Ranks that share a backbone tell the same of the same trials, which count once.
        over = self.left & {*told.finished, *(e.run_id for e in told.evaluated if e.stopped)}
        self.left -= over
        if told.evaluated:
            known = (e.accuracy for e in told.evaluated if e.accuracy >= 0)
            self.best = max(self.best, *known, 0.0)
            step = max(e.step for e in told.evaluated)
            self.advance(
                len(over),
                note=f"step {step}, {len(self.left)} left, best {self.best:.3f}",
                done=Done(tokens=told.tokens, steps=told.steps),
            )
        elif over:
            self.advance(len(over))
        self.meter.set("raybias_queue_depth", len(self.left))

    def _begin(self, told: WorkerReport) -> None:
        """Every rank says so once; the first rank's stands for its group."""
        if told.rank or told.error:
            return
        self.begun += 1
        if self.begun > 1:
            self.meter.add("raybias_retries_total", 1)
            self.advance(0, done=Done(retries=1))


def open_queue() -> Queue:
    """A queue from ranks to the driver."""
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # On the driver's own node: it outlives a worker's, and dies with the driver's.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


class Listener(Protocol):
    """Whoever adds up what ranks tell."""

    def add(self, told: Any) -> None:
        """Count what one rank put into the queue."""


@contextmanager
def collecting(progress: Queue, tally: Listener) -> Iterator[None]:
    """Add up what ranks put into the queue while the body runs."""
    from ray.util.queue import Empty

    ended = threading.Event()

    def follow() -> None:
        while True:
            last = ended.is_set()
            try:
                while True:
                    tally.add(progress.get(timeout=0.01 if last else _POLL_S))
            except Empty:
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
