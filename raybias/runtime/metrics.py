"""Prometheus metrics of a running study, through `ray.util.metrics`.

Every process counts its own work under the same names, tagged by study, stage and model; Ray's
agents export them with the prefix `ray_`. Work that is lost and done again is counted twice, and
in `raybias_repeated_total`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Literal

Counted = Literal[
    "raybias_rows_total",
    "raybias_tokens_total",
    "raybias_seed_steps_total",
    "raybias_retries_total",
    "raybias_repeated_total",
    "raybias_busy_seconds_total",
]
Measured = Literal["raybias_queue_depth"]

_COUNTERS: Final[dict[Counted, str]] = {
    "raybias_rows_total": "Items or texts that were read.",
    "raybias_tokens_total": "Tokens that a model read or wrote, soft prompts aside.",
    "raybias_seed_steps_total": "Optimiser steps, one for each seed of a pack.",
    "raybias_retries_total": "Requests and worker groups that were begun again.",
    "raybias_repeated_total": "Rows (scoring) or seed steps (tuning) that were done again.",
    "raybias_busy_seconds_total": "Seconds that a replica or worker computed; its rate is a share.",
}
_GAUGES: Final[dict[Measured, str]] = {
    "raybias_queue_depth": "Shards, seeds or requests that wait or are under way.",
}
_TAGS: Final = ("study", "stage", "model")


class Meter:
    """The metrics of one process.

    Parameters
    ----------
    study, model: by name.
    stage: `rewrite`, `tune`, `score` or `serve`.
    """

    def __init__(self, *, study: str, stage: str, model: str) -> None:
        self.tags = {"study": study, "stage": stage, "model": model}

    def add(self, name: Counted, count: float) -> None:
        """Increase a counter."""
        if count > 0 and _exporting():
            _metric("Counter", name, _COUNTERS[name]).inc(count, tags=self.tags)

    def set(self, name: Measured, value: float) -> None:
        """Set a gauge."""
        if _exporting():
            _metric("Gauge", name, _GAUGES[name]).set(value, tags=self.tags)

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
def _metric(kind: str, name: str, what: str) -> Any:
    import ray.util.metrics

    return getattr(ray.util.metrics, kind)(name, description=what, tag_keys=_TAGS)
