"""Progress in a notebook: one output of a cell that is written anew, and is saved as it ended."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Lock
from typing import Any, Final

from rich.progress import Progress

_EVERY_S: Final = 0.5
_BAR: Final = 12


class CellOutput:
    """What was said, and under it the stages that run; a stage that is over is a line."""

    def __init__(self, bars: Progress) -> None:
        self._bars, self._said, self._lock = bars, list[str](), Lock()
        self._output: Any = None
        self._shown_at = -_EVERY_S

    def __str__(self) -> str:
        running = [
            f"{task.description} {_bar(task.percentage)} {task.fields['over']}/{task.total:g}"
            f" {timedelta(seconds=int(task.elapsed or 0))} {task.fields['note']}".rstrip()
            for task in self._bars.tasks
        ]
        return "\n".join((*self._said, *running))

    def say(self, text: str) -> None:
        """Add a line."""
        self._said.append(text)
        self.show(at_once=True)

    def show(self, *, at_once: bool = False) -> None:
        """Write the output anew, if that was not done just now."""
        from IPython.display import display

        with self._lock:
            now = time.monotonic()
            if not at_once and now - self._shown_at < _EVERY_S:
                return
            self._shown_at = now
            data = {"text/plain": str(self)}
            if self._output is None:
                self._output = display(data, raw=True, display_id=True)
            else:
                self._output.update(data, raw=True)


def _bar(percentage: float) -> str:
    full = int(_BAR * percentage / 100)
    return "━" * full + "─" * (_BAR - full)
