"""Decide which rows a step takes and when a run stops.

Pure functions of a run's seed, step and losses (Tian2023 section 3, Kohankhaki2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from raybias.seeding import generator

if TYPE_CHECKING:
    from raybias.methods import EarlyStop


def should_stop(losses: Sequence[float], steps: Sequence[int], rule: EarlyStop) -> bool:
    """Decide from the evaluation losses whether tuning ends (Tian2023, Kohankhaki2024).

    exceeds_max_of_last: it exceeds every one of the `window` before it, strictly. patience:
    none of the last `window`, itself counted, is below the lowest of those before. Only after
    step `after_step`, and with `stored` losses before it; with `count_early` off, only losses
    seen after that step count.
    """
    after_step, window = rule.after_step, rule.window
    if not steps or steps[-1] <= after_step:
        return False
    before = [
        loss
        for loss, step in zip(losses[:-1], steps[:-1], strict=True)
        if rule.count_early or step > after_step
    ]
    if len(before) < max(window, rule.stored):
        return False
    if rule.rule == "patience":
        recent = [*before, losses[-1]][-window:]
        return min(recent) >= min(before[: len(before) + 1 - window])
    return losses[-1] > max(before[-window:])


def batch_of_step(seed: int, step: int, *, rows: int, batch_size: int) -> list[int]:
    """Return the row numbers of a run's batch at `step` (from 0).

    Each epoch is a new permutation keyed by (seed, epoch); its last batch may be smaller.
    """
    per_epoch = -(-rows // batch_size)
    epoch, place = divmod(step, per_epoch)
    return list(_epoch_order(seed, epoch, rows)[place * batch_size : (place + 1) * batch_size])


@lru_cache(maxsize=256)
def _epoch_order(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, "order", epoch).permutation(rows).tolist())
