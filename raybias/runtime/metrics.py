"""Prometheus metrics of a running study, through `ray.util.metrics`.

Every process counts its own work under the same names, tagged by study, stage and model; Ray's
agents export them with the prefix `ray_`. Work that is lost and done again is counted twice, and
in `raybias_repeated_total`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Literal

Counted = Literal[
    "raybias_rows_total",
    "raybias_tokens_total",
    "raybias_seed_steps_total",
    "raybias_retries_total",
    "raybias_repeated_total",
]
Measured = Literal["raybias_utilisation", "raybias_queue_depth"]

_COUNTERS: Final[dict[Counted, str]] = {
    "raybias_rows_total": "Items or texts that were read.",
    "raybias_tokens_total": "Tokens that a model read or wrote, soft prompts aside.",
    "raybias_seed_steps_total": "Optimiser steps, one for each seed of a pack.",
    "raybias_retries_total": "Requests and worker groups that were begun again.",
    "raybias_repeated_total": "Rows (scoring) or seed steps (tuning) that were done again.",
}
_GAUGES: Final[dict[Measured, str]] = {
    "raybias_utilisation": "Share of wall time that a replica or worker computes, 0 to 1.",
    "raybias_queue_depth": "Shards, seeds or requests that wait or are under way.",
}
_TAGS: Final = ("study", "stage", "model")
_EVERY_S: Final = 5.0


class Meter:
    """The metrics of one process.

    Parameters
    ----------
    study, model: by name.
    stage: `rewrite`, `tune`, `score` or `serve`.
    """

    def __init__(self, *, study: str, stage: str, model: str) -> None:
        self.tags = {"study": study, "stage": stage, "model": model}

    def add(self, name: Counted, count: int) -> None:
        """Increase a counter."""
        if count > 0 and _exporting():
            _counter(name).inc(count, tags=self.tags)

    def set(self, name: Measured, value: float) -> None:
        """Set a gauge."""
        if _exporting():
            _gauge(name).set(value, tags=self.tags)

    def watched(self) -> Busy:
        """Start a thread that exports the share of the returned watch as `raybias_utilisation`."""
        busy = Busy()

        def export() -> None:
            while True:
                time.sleep(_EVERY_S)
                self.set("raybias_utilisation", busy.share())

        threading.Thread(target=export, daemon=True, name="raybias-utilisation").start()
        return busy


class Busy:
    """Measures the share of wall time that one thread at a time spends in `computing`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = self._counted = clock()
        self._computes = False
        self._spent = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count the body as computing."""
        self._turn(computes=True)
        try:
            yield
        finally:
            self._turn(computes=False)

    def share(self) -> float:
        """Return the share since the last call, 0 to 1, with work under way up to now."""
        with self._lock:
            now = self._count()
            spent, wall = self._spent, now - self._asked
            self._spent, self._asked = 0.0, now
        return spent / wall if wall > 0 else 0.0

    def _turn(self, *, computes: bool) -> None:
        with self._lock:
            self._count()
            self._computes = computes

    def _count(self) -> float:
        now = self._clock()
        if self._computes:
            self._spent += now - self._counted
        self._counted = now
        return now


def _exporting() -> bool:
    """Tell whether this process is one of a Ray cluster, whose agents export."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


@cache
def _counter(name: Counted) -> Any:
    from ray.util.metrics import Counter

    return Counter(name, description=_COUNTERS[name], tag_keys=_TAGS)


@cache
def _gauge(name: Measured) -> Any:
    from ray.util.metrics import Gauge

    return Gauge(name, description=_GAUGES[name], tag_keys=_TAGS)
