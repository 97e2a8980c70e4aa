"""Reports of workers to the driver while they tune, summed for progress and metrics.

Plain values only, so that the queue of a worker group need not import torch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Advance, Done


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of one trial."""

    run_id: str
    step: int
    accuracy: float
    stopped: bool


@dataclass(frozen=True)
class WorkerReport:
    """Progress of one pack since its last report."""

    pack: str
    first: bool = False
    """Whether the pack begins with it, or begins again."""
    evaluated: tuple[Evaluated, ...] = ()
    finished: tuple[str, ...] = ()
    """Trials that an earlier worker finished; only in the first report."""
    resumed: tuple[str, ...] = ()
    """Trials that resume from a state; only in the first report."""
    repeated: int = 0
    """Steps that these repeat since their state was kept."""
    given: tuple[str, ...] = ()
    """Trials that the pack gave up, for another to take up."""
    steps: int = 0
    """Optimiser steps, one for each seed."""
    tokens: int = 0
    """Tokens of those steps' batches."""


@dataclass
class ProgressAggregator:
    """Sums of all reports of a stage, which come from several threads."""

    advance: Advance
    meter: Meter
    left: set[str]
    """Trials of the stage that have not stopped."""
    end: int | None = None
    """The step after which a trial ends at the latest, where something says so."""
    resumed: int = 0
    repeated: int = 0
    best: float = 0.0
    _steps: dict[str, int] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, report: WorkerReport) -> None:
        """Add one report of one pack."""
        with self._lock:
            self._add(report)

    def _add(self, report: WorkerReport) -> None:
        if report.first and report.pack in self._begun:
            self.meter.add("raybias_retries_total", 1)
            self.advance(0, done=Done(retries=1))
        self._begun.add(report.pack)
        self.resumed += len(report.resumed)
        self.repeated += report.repeated
        self.meter.add("raybias_repeated_total", report.repeated)
        over = self.left & {*report.finished, *(e.run_id for e in report.evaluated if e.stopped)}
        self.left -= over
        if report.evaluated:
            known = (e.accuracy for e in report.evaluated if e.accuracy >= 0)
            self.best = max(self.best, *known, 0.0)
            step = max(e.step for e in report.evaluated)
            self._steps |= {e.run_id: e.step for e in report.evaluated}
            part = sum(self._steps.get(run, 0) for run in self.left) / self.end if self.end else 0.0
            most = f" of at most {self.end:,}" if self.end else ""
            self.advance(
                len(over),
                part=part,
                note=f"step {step:,}{most}, best validation accuracy {self.best:.3f}",
                done=Done(tokens=report.tokens, steps=report.steps),
            )
        elif over or report.steps:
            done = Done(tokens=report.tokens, steps=report.steps) if report.steps else None
            self.advance(len(over), done=done)
        self.meter.set("raybias_queue_depth", len(self.left))
