"""Estimate the tokens, FLOPs, device-hours and gathered bytes of a plan, line by line.

Counted from shapes, row counts and the mean length of a sample of the texts, as if no two
texts shared a token; packing makes it less. Attention's own products, a few percent at these
lengths, are left out. It loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.config import Method, StudyText
from raybias.engine.memory import product
from raybias.methods import Tuned, tuned_methods
from raybias.planning.layout import runs_read
from raybias.planning.plan import Plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import ScorePlan, Stage, TunePlan

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

#: Assumed share of a device's peak that is reached.
UTILISATION: Final = 0.3


@dataclass(frozen=True)
class CostLine:
    """One step of the arithmetic."""

    what: str
    arithmetic: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one stage costs.

    Attributes
    ----------
    tokens, flops: of all workers.
    hours: device-hours, None where the device's peak is not known.
    gathered: bytes of weights that all workers receive under ZeRO-3.
    lines: how these come about.
    """

    tokens: float
    flops: float
    hours: float | None
    gathered: float
    lines: tuple[CostLine, ...]


@dataclass(frozen=True)
class Machine:
    """The assumed speed of a device.

    Attributes
    ----------
    peak: TFLOP/s, None to look it up by the device's kind.
    utilisation: the part of it that is reached.
    """

    peak: float | None = None
    utilisation: float = UTILISATION

    def hours(self, flops: float, stage: Stage) -> tuple[float | None, list[CostLine]]:
        """Return the device-hours of some FLOPs; None if the peak is not known."""
        peak = self.peak or stage.speed
        if peak is None:
            return None, []
        hours = flops / (peak * 1e12 * self.utilisation) / 3600
        counted = f"{_short(flops, 'FLOP')} / ({peak:g} TFLOP/s x {self.utilisation:g}) / 3600 s"
        what = "GPU-hours" if stage.gpus else "device-hours"
        return hours, [CostLine(what, counted, f"{hours:,.2f} h")]


@dataclass(frozen=True)
class Costs:
    """What a plan costs.

    Attributes
    ----------
    stages: by backbone, method and training set, which is empty for scoring.
    """

    stages: Mapping[tuple[str, str, str], Cost]

    @property
    def hours(self) -> float | None:
        """Device-hours of all stages; None where one is not known."""
        known = [cost.hours for cost in self.stages.values() if cost.hours is not None]
        return sum(known) if len(known) == len(self.stages) else None


def costs_of(prepared: PreparedStudy, plan: Plan, machine: Machine) -> Costs:
    """Count the costs of all stages of a plan; none of tuning that no step ends."""
    study, estimate = prepared.study, _CostEstimator(plan, machine)
    stages: dict[tuple[str, str, str], Cost] = {}
    for backbone in study.backbones:
        methods, shape = study.methods_of(backbone), plan.shapes[backbone.name]
        for tuned in tuned_methods(methods):
            text = prepared.text(tuned, backbone)
            for training in text.sentences:
                stage = plan.tune(backbone.name, training, tuned.name)
                if cost := estimate.tuning(stage, tuned, shape, text):
                    stages[backbone.name, tuned.name, training] = cost
        for method in methods:
            runs = runs_read(study, method)
            scored = plan.score(backbone.name, method.name)
            text = prepared.text(method, backbone)
            stages[backbone.name, method.name, ""] = estimate.scoring(
                scored, method, shape, text, runs
            )
    return Costs(stages)


@dataclass(frozen=True)
class _CostEstimator:
    """The arithmetic of one stage's cost."""

    plan: Plan
    machine: Machine

    def tuning(
        self, stage: TunePlan, method: Tuned, shape: ModelShape, text: StudyText
    ) -> Cost | None:
        """Estimate the cost if all runs go to their last step; None if none is set."""
        splits = text.sentences[stage.training]
        texts = [splits[name]["text"] for name in ("train", "validation")]
        steps = method.last_step(len(texts[0]))
        if steps is None:
            return None
        read, read_again = (method.mean_length(text, each) for each in texts)
        runs = stage.sweep_units + stage.final_units
        checks = math.ceil(steps / method.steps_between_evaluations)
        rows = method.validation_rows or len(texts[1])
        tuned, tuned_on = product(
            (runs, "{} runs"),
            (steps, "{:,} steps"),
            (method.batch_size, "{} rows"),
            (read, "{:.1f}"),
        )
        checked, evaluated_on = product(
            (runs, "{} runs"), (checks, "{:,}"), (rows, "{:,} rows"), (read_again, "{:.1f}")
        )
        factor = method.work_per_parameter
        flops = shape.block_parameters * (factor * tuned + 2 * checked)
        hours, timed = self.machine.hours(flops, stage)
        # The sweep and the final runs come one after the other, each in packs of its own.
        gathered = sum(
            _gathered(stage, shape, trials * method.batch_size * read) * 2 * steps
            + _gathered(stage, shape, trials * rows * read_again) * checks
            for trials in (stage.sweep_units, stage.final_units)
        )
        least = min(steps, method.first_stop)
        lines = [
            CostLine("tokens tuned on", tuned_on, _short(tuned)),
            CostLine("tokens of evaluations", evaluated_on, _short(checked)),
            CostLine(
                "work",
                f"{_short(shape.block_parameters)} parameters x ({factor} x {_short(tuned)}"
                f" + 2 x {_short(checked)})",
                _short(flops, "FLOP"),
            ),
            *timed,
            *_sent(stage, gathered),
            CostLine(
                "at least",
                f"runs may stop at step {least:,} of {steps:,}",
                f"{least / steps:.0%} of it",
            ),
        ]
        return Cost(
            tokens=tuned + checked, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines)
        )

    def scoring(
        self, stage: ScorePlan, method: Method, shape: ModelShape, text: StudyText, runs: int
    ) -> Cost:
        """Estimate the cost of reading all items with all runs."""
        read = {
            name: product(
                (runs, "{} runs"),
                (rows, "{:,} items"),
                (method.tokens_per_item(text, name), "{:.1f}"),
            )
            for name, rows in stage.items.items()
        }
        tokens = sum(count for count, _ in read.values())
        weights = method.weights_per_token(shape)
        flops = 2.0 * weights * tokens
        hours, timed = self.machine.hours(flops, stage)
        # Each rank reads shards of its own, and every new token is a pass.
        passes = tokens / (stage.replicas_max * stage.tokens_per_batch)
        passes += stage.shards * (1 + method.new_tokens) / stage.replicas_max
        gathered = _gathered(stage, shape, 1.0) * math.ceil(passes)
        lines = [
            *(
                CostLine(f"tokens of {name}", arithmetic, _short(count))
                for name, (count, arithmetic) in read.items()
            ),
            CostLine(
                "work",
                f"{_short(weights)} parameters x 2 x {_short(tokens)} tokens",
                _short(flops, "FLOP"),
            ),
            *timed,
            *_sent(stage, gathered),
        ]
        return Cost(tokens=tokens, flops=flops, hours=hours, gathered=gathered, lines=tuple(lines))


def _gathered(stage: Stage, shape: ModelShape, tokens: float) -> float:
    """Count the bytes that all ranks receive in a shared forward pass over so many tokens."""
    if not stage.sharded:
        return 0.0
    ranks = stage.workers if isinstance(stage, TunePlan) else getattr(stage, "replicas_max", 1)
    passes = math.ceil(tokens / (ranks * stage.tokens_per_batch))
    return passes * (ranks - 1) * float(shape.weight_bytes)


def _sent(stage: Stage, gathered: float) -> list[CostLine]:
    if not stage.sharded:
        return []
    counted = "passes x (workers - 1) x bytes of the weights"
    return [CostLine("gathered by all workers", counted, _short(gathered, "B"))]


def _short(number: float, unit: str = "") -> str:
    """Format a number with a prefix and its unit: 12.3 TFLOP."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}".rstrip()
    return f"{number:,.0f} {unit}".rstrip()
