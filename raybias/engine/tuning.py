"""Many soft prompts tuned on one frozen backbone in one step (001 section 3).

Rows of all seeds share each forward and backward pass, and AdamW works element by
element, so a pack of runs equals the same runs alone. Every run has its own learning
rate, data order, evaluations and early stop, and leaves the pack when it stops. What a
run does depends on its seed, learning rate, data and backbone; never on its pack.

It knows nothing of Ray, files or the meaning of labels. Shapes: S runs, P prompt
vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.config import EarlyStop, SoftPrompt
from raybias.engine.packing import Batch, Keyed
from raybias.engine.scoring import LabelScorer
from raybias.seeding import generator

#: By number, for states that hold tensors only; the first is a run that goes on.
_STOP_REASONS: Final = ("", "early_stop", "max_steps", "diverged")
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TokenSet:
    """Labelled token rows."""

    rows: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Unit:
    """One tuning run: a seed at a learning rate."""

    run_id: str
    seed: int
    learning_rate: float
    stage: str


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation of one run found; `stop_reason` is None while it goes on."""

    run_id: str
    step: int
    loss: float
    accuracy: float
    stop_reason: str | None


@dataclass(frozen=True)
class UnitResult:
    """A stopped run. `prompt_PD` is what precedes a text: BOS embedding + delta, float32."""

    unit: Unit
    prompt_PD: Tensor
    steps: int
    weights_step: int
    stop_reason: str
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    tokens: int
    seconds: float


def should_stop(losses: Sequence[float], steps: Sequence[int], rule: EarlyStop) -> bool:
    """Whether the newest evaluation loss exceeds every one of the `window` before it.

    Strictly, and only after step `after_step`; with `count_early` off, only losses seen
    after that step count (001 section 3).
    """
    if not steps or steps[-1] <= rule.after_step:
        return False
    before = [
        loss
        for loss, step in zip(losses[:-1], steps[:-1], strict=True)
        if rule.count_early or step > rule.after_step
    ][-rule.window :]
    return len(before) == rule.window and losses[-1] > max(before)


def batch_of_step(seed: int, step: int, *, rows: int, batch_size: int) -> list[int]:
    """Row numbers of a run's batch at `step` (from 0).

    Each epoch is a new permutation keyed by (seed, epoch); its last batch may be smaller.
    """
    per_epoch = -(-rows // batch_size)
    epoch, place = divmod(step, per_epoch)
    return list(_epoch_order(seed, epoch, rows)[place * batch_size : (place + 1) * batch_size])


@lru_cache(maxsize=256)
def _epoch_order(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, "order", epoch).permutation(rows).tolist())


def initial_delta(seed: int, method: SoftPrompt, width: int) -> Tensor:
    """The delta [P, D] that a run starts from, float32, the same on every device."""
    shape = (method.prompt_length, width)
    if method.init == "zeros":
        return torch.zeros(shape)
    drawn = generator(seed, "delta").normal(0.0, method.init_std, shape)
    return torch.from_numpy(drawn.astype(np.float32))


@dataclass
class _Run:
    """A unit under way."""

    unit: Unit
    delta: torch.nn.Parameter
    best_PD: Tensor
    step: int = 0
    weights_step: int = 0
    stop_reason: str = ""
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


class PackedTuner:
    """Tunes a pack of units on one backbone.

    Parameters
    ----------
    scorer: reads label logits; its group, if it has one, shares every step's rows.
    method: the options of soft-prompt tuning.
    units: the runs of the pack, with distinct run ids.
    train, validation: what is tuned and evaluated on.
    """

    def __init__(
        self,
        scorer: LabelScorer,
        method: SoftPrompt,
        units: Sequence[Unit],
        *,
        train: TokenSet,
        validation: TokenSet,
    ) -> None:
        self.scorer = scorer
        self.method = method
        self.train = train
        self._device = scorer.backbone.device
        self._validation = scorer.pack(validation.rows)
        self._targets_N = torch.tensor(validation.labels)
        self._start_D = self._embedding_of_prompt_token()
        self._runs = {unit.run_id: self._begin(unit) for unit in units}
        self._optimizer = torch.optim.AdamW(
            [{"params": [run.delta], "lr": run.unit.learning_rate} for run in self._runs.values()],
            weight_decay=method.weight_decay,
        )

    @property
    def done(self) -> bool:
        """Whether every unit has stopped."""
        return not self._active()

    def advance(self) -> list[Evaluation]:
        """Step every active unit to its next evaluation, evaluate, and apply the stop rule."""
        active = self._active()
        targets = {run.unit.run_id: self._next_evaluation(run) for run in active}
        while behind := [
            run for run in active if run.step < targets[run.unit.run_id] and not run.stop_reason
        ]:
            begun = time.perf_counter()
            self._step(behind)
            _share_time(behind, time.perf_counter() - begun)
        begun = time.perf_counter()
        evaluations = self._evaluate(active)
        _share_time(active, time.perf_counter() - begun)
        return evaluations

    def results(self) -> list[UnitResult]:
        """The units that have stopped, in the order they were given."""
        return [
            UnitResult(
                unit=run.unit,
                prompt_PD=(self._start_D + run.delta).detach().cpu(),
                steps=run.step,
                weights_step=run.weights_step,
                stop_reason=run.stop_reason,
                losses=tuple(run.losses),
                accuracies=tuple(run.accuracies),
                tokens=run.tokens,
                seconds=run.seconds,
            )
            for run in self._runs.values()
            if run.stop_reason
        ]

    def state(self, run_id: str) -> dict[str, Tensor]:
        """All that a unit needs to go on elsewhere, in any pack, as plain tensors."""
        run = self._runs[run_id]
        moments = self._optimizer.state.get(run.delta, {})
        at_rest = torch.zeros_like(run.best_PD)
        tensors = {
            "delta": run.delta.detach(),
            "best": run.best_PD,
            **{name: moments.get(name, at_rest) for name in _MOMENTS},
            "step": torch.tensor(run.step),
            "weights_step": torch.tensor(run.weights_step),
            "stop_reason": torch.tensor(_STOP_REASONS.index(run.stop_reason)),
            "tokens": torch.tensor(run.tokens),
            "seconds": torch.tensor(run.seconds, dtype=torch.float64),
            "steps": torch.tensor(run.steps, dtype=torch.int64),
            "losses": torch.tensor(run.losses, dtype=torch.float64),
            "accuracies": torch.tensor(run.accuracies, dtype=torch.float64),
        }
        return {name: tensor.cpu().clone() for name, tensor in tensors.items()}

    def load_state(self, run_id: str, state: dict[str, Tensor]) -> None:
        """Take a unit up where `state` left it."""
        run = self._runs[run_id]
        with torch.no_grad():
            run.delta.copy_(state["delta"])
        run.best_PD = state["best"].to(self._device)
        run.step = int(state["step"])
        run.weights_step = int(state["weights_step"])
        run.stop_reason = _STOP_REASONS[int(state["stop_reason"])]
        run.tokens = int(state["tokens"])
        run.seconds = float(state["seconds"])
        run.steps = state["steps"].tolist()
        run.losses = state["losses"].tolist()
        run.accuracies = state["accuracies"].tolist()
        if run.step:
            self._optimizer.state[run.delta] = {
                "step": torch.tensor(float(run.step)),
                **{name: state[name].to(self._device) for name in _MOMENTS},
            }

    def _begin(self, unit: Unit) -> _Run:
        delta_PD = initial_delta(unit.seed, self.method, self.scorer.backbone.width)
        delta_PD = delta_PD.to(self._device)
        return _Run(unit, torch.nn.Parameter(delta_PD), delta_PD.clone())

    def _active(self) -> list[_Run]:
        return [run for run in self._runs.values() if not run.stop_reason]

    def _next_evaluation(self, run: _Run) -> int:
        step = (run.step // self.method.eval_every + 1) * self.method.eval_every
        return step if self.method.max_steps is None else min(step, self.method.max_steps)

    def _embedding_of_prompt_token(self) -> Tensor:
        backbone = self.scorer.backbone
        token = torch.tensor([[backbone.prompt_token_id]], device=self._device)
        with torch.no_grad():
            return backbone.embed(token)[0, 0].float()

    def _prompts(self, runs: Sequence[_Run]) -> Tensor:
        return torch.stack([self._start_D + run.delta.detach() for run in runs])

    def _step(self, runs: Sequence[_Run]) -> None:
        """One optimizer step of each run on its own next batch."""
        size = self.method.batch_size
        targets: list[list[int]] = []
        keyed: list[Keyed] = []
        for s, run in enumerate(runs):
            numbers = batch_of_step(
                run.unit.seed, run.step, rows=len(self.train.rows), batch_size=size
            )
            rows = [self.train.rows[n] for n in numbers]
            targets.append([self.train.labels[n] for n in numbers])
            keyed.extend(Keyed(s, s, sequence) for sequence in self.scorer.pack(rows))
            run.tokens += sum(map(len, rows))
            run.step += 1
        gradient_SPD, loss_S = self._gradient(self._prompts(runs), keyed, targets)
        sound_S = loss_S.isfinite() & gradient_SPD.isfinite().all(-1).all(-1)
        for s, (run, sound) in enumerate(zip(runs, sound_S.tolist(), strict=True)):
            if sound:
                run.delta.grad = gradient_SPD[s]
            else:
                run.stop_reason = "diverged"
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _gradient(
        self, prompts_SPD: Tensor, keyed: Sequence[Keyed], targets: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """The gradient [S, P, D] and value [S] of each run's mean loss over its batch."""
        prompts_SPD.requires_grad_()
        gradient_SPD = torch.zeros_like(prompts_SPD, requires_grad=False)
        loss_S = torch.zeros(len(prompts_SPD), device=self._device)

        def work(batch: Batch) -> tuple[Tensor, Tensor]:
            run_N = torch.tensor([s for s, _ in batch.rows], device=self._device)
            target_N = torch.tensor([targets[s][row] for s, row in batch.rows])
            share_N = torch.tensor([1 / len(targets[s]) for s, _ in batch.rows])
            with torch.enable_grad():
                logits_NL = self.scorer.reader.logits(batch, prompts_SPD)
                loss_N = cross_entropy(logits_NL, target_N.to(self._device), reduction="none")
                loss_N = loss_N * share_N.to(self._device)
                (part_SPD,) = torch.autograd.grad(loss_N.sum(), prompts_SPD)
            return part_SPD, torch.zeros_like(loss_S).index_add(0, run_N, loss_N.detach())

        for _, (part_SPD, part_S) in self.scorer.each(
            work, keyed, prompt_length=self.method.prompt_length
        ):
            gradient_SPD += part_SPD
            loss_S += part_S
        if self.scorer.group is not None:
            return self.scorer.group.sum(gradient_SPD), self.scorer.group.sum(loss_S)
        return gradient_SPD, loss_S

    def _evaluate(self, runs: Sequence[_Run]) -> list[Evaluation]:
        sound = [run for run in runs if run.stop_reason != "diverged"]
        found = {run.unit.run_id: (float("nan"), float("nan")) for run in runs}
        if sound:
            logits_SNL = self.scorer.score_each(self._validation, self._prompts(sound))
            for run, logits_NL in zip(sound, logits_SNL, strict=True):
                loss = float(cross_entropy(logits_NL.double(), self._targets_N))
                right_N = logits_NL.argmax(-1) == self._targets_N
                found[run.unit.run_id] = loss, float(right_N.double().mean())
        return [self._record(run, *found[run.unit.run_id]) for run in runs]

    def _record(self, run: _Run, loss: float, accuracy: float) -> Evaluation:
        run.steps.append(run.step)
        run.losses.append(loss)
        run.accuracies.append(accuracy)
        if not math.isfinite(loss):
            run.stop_reason = "diverged"
        elif should_stop(run.losses, run.steps, self.method.early_stop):
            run.stop_reason = "early_stop"
        elif run.step == self.method.max_steps:
            run.stop_reason = "max_steps"
        if run.losses.index(min(run.losses)) == len(run.losses) - 1 or not self.method.restore_best:
            run.weights_step = run.step
            run.best_PD = run.delta.detach().clone()
        elif run.stop_reason:
            with torch.no_grad():
                run.delta.copy_(run.best_PD)
        return Evaluation(run.unit.run_id, run.step, loss, accuracy, run.stop_reason or None)


def _share_time(runs: Sequence[_Run], seconds: float) -> None:
    for run in runs:
        run.seconds += seconds / len(runs)
