"""Show progress with rates: bars on a terminal, or in a notebook with ipywidgets; elsewhere lines.

Prometheus metrics go through `ray.util.metrics`: every process counts its own work under the same
names, tagged by study, stage and model, and Ray's agents export them with the prefix `ray_`. Work
that is lost and done again is counted twice, and in `raybias_repeated_total`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.table import Column

from raybias.planning.inventory import duration
from raybias.redaction import redact
from raybias.terminal import visible

if TYPE_CHECKING:
    from raybias.engine.adapters.tuning import Evaluation
    from raybias.methods.base import Shard

_LINE_EVERY_S: Final = 5.0
#: Rates are averages over so many seconds.
_WINDOW_S: Final = 60.0


@dataclass(frozen=True)
class Done:
    """Work that was finished; `steps` are one for each seed of a pack, `shard` is now in OUT."""

    rows: int = 0
    tokens: int = 0
    steps: int = 0
    retries: int = 0
    shard: Shard | None = None


#: Advances a stage as `Stage.advance` does.
Advance = Callable[..., None]


class Stage:
    """How far a stage is, and at what pace: rates and time left are of the last minute.

    `reached` is `finished` and the parts of unfinished units; `beside` is the text beside the bar.
    """

    def __init__(self, total: int, starting: str, clock: Callable[[], float] | None = None) -> None:
        self.show: Callable[[], None] = lambda: None
        self.total, self.finished, self.reached, self.beside = total, 0, 0.0, starting
        self._starting, self._there, self._retries = starting, 0, 0
        # Its tasks only measure speed.
        self._pace = Progress(disable=True, get_time=clock, speed_estimate_period=_WINDOW_S)
        names = ("units", "rows", "tokens", "seed steps")
        self._counts = [self._pace.add_task(name, total=None) for name in names]

    def advance(
        self, count: int = 1, *, part: float = 0.0, note: str = "", done: Done | None = None
    ) -> None:
        """Advance by `count` of the total; `note` and the rate of `done` are shown beside it.

        part: how much is done, at least, of what is not finished, in units of the total.
        done: None where `count` was there already, and says nothing about the pace.
        """
        self.finished += count
        self.reached = min(float(self.total), self.finished + part)
        if done is None:
            self._there += count
        else:
            self._starting, self._retries = "", self._retries + done.retries
            first, *counts = self._counts
            self._pace.update(first, completed=self.reached - self._there)
            for task, more in zip(counts, (done.rows, done.tokens, done.steps), strict=True):
                self._pace.update(task, advance=more)
        units, *_ = tasks = self._pace.tasks
        left = ""
        if (speed := _speed(units)) and self.total > self.reached:
            # What stops early leaves less to do than its parts say.
            most = "at most " if part else ""
            left = f"{most}{duration((self.total - self.reached) / speed)} left"
        rates = [f"{_rounded(rate)} {t.description}/s" for t in tasks[1:] if (rate := _speed(t))]
        retries = f"{self._retries} retries" if self._retries else ""
        self.beside = ", ".join(filter(None, (self._starting, left, note, *rates, retries)))
        self.show()


def _speed(task: Task) -> float:
    """Return units a second since the first report, which a start delays; at it, since then."""
    return task.speed or task.completed / (task.elapsed or math.inf)


def _rounded(rate: float) -> str:
    """Write three digits of a rate, and no exponent: `0.113`, `12,900`."""
    text = f"{rate:.3g}"
    return f"{float(text):,.0f}" if rate >= 100 else text


class Reporter:
    """Prints what a study is doing, unless RAYBIAS_QUIET is set; stages can run side by side."""

    def __init__(self, console: Console | None = None) -> None:
        quiet = bool(os.environ.get("RAYBIAS_QUIET"))
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self._shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[over]}/{task.total:g}", markup=False),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            # This column is shortened on a narrow terminal.
            TextColumn(
                "{task.fields[note]}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self.console,
            expand=True,
        )
        widgets = self.console.is_jupyter and find_spec("ipywidgets") is not None
        self._bars = self.console.is_terminal or widgets
        self._lock = Lock()

    def say(self, text: str) -> None:
        """Print one line, with passwords in URLs redacted."""
        self.console.print(visible(redact(text)), markup=False)

    @contextmanager
    def stage(self, title: str, total: int, *, starting: str = "") -> Iterator[Advance]:
        """Show a stage of `total` steps, and what it is `starting`; yields what advances it."""
        stage = Stage(total, starting)
        if self._bars:
            with self._bar(title, stage):
                yield stage.advance
            return
        if starting:
            self.say(f"{title}: {starting}")
        said = time.monotonic()

        def show() -> None:
            nonlocal said
            now = time.monotonic()
            if stage.finished >= stage.total or now - said >= _LINE_EVERY_S:
                said = now
                beside = f" ({stage.beside})" if stage.beside else ""
                self.say(f"{title}: {stage.finished}/{stage.total}{beside}")

        stage.show = show
        yield stage.advance

    @contextmanager
    def _bar(self, title: str, stage: Stage) -> Iterator[None]:
        bars = self._shown
        with self._lock:
            task = bars.add_task(title, total=stage.total, note=stage.beside, over=0)
            bars.start()
        stage.show = lambda: bars.update(
            task, completed=stage.reached, note=stage.beside, over=stage.finished
        )
        try:
            yield
        finally:
            # What is over scrolls up as a line, so that the bars are those of what runs.
            with self._lock:
                bars.remove_task(task)
                if not bars.tasks:
                    bars.stop()
            self.say(f"{title}: {stage.finished}/{stage.total}")


#: What each metric counts or measures.
METRICS: Final = {
    "raybias_rows_total": "Items or texts that were read.",
    "raybias_tokens_total": "Tokens that a model read or wrote, soft prompts aside.",
    "raybias_seed_steps_total": "Optimiser steps, one for each seed of a pack.",
    "raybias_retries_total": "Requests and worker groups that were begun again.",
    "raybias_repeated_total": "Rows (scoring) or seed steps (tuning) that were done again.",
    "raybias_busy_seconds_total": "Seconds that a replica or worker computed; its rate is a share.",
    "raybias_queue_depth": "Shards, seeds or requests that wait or are under way.",
}
_TAGS: Final = ("study", "stage", "model")


class Meter:
    """The metrics of one process; `stage` is `rewrite`, `tune`, `score` or `serve`."""

    def __init__(self, *, study: str, stage: str, model: str) -> None:
        self.tags = {"study": study, "stage": stage, "model": model}

    def add(self, name: str, count: float) -> None:
        """Increase a counter."""
        if count > 0 and _exporting():
            _metric("Counter", name).inc(count, tags=self.tags)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        if _exporting():
            _metric("Gauge", name).set(value, tags=self.tags)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count the seconds of the body as computing."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.add("raybias_busy_seconds_total", time.monotonic() - begun)


def _exporting() -> bool:
    """Tell whether this process is one of a Ray cluster, whose agents export."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


@cache
def _metric(kind: str, name: str) -> Any:
    import ray.util.metrics

    return getattr(ray.util.metrics, kind)(name, description=METRICS[name], tag_keys=_TAGS)


@dataclass(frozen=True)
class WorkerReport:
    """Progress of one pack since its last report.

    first: whether the pack begins, or begins again, with it.
    finished, resumed: trials that had ended, and those that go on from a state.
    repeated: steps that these repeat since their state was kept.
    given: trials that the pack gave up, for another to take up.
    steps: one for each seed; `tokens` are of their batches.
    """

    pack: str
    first: bool = False
    evaluated: tuple[Evaluation, ...] = ()
    finished: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    repeated: int = 0
    given: tuple[str, ...] = ()
    steps: int = 0
    tokens: int = 0

    @property
    def over(self) -> set[str]:
        """The trials that have ended."""
        return {*self.finished, *(each.run_id for each in self.evaluated if each.stop_reason)}


@dataclass
class ProgressAggregator:
    """Sums of all reports of a stage; `left` have not stopped, `end` is the last possible step."""

    advance: Advance
    meter: Meter
    left: set[str]
    end: int | None = None
    resumed: int = 0
    repeated: int = 0
    best: float = 0.0
    _steps: dict[str, int] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def add(self, report: WorkerReport) -> None:
        """Add one report of one pack."""
        with self._lock:
            if report.first and report.pack in self._begun:
                self.meter.add("raybias_retries_total", 1)
                self.advance(0, done=Done(retries=1))
            self._begun.add(report.pack)
            self.resumed += len(report.resumed)
            self.repeated += report.repeated
            self.meter.add("raybias_repeated_total", report.repeated)
            over = self.left & report.over
            self.left -= over
            part, note, done = 0.0, "", None
            if report.evaluated or report.steps:
                done = Done(tokens=report.tokens, steps=report.steps)
            if report.evaluated:
                self.best = max(self.best, *(e.accuracy for e in report.evaluated))
                step = max(e.step for e in report.evaluated)
                self._steps |= {e.run_id: e.step for e in report.evaluated}
                part = sum(self._steps.get(run, 0) for run in self.left) / (self.end or math.inf)
                most = f" of at most {self.end:,}" if self.end else ""
                note = f"step {step:,}{most}, best validation accuracy {self.best:.3f}"
            if over or done:
                self.advance(len(over), part=part, note=note, done=done)
            self.meter.set("raybias_queue_depth", len(self.left))
