"""Decide how runs are tuned: the rows of a step, its learning rate, and when a run stops.

Pure functions of a run's seed, step and losses (Tian2023 section 3, Kohankhaki2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pydantic import Field

from raybias.config.section import Amount, Count, Section
from raybias.seeding import generator


class EarlyStop(Section):
    """When tuning stops before its last step."""

    rule: Literal["exceeds_max_of_last", "patience"] = "exceeds_max_of_last"
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: Amount = Field(2500, ge=0)
    """Nothing stops at or before this step (soft prompts 2500, others 0)."""
    window: Count = Field(5, ge=1)
    """How many evaluation losses the rule looks back on (full 7, others 5)."""
    count_early: bool = True
    """Whether losses seen before `after_step` belong to the window."""
    stored: Count = Field(default_factory=lambda fields: int(fields["window"]), ge=1)
    """How many losses must have been seen before the newest; `window`, and one more in the
    paper profile of full and lora, as the paper's code has it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the runs of a method are tuned, whatever the adapter."""

    batch_size: int
    eval_every: int
    validation_rows: int
    early_stop: EarlyStop
    restore_best: bool
    max_steps: int | None
    epochs: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = 0.0
    dropout_after_first_eval: bool = True

    def last_step(self, rows: int) -> int | None:
        """Return the last step of tuning on `rows` rows; None without one."""
        ends = [] if self.max_steps is None else [self.max_steps]
        if self.epochs is not None:
            ends.append(self.epochs * -(-rows // self.batch_size))
        return min(ends, default=None)

    def rate_share(self, step: int, end: int | None) -> float:
        """Return the share of the learning rate at `step` (from 0) of `end` steps."""
        if end is None:
            return 1.0
        rising = round(self.warmup * end)
        if step < rising:
            return step / rising
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, end - rising)))

    @property
    def first_stop(self) -> int:
        """The first step at which the early-stop rule can end a run."""
        rule, every = self.early_stop, self.eval_every
        stored, after = max(rule.window, rule.stored), rule.after_step
        # Losses seen before `after_step` may not count, and the newest is compared with `stored`.
        counted = 0 if rule.count_early else after // every
        return every * max(after // every + 1, counted + stored + 1)


def should_stop(losses: Sequence[float], steps: Sequence[int], rule: EarlyStop) -> bool:
    """Decide from the evaluation losses whether tuning ends (Tian2023, Kohankhaki2024).

    exceeds_max_of_last: the newest exceeds each of the `window` before it. patience: none of the
    last `window`, the newest included, is below the lowest before them. Only after step
    `after_step`, and with `stored` losses before it; without `count_early` only losses after that
    step count.
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

    Each epoch is a permutation keyed by (seed, epoch); its last batch may be smaller.
    """
    per_epoch = -(-rows // batch_size)
    epoch, place = divmod(step, per_epoch)
    return list(_epoch_order(seed, epoch, rows)[place * batch_size : (place + 1) * batch_size])


@lru_cache(maxsize=256)
def _epoch_order(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, "order", epoch).permutation(rows).tolist())
