"""Progress on standard error: bars on a terminal, plain lines elsewhere.

Plain lines come at most every few seconds, so that a job's log stays readable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S: Final = 5.0


class Advance(Protocol):
    """Tells a stage that `count` more of its total is done."""

    def __call__(self, count: int = 1, *, note: str = "") -> None:
        """Advance by `count`; `note` is shown beside it."""


class Reporter:
    """Says what a study is doing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Advance]:
        """A stage of `total` steps; yields what advances it."""
        if self.console.is_terminal:
            with self._bar(title, total) as advance:
                yield advance
        else:
            yield self._lines(title, total)

    @contextmanager
    def _bar(self, title: str, total: int) -> Iterator[Advance]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=total, note="")

            def advance(count: int = 1, *, note: str = "") -> None:
                progress.update(task, advance=count, note=note)

            yield advance

    def _lines(self, title: str, total: int) -> Advance:
        done = 0
        said = time.monotonic()

        def advance(count: int = 1, *, note: str = "") -> None:
            nonlocal done, said
            done += count
            now = time.monotonic()
            if done >= total or now - said >= _LINE_EVERY_S:
                said = now
                self.say(f"{title}: {done}/{total}{f' ({note})' if note else ''}")

        return advance
