"""Progress with rates: bars on a terminal, and in a notebook with ipywidgets; elsewhere lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from raybias.redaction import redact

if TYPE_CHECKING:
    from raybias.methods.base import Shard

_LINE_EVERY_S: Final = 5.0
#: Rates are averages over so many seconds.
_WINDOW_S: Final = 60.0


@dataclass(frozen=True)
class Done:
    """Work that was finished.

    Attributes
    ----------
    rows: items that were read.
    tokens: that a model read or wrote.
    steps: optimiser steps, one for each seed of a pack.
    retries: requests or worker groups that were begun again for it.
    shard: whose file is now in OUT.
    """

    rows: int = 0
    tokens: int = 0
    steps: int = 0
    retries: int = 0
    shard: Shard | None = None


class Advance(Protocol):
    """Advances a stage."""

    def __call__(
        self, count: int = 1, *, part: float = 0.0, note: str = "", done: Done | None = None
    ) -> None:
        """Advance by `count` of the total; `note` and the rate of `done` are shown beside it.

        Parameters
        ----------
        part: how much is done, at least, of what is not finished, in units of the total.
        done: nothing where `count` was there already, and says nothing about the pace.
        """


class Pace:
    """Rates of work, and how often it was retried."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: deque[tuple[float, Done, float]] = deque([(clock(), Done(), 0.0)])
        # Added up as the window moves: a driver of many replicas has thousands of shards in one.
        self._sums = {"rows": 0, "tokens": 0, "seed steps": 0}
        self._retries, self._waited = 0, True

    def add(self, done: Done, reached: float = 0.0) -> None:
        """Add work that was done since the last call, with which a stage reached so many units."""
        self._known.append((self._clock(), done, reached))
        self._count(done, 1)
        self._retries += done.retries
        if self._waited and len(self._known) > 2:
            # The first report holds what a worker took to start; the others tell the pace.
            self._forget_first()
            self._waited = False
        # The first of the window only says when the second began.
        while len(self._known) > 2 and self._known[-1][0] - self._known[1][0] > _WINDOW_S:
            self._forget_first()

    def _forget_first(self) -> None:
        self._known.popleft()
        self._count(self._known[0][1], -1)

    def _count(self, done: Done, sign: int) -> None:
        for name, count in zip(self._sums, (done.rows, done.tokens, done.steps), strict=True):
            self._sums[name] += sign * count

    def left(self, units: float) -> str:
        """Say how long so many more units take at this pace; nothing where that is not known."""
        (begun, _, first), (now, _, last) = self._known[0], self._known[-1]
        if units <= 0 or last <= first:
            return ""
        seconds = units * (now - begun) / (last - first)
        if seconds < 99:
            return f"{seconds:.0f} s left"
        return f"{seconds / 60:.0f} min left" if seconds < 7200 else f"{seconds / 3600:.0f} h left"

    def __str__(self) -> str:
        seconds = self._known[-1][0] - self._known[0][0]
        if seconds <= 0:
            return ""
        sums = [(total / seconds, name) for name, total in self._sums.items() if total]
        said = [f"{_rounded(rate)} {name}/s" for rate, name in sums]
        if self._retries:
            said.append(f"{self._retries} retries")
        return ", ".join(said)


def _rounded(rate: float) -> str:
    """Write three digits of a rate, and no exponent: `0.113`, `12,900`."""
    text = f"{rate:.3g}"
    return f"{float(text):,.0f}" if rate >= 100 else text


def _whole() -> Column:
    return Column(no_wrap=True)


class Stage:
    """How far a stage is.

    Attributes
    ----------
    finished: of the total.
    reached: the same with the parts of what is not finished.
    beside: what is shown beside it: its time left, a note, rates.
    """

    def __init__(self, total: int, starting: str) -> None:
        self.total, self.finished, self.reached, self.beside = total, 0, 0.0, starting
        self._starting, self._there, self._pace = starting, 0, Pace()

    def advance(self, count: int, part: float, note: str, done: Done | None) -> None:
        """Advance as `Advance` says."""
        self.finished += count
        self.reached = min(float(self.total), self.finished + part)
        if done is None:
            self._there += count
        else:
            self._starting = ""
            self._pace.add(done, self.reached - self._there)
        left = self._pace.left(self.total - self.reached)
        # What stops early leaves less to do than its parts say.
        left = f"at most {left}" if left and part else left
        self.beside = ", ".join(filter(None, (self._starting, left, note, str(self._pace))))


class Reporter:
    """Prints what a study is doing; stages can run side by side, in threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown = Progress(
            TextColumn("{task.description}", markup=False, table_column=_whole()),
            BarColumn(bar_width=12, table_column=_whole()),
            TextColumn("{task.fields[over]}/{task.total:g}", markup=False, table_column=_whole()),
            TimeElapsedColumn(table_column=_whole()),
            # The one that gives way on a narrow terminal.
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
        self.console.print(redact(text), markup=False)

    @contextmanager
    def stage(self, title: str, total: int, *, starting: str = "") -> Iterator[Advance]:
        """Show a stage of `total` steps; yields what advances it.

        Parameters
        ----------
        starting: what is waited for before the first of them.
        """
        if self._bars:
            with self._bar(title, Stage(total, starting)) as advance:
                yield advance
        else:
            if starting:
                self.say(f"{title}: {starting}")
            yield self._lines(title, Stage(total, starting))

    @contextmanager
    def _bar(self, title: str, stage: Stage) -> Iterator[Advance]:
        bars = self._shown
        with self._lock:
            task = bars.add_task(title, total=stage.total, note=stage.beside, over=0)
            bars.start()

        def advance(
            count: int = 1, *, part: float = 0.0, note: str = "", done: Done | None = None
        ) -> None:
            stage.advance(count, part, note, done)
            bars.update(task, completed=stage.reached, note=stage.beside, over=stage.finished)

        try:
            yield advance
        finally:
            # What is over scrolls up as a line, so that the bars are those of what runs.
            with self._lock:
                bars.remove_task(task)
                if not bars.tasks:
                    bars.stop()
            self.say(f"{title}: {stage.finished}/{stage.total}")

    def _lines(self, title: str, stage: Stage) -> Advance:
        said = time.monotonic()

        def advance(
            count: int = 1, *, part: float = 0.0, note: str = "", done: Done | None = None
        ) -> None:
            nonlocal said
            stage.advance(count, part, note, done)
            now = time.monotonic()
            if stage.finished >= stage.total or now - said >= _LINE_EVERY_S:
                said = now
                beside = f" ({stage.beside})" if stage.beside else ""
                self.say(f"{title}: {stage.finished}/{stage.total}{beside}")

        return advance
