"""Progress on standard error with rates: bars on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raybias.redaction import redact

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
    """

    rows: int = 0
    tokens: int = 0
    steps: int = 0
    retries: int = 0


class Advance(Protocol):
    """Advances a stage."""

    def __call__(self, count: int = 1, *, note: str = "", done: Done | None = None) -> None:
        """Advance by `count` of the total; `note` and the rate of `done` are shown beside it."""


class Pace:
    """Rates of work, and how often it was retried."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: deque[tuple[float, Done]] = deque([(clock(), Done())])
        # Added up as the window moves: a driver of many replicas has thousands of shards in one.
        self._sums = {"rows": 0, "tokens": 0, "seed steps": 0}
        self._retries = 0

    def add(self, done: Done) -> None:
        """Add work that was done since the last call."""
        self._known.append((self._clock(), done))
        self._count(done, 1)
        self._retries += done.retries
        # The first of the window only says when the second began.
        while len(self._known) > 2 and self._known[-1][0] - self._known[1][0] > _WINDOW_S:
            self._known.popleft()
            self._count(self._known[0][1], -1)

    def _count(self, done: Done, sign: int) -> None:
        for name, count in zip(self._sums, (done.rows, done.tokens, done.steps), strict=True):
            self._sums[name] += sign * count

    def __str__(self) -> str:
        seconds = self._known[-1][0] - self._known[0][0]
        if seconds <= 0:
            return ""
        said = [f"{total / seconds:,.3g} {name}/s" for name, total in self._sums.items() if total]
        if self._retries:
            said.append(f"{self._retries} retries")
        return ", ".join(said)


class Reporter:
    """Prints what a study is doing; stages can run side by side, in threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
        )
        self._lock = Lock()

    def say(self, text: str) -> None:
        """Print one line, with passwords in URLs redacted."""
        self.console.print(redact(text), markup=False)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Advance]:
        """Show a stage of `total` steps; yields what advances it."""
        if self.console.is_terminal:
            with self._bar(title, total) as advance:
                yield advance
        else:
            yield self._lines(title, total)

    @contextmanager
    def _bar(self, title: str, total: int) -> Iterator[Advance]:
        pace, bars = Pace(), self._shown
        with self._lock:
            task = bars.add_task(title, total=total, note="")
            bars.start()

        def advance(count: int = 1, *, note: str = "", done: Done | None = None) -> None:
            if done is not None:
                pace.add(done)
            bars.update(task, advance=count, note=_beside(note, pace))

        try:
            yield advance
        finally:
            # What is over scrolls up as a line, so that the bars are those of what runs.
            with self._lock:
                over = next(each for each in bars.tasks if each.id == task)
                bars.remove_task(task)
                if not bars.tasks:
                    bars.stop()
            self.say(f"{title}: {over.completed:g}/{total}")

    def _lines(self, title: str, total: int) -> Advance:
        finished, said, pace = 0, time.monotonic(), Pace()

        def advance(count: int = 1, *, note: str = "", done: Done | None = None) -> None:
            nonlocal finished, said
            finished += count
            if done is not None:
                pace.add(done)
            now = time.monotonic()
            if finished >= total or now - said >= _LINE_EVERY_S:
                said, beside = now, _beside(note, pace)
                self.say(f"{title}: {finished}/{total}{f' ({beside})' if beside else ''}")

        return advance


def _beside(note: str, pace: Pace) -> str:
    return ", ".join(part for part in (note, str(pace)) if part)
