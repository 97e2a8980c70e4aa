"""Tune many runs of one kind of adapter on one backbone in one step (Tian2023, Kohankhaki2024).

Rows of all runs share each forward and backward pass, and AdamW works element by element, so a run
depends on its seed, options, data and backbone, never on its pack. Every run has its own learning
rate, data order, evaluations and early stop. Shapes: S runs, N rows, L labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.base import AdapterTrainer, TrainingBatch
from raybias.engine.adapters.options import AdapterSize, Recipe, batch_of_step, should_stop
from raybias.engine.checkpoint import dtype_of
from raybias.engine.packing import PackedSequence
from raybias.seeding import generator

#: By number, since states hold tensors only; the first is of a run that goes on.
_STOP_REASONS: Final = ("", "early_stop", "max_steps", "diverged")
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
#: As in `torch.amp.GradScaler`: the first factor, and the finite steps until it doubles.
FIRST_SCALE: Final = 2.0**16
_GROWS_AFTER: Final = 2000
#: Dtypes of a run's numbers in its state.
_STATE: Final = {
    **dict.fromkeys(("steps", "weights_step", "tokens", "evaluated"), torch.int64),
    **dict.fromkeys(("seconds", "losses", "accuracies"), torch.float64),
}
_SCALE: Final = {"factor": torch.float64, "finite": torch.int64, "skipped": torch.int64}


@dataclass(frozen=True)
class TokenSet:
    """Labelled token rows."""

    rows: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """One tuning run: a seed with the options that a sweep may vary.

    adapter_rank, target, prompt_length: as in `AdapterSize`.
    """

    run_id: str
    seed: int
    learning_rate: float
    stage: str
    weight_decay: float
    stop_window: int
    adapter_rank: int | None = None
    target: str | None = None
    prompt_length: int | None = None

    @property
    def size(self) -> AdapterSize | None:
        """The size of its adapter; None for the trainer's own."""
        size = AdapterSize(self.adapter_rank, self.target, self.prompt_length)
        return None if size == AdapterSize() else size


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of one evaluation of one run; `stop_reason` is None while it goes on."""

    run_id: str
    step: int
    loss: float
    accuracy: float
    stop_reason: str | None


@dataclass
class LossScale:
    """Scale one run's loss where gradients are computed in float16 (Micikevicius et al. 2018).

    Rule and numbers are those of `torch.amp.GradScaler` (a gradient that is not finite skips the
    step and halves the factor), with one factor per run, so that runs of a pack stay independent.

    factor: stays 1 for a run whose gradients are not in float16.
    finite: steps since the factor changed.
    skipped: steps without an update.
    """

    factor: float = 1.0
    finite: int = 0
    skipped: int = 0
    dynamic: bool = False

    def update(self, *, finite: bool) -> bool:
        """Change the factor after a step; return whether the step is to be taken."""
        if not self.dynamic:
            return finite
        if not finite:
            self.factor, self.finite, self.skipped = self.factor / 2, 0, self.skipped + 1
            return False
        self.finite += 1
        if self.finite == _GROWS_AFTER:
            self.factor, self.finite = self.factor * 2, 0
        return True


@dataclass
class Run:
    """A trial under way or stopped.

    weights: float32, by name; of a stopped run those to keep.
    best: the weights of the evaluation with the lowest loss.
    steps: optimizer steps so far.
    weights_step: the step of the kept weights.
    stop_reason: empty while it goes on.
    evaluated, losses, accuracies: of each evaluation; the first is of step 0, of untuned weights.
    tokens, seconds: of its batches, and its share of the time.
    """

    trial: Trial
    weights: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scale: LossScale
    best: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    weights_step: int = 0
    stop_reason: str = ""
    evaluated: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def kept(self) -> int:
        """The place of the evaluation of its weights."""
        return self.evaluated.index(self.weights_step) if self.weights_step else -1


class PackedTuner:
    """Tune a pack of trials, with distinct run ids, on one backbone.

    runs: those that have begun, by run id; the trainer may hold fewer at once than there are
        trials.
    steps, tokens: optimizer steps, one for each run, and tokens of their batches.
    """

    def __init__(
        self,
        trainer: AdapterTrainer,
        recipe: Recipe,
        trials: Sequence[Trial],
        *,
        train: TokenSet,
        validation: TokenSet,
    ) -> None:
        self.trainer = trainer
        self.recipe = recipe
        self.train = train
        self.validation = validation
        self._end = recipe.last_step(len(train.rows))
        self._whole = trainer.prepare(validation.rows)
        self._half = dtype_of(trainer.encoder.spec) is torch.float16
        self._trials = {trial.run_id: trial for trial in trials}
        self.runs: dict[str, Run] = {}
        batcher = trainer.batcher
        if len(trials) > 1 and batcher.device.type == "cpu" and batcher.group is None:
            # A CPU's products in float16 round by how many rows they have.
            shares = not self._half and (trainer.max_packed == 1 or trainer.shares_passes())
            batcher.apart = not shares
        self.steps = self.tokens = 0

    def advance(self, leaving: Callable[[], bool] = lambda: False) -> list[Evaluation]:
        """Step the active runs to their next evaluation, evaluate, and apply the stop rule.

        A run that begins is evaluated at step 0 too; there is none where all have stopped.
        `leaving` is called between two steps; True leaves the runs there, to be resumed by their
        state.
        """
        active = self._active()
        evaluations = self._evaluate([run for run in active if not run.evaluated])
        targets = {}
        for run in active:
            step = (run.steps // self.recipe.eval_every + 1) * self.recipe.eval_every
            targets[run.trial.run_id] = step if self._end is None else min(step, self._end)
        while behind := [
            run for run in active if run.steps < targets[run.trial.run_id] and not run.stop_reason
        ]:
            if leaving():
                return evaluations
            with _timed(behind):
                self._step(behind)
        return evaluations + self._evaluate(active)

    def drop(self, run_id: str) -> None:
        """Forget a trial that has stopped, and free its weights."""
        del self._trials[run_id], self.runs[run_id]

    def state(self, run_id: str) -> dict[str, Tensor]:
        """Return a trial's state as plain tensors, for any pack; empty before the trial begins."""
        if run_id not in self.runs:
            return {}
        run = self.runs[run_id]
        tensors = {
            "stop_reason": torch.tensor(_STOP_REASONS.index(run.stop_reason)),
            **{name: torch.tensor(getattr(run, name), dtype=t) for name, t in _STATE.items()},
            **{f"best/{name}": tensor for name, tensor in run.best.items()},
        }
        for name, dtype in _SCALE.items():
            tensors[f"scale/{name}"] = torch.tensor(getattr(run.scale, name), dtype=dtype)
        for name, weight in run.weights.items():
            tensors[f"weights/{name}"] = weight.detach()
            for moment in _MOMENTS:
                value = run.optimizer.state.get(weight, {}).get(moment)
                if value is not None:
                    tensors[f"{moment}/{name}"] = value
        return {name: tensor.cpu().clone() for name, tensor in tensors.items()}

    def load_state(self, run_id: str, state: Mapping[str, Tensor]) -> bool:
        """Resume a trial from its state; return whether it had stopped."""
        run = self._begin(self._trials[run_id], _named(state, "weights"))
        self.runs[run_id] = run
        device = next(iter(run.weights.values())).device
        run.best = {name: tensor.to(device) for name, tensor in _named(state, "best").items()}
        run.stop_reason = _STOP_REASONS[int(state["stop_reason"])]
        for name in _STATE:
            setattr(run, name, state[name].tolist())
        for name in _SCALE:
            setattr(run.scale, name, state[f"scale/{name}"].item())
        for name, weight in run.weights.items():
            if f"{_MOMENTS[0]}/{name}" in state:
                run.optimizer.state[weight] = {
                    "step": torch.tensor(float(run.steps - run.scale.skipped), device=device),
                    **{moment: state[f"{moment}/{name}"].to(device) for moment in _MOMENTS},
                }
        return bool(run.stop_reason)

    def _begin(self, trial: Trial, weights: Mapping[str, Tensor] | None = None) -> Run:
        if trial.size is None:
            start = self.trainer.init_weights(trial.seed)
        else:
            start = self.trainer.sized_weights(trial.seed, trial.size)
        if weights is not None:
            start = {name: weights[name].to(tensor.device) for name, tensor in start.items()}
        parameters = {name: torch.nn.Parameter(tensor) for name, tensor in start.items()}
        optimizer = torch.optim.AdamW(
            parameters.values(),
            lr=trial.learning_rate,
            weight_decay=trial.weight_decay,
            betas=self.recipe.betas,
            eps=self.recipe.eps,
            fused=True,
        )
        scale = LossScale(FIRST_SCALE, dynamic=True) if self._half else LossScale()
        return Run(trial, parameters, optimizer, scale)

    def _active(self) -> list[Run]:
        """Return the active runs, begun where need be, as many as the trainer packs."""
        active: list[Run] = []
        for run_id, trial in self._trials.items():
            if self.trainer.max_packed is not None and len(active) == self.trainer.max_packed:
                break
            if run_id not in self.runs:
                self.runs[run_id] = self._begin(trial)
            if not self.runs[run_id].stop_reason:
                active.append(self.runs[run_id])
        return active

    def _step(self, runs: Sequence[Run]) -> None:
        batches = [self._batch(run) for run in runs]
        gradients, loss_S = self.trainer.gradients(batches)
        norms = [torch.nn.utils.get_total_norm(each.values()) for each in gradients]
        norm_S = torch.stack([norm.to(loss_S.device) for norm in norms])
        # One synchronisation for all runs.
        finite_S = (loss_S.isfinite() & norm_S.isfinite()).tolist()
        for run, batch, gradient, finite in zip(runs, batches, gradients, finite_S, strict=True):
            tokens = sum(map(len, batch.rows))
            run.tokens, self.tokens = run.tokens + tokens, self.tokens + tokens
            run.steps, self.steps = run.steps + 1, self.steps + 1
            if not run.scale.update(finite=finite):
                # A factor below 1 would gain nothing.
                run.stop_reason = "" if run.scale.dynamic and run.scale.factor >= 1 else "diverged"
                continue
            # AdamW leaves alone what no gradient reaches, such as XLNet's `mask_emb`.
            for name, weight in run.weights.items():
                weight.grad = _laid_out(gradient[name], weight) if name in gradient else None
            if self.recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(run.weights.values(), self.recipe.clip)
            factor = self.recipe.rate_share(run.steps - 1, self._end)
            for group in run.optimizer.param_groups:
                group["lr"] = run.trial.learning_rate * factor
            run.optimizer.step()
            run.optimizer.zero_grad()

    def _batch(self, run: Run) -> TrainingBatch:
        size = self.recipe.batch_size
        numbers = batch_of_step(
            run.trial.seed, run.steps, rows=len(self.train.rows), batch_size=size
        )
        return TrainingBatch(
            weights={name: weight.detach() for name, weight in run.weights.items()},
            rows=[self.train.rows[n] for n in numbers],
            labels=[self.train.labels[n] for n in numbers],
            seed=run.trial.seed,
            step=run.steps,
            dropout=self.recipe.dropout_after_first_eval or len(run.evaluated) <= 1,
            loss_scale=run.scale.factor,
        )

    def _evaluate(self, runs: Sequence[Run]) -> list[Evaluation]:
        with _timed(runs):
            sound = [run for run in runs if run.stop_reason != "diverged"]
            measured = {run.trial.run_id: (float("nan"), float("nan")) for run in runs}
            drawn = [self._drawn(run) for run in sound]
            logits = self.trainer.logits(
                [run.weights for run in sound], [sequences for sequences, _ in drawn]
            ) if sound else []  # fmt: skip
            for run, logits_NL, (_, labels) in zip(sound, logits, drawn, strict=True):
                targets_N = torch.tensor(labels)
                loss = float(cross_entropy(logits_NL.double(), targets_N))
                right_N = logits_NL.argmax(-1) == targets_N
                measured[run.trial.run_id] = loss, float(right_N.double().mean())
            return [self._record(run, *measured[run.trial.run_id]) for run in runs]

    def _drawn(self, run: Run) -> tuple[list[PackedSequence], Sequence[int]]:
        """Pack the rows of a run's next evaluation, with labels; step 0 and the next share rows."""
        rows, labels = self.validation.rows, self.validation.labels
        count = self.recipe.validation_rows or len(rows)
        if count >= len(rows):
            return self._whole, labels
        place = max(0, len(run.evaluated) - 1)
        order = generator(run.trial.seed, "validation", place).permutation(len(rows))
        numbers = order[:count].tolist()
        return self.trainer.prepare([rows[n] for n in numbers]), [labels[n] for n in numbers]

    def _record(self, run: Run, loss: float, accuracy: float) -> Evaluation:
        run.evaluated.append(run.steps)
        run.losses.append(loss)
        run.accuracies.append(accuracy)
        if not run.steps:
            # It neither stops a run nor is restored.
            return Evaluation(run.trial.run_id, 0, loss, accuracy, None)
        tuned_losses = run.losses[1:]
        rule, window = self.recipe.early_stop, run.trial.stop_window
        stored = rule.stored + window - rule.window
        rule = rule.model_copy(update={"window": window, "stored": stored})
        if not math.isfinite(loss):
            run.stop_reason = "diverged"
        elif should_stop(tuned_losses, run.evaluated[1:], rule):
            run.stop_reason = "early_stop"
        elif run.steps == self._end:
            run.stop_reason = "max_steps"
        if not self.recipe.restore_best:
            run.weights_step = run.steps
        elif tuned_losses.index(min(tuned_losses)) == len(tuned_losses) - 1:
            run.weights_step = run.steps
            run.best = {name: weight.detach().clone() for name, weight in run.weights.items()}
        elif run.stop_reason:
            with torch.no_grad():
                for name, best in run.best.items():
                    run.weights[name].copy_(best)
        return Evaluation(run.trial.run_id, run.steps, loss, accuracy, run.stop_reason or None)


def _laid_out(gradient: Tensor, weight: Tensor) -> Tensor:
    """Copy a gradient into its weight's strides, which the fused AdamW takes for granted."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)


def _named(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


@contextmanager
def _timed(runs: Sequence[Run]) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    seconds = time.perf_counter() - begun
    for run in runs:
        run.seconds += seconds / len(runs)
