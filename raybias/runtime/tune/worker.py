"""Ray Train worker: tune its trials, report, checkpoint and save them.

Trials are dealt to ranks by their place in the whole list, so a restart with as many workers packs
them as before and computes the same bits; with another number it still finds each trial's state,
which is one file per trial. A trial that stops is saved as an adapter and leaves the checkpoint.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from raybias.engine.adapters.tuning import Evaluation, PackedTuner, TokenSet, Trial, TrialResult
from raybias.engine.context import ModelContext
from raybias.errors import RaybiasError
from raybias.methods import Tuned
from raybias.runtime.metrics import Meter
from raybias.runtime.tune.reports import Evaluated, WorkerReport
from raybias.storage import Store

if TYPE_CHECKING:
    from ray.util.queue import Queue

RECORD = "raybias.json"
#: Seconds, and evaluations, between checkpoints of adapters that are not small: the more of
#: the one or the other, so that waiting for the slowest rank stays a small part.
_ROUND_S = 60.0
_EVALUATIONS = 6


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """The task that every rank receives."""

    context: ModelContext
    dataset: str
    method: Tuned
    trials: tuple[Trial, ...]
    """All trials of the stage, finished ones too: their places decide the packs."""
    out: str
    """URI of the study's OUT."""
    folder: str
    """Where Ray Train keeps this stage's checkpoints in it."""
    fingerprint: str
    """Hash of all that decides a trial's result except what differs between trials."""
    sharded: bool
    meter: Meter


@dataclass(frozen=True)
class Tokens:
    """The training set in tokens."""

    train: TokenSet
    validation: TokenSet
    test: TokenSet | None


def record_of(store: Store, run_id: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the row of a finished trial; None if it is not tuned, or was tuned otherwise."""
    name = f"adapters/{run_id}/{RECORD}"
    if not store.exists(name):
        return None
    record: dict[str, Any] = json.loads(store.read_text(name))
    return record["run"] if record.get("fingerprint") == fingerprint else None


def work(config: dict[str, Any]) -> None:
    """Run on every rank of a Ray Train group."""
    import ray
    import ray.train
    from ray.train.torch import get_device

    progress: Queue = config["progress"]
    job, tokens = ray.get(config["work"])
    context = ray.train.get_context()
    rank = context.get_world_rank()
    device = get_device()
    try:
        pack, error = WorkerPack(job, tokens, rank, context.get_world_size(), device), None
    except RaybiasError as raised:
        pack, error = None, raised
    # Every rank learns of the error here, so that none waits for another for ever.
    if _sum(int(error is not None), device) or pack is None:
        progress.put(WorkerReport(rank, error=error))
        return
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        progress.put(pack.restore(folder))
    busy = job.meter.watched()
    while _sum(pack.active, device):
        with busy.computing():
            report = pack.advance()
        progress.put(report)
        job.meter.add("raybias_seed_steps_total", report.steps)
        job.meter.add("raybias_tokens_total", report.tokens)
        with tempfile.TemporaryDirectory() as folder:
            saved = pack.checkpoint(Path(folder))
            ray.train.report(
                {"active": pack.active},
                checkpoint=ray.train.Checkpoint.from_directory(folder) if saved else None,
            )
        # Until the controller has taken note, a worker that is killed would repeat this round too.
        ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)


def ends_round(elapsed: float, slowest: float) -> bool:
    """Tell whether one more evaluation, of `slowest` seconds so far, would make a round too long.

    Parameters
    ----------
    elapsed: seconds since the round began.
    """
    return elapsed + slowest > max(_ROUND_S, _EVALUATIONS * slowest)


def _preempted() -> bool:
    """Tell whether Ray Train announced that a node of this worker group will be preempted.

    `ray.train.get_preemption_info` asks the same of all ranks at once and waits for each of
    them, but within a round they evaluate at times of their own.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context().preemption_context.preemption_info is not None


def _sum(count: int, device: torch.device) -> int:
    value = torch.tensor(count, device=device)
    dist.all_reduce(value)
    return int(value.item())


class WorkerPack:
    """The trials of one rank."""

    def __init__(
        self, job: WorkerTask, tokens: Tokens, rank: int, world: int, device: torch.device
    ) -> None:
        self.job, self.tokens, self.store, self.rank = job, tokens, Store(job.out), rank
        self.writes = rank == 0 or not job.sharded
        mine = job.trials if job.sharded else job.trials[rank::world]
        self.trials = [
            trial for trial in mine if record_of(self.store, trial.run_id, job.fingerprint) is None
        ]
        self.finished = tuple(trial.run_id for trial in mine if trial not in self.trials)
        self.stopped: set[str] = set()
        if not self.trials:
            return
        sharding = None
        if job.sharded:
            from raybias.runtime.zero3 import Zero3

            sharding = Zero3(job.context.spec.dtype, device)
        self.trainer = job.method.trainer(job.context.here(device, sharding))
        self.tuner = PackedTuner(
            self.trainer,
            job.method,
            self.trials,
            train=tokens.train,
            validation=tokens.validation,
        )

    @property
    def active(self) -> int:
        """How many trials still run."""
        return len(self.trials) - len(self.stopped)

    def restore(self, folder: str | None) -> WorkerReport:
        """Load the states of a checkpoint; report what resumes and which steps are repeated."""
        reached = self._reached()
        resumed, repeated = [], 0
        for trial in self.trials:
            step = 0
            path = Path(folder or ".") / f"{trial.run_id}.safetensors"
            if folder and path.exists():
                state = load_file(path)
                self.tuner.load_state(trial.run_id, state)
                step = int(state["step"])
            if step or trial.run_id in reached:
                resumed.append(trial.run_id)
                repeated += max(0, reached.get(trial.run_id, 0) - step)
        if not self.writes:
            return WorkerReport(self.rank)
        return WorkerReport(
            self.rank, finished=self.finished, resumed=tuple(resumed), repeated=repeated
        )

    def _reached(self) -> dict[str, int]:
        """Return the last step that each trial was evaluated at by earlier workers."""
        reached: dict[str, int] = {}
        for name in self.store.files(f"{self.job.folder}/reached", suffix=".json"):
            for run_id, step in json.loads(self.store.read_text(name)).items():
                reached[run_id] = max(step, reached.get(run_id, 0))
        return reached

    def advance(self) -> WorkerReport:
        """Train for one round, and save the trials that stop in it.

        A round is one evaluation of soft prompts, which are small and checkpointed each time,
        and of ranks that share a backbone, which must agree without a clock. Others go on for
        several evaluations: all ranks wait for the slowest where a round ends. Where a node is
        about to be taken away, the next evaluation ends it, so that its checkpoint is kept.
        """
        if not self.active:
            return WorkerReport(self.rank)
        single = self.job.method.small_state or self.job.sharded
        begun, evaluations, slowest = time.monotonic(), list[Evaluation](), 0.0
        steps, tokens = self.tuner.steps, self.tuner.tokens
        while self.active:
            last = time.monotonic()
            newest = self.tuner.advance()
            evaluations += newest
            if self.writes:
                reached = json.dumps({e.run_id: e.step for e in newest})
                self.store.write_text(f"{self.job.folder}/reached/{self.rank}.json", reached)
            for stopped in (e.run_id for e in newest if e.stop_reason is not None):
                self._save(self.tuner.result(stopped))
                self.tuner.drop(stopped)
                self.stopped.add(stopped)
            slowest = max(slowest, time.monotonic() - last)
            if single or _preempted() or ends_round(time.monotonic() - begun, slowest):
                break
        # Ranks that share a backbone take the same steps, which count once.
        return WorkerReport(
            self.rank,
            tuple(
                Evaluated(e.run_id, e.step, e.accuracy, stopped=e.stop_reason is not None)
                for e in evaluations
            ),
            steps=self.tuner.steps - steps if self.writes else 0,
            tokens=self.tuner.tokens - tokens if self.writes else 0,
        )

    def checkpoint(self, folder: Path) -> bool:
        """Write the states of the active trials; return whether there were any."""
        if not (self.active and self.writes):
            return False
        for trial in self.trials:
            if trial.run_id not in self.stopped and (state := self.tuner.state(trial.run_id)):
                save_file(state, folder / f"{trial.run_id}.safetensors")
        return True

    def _save(self, result: TrialResult) -> None:
        """Save the adapter and its row; of a diverged trial the row alone."""
        diverged = result.stop_reason == "diverged"
        accuracy = None if diverged else self._test_accuracy(result)
        if not self.writes:
            return
        folder = f"adapters/{result.trial.run_id}"
        row = self._row(result, accuracy, None if diverged else folder)
        record = {"run": row, "fingerprint": self.job.fingerprint}
        if diverged:
            self.store.write_text(f"{folder}/{RECORD}", json.dumps(record))
        else:
            self.trainer.save(self.store, folder, result.weights, record)

    def _test_accuracy(self, result: TrialResult) -> float | None:
        test = self.tokens.test
        if test is None:
            return None
        sequences = self.trainer.prepare(test.rows)
        (logits_NL,) = self.trainer.logits([result.weights], [sequences])
        return float((logits_NL.argmax(1) == torch.tensor(test.labels)).double().mean())

    def _row(
        self, result: TrialResult, test_accuracy: float | None, adapter: str | None
    ) -> dict[str, Any]:
        at = result.kept
        return {
            "run_id": result.trial.run_id,
            "model": self.job.context.spec.name,
            "method": self.job.method.name,
            "dataset": self.job.dataset,
            "seed": result.trial.seed,
            "learning_rate": result.trial.learning_rate,
            "weight_decay": result.trial.weight_decay,
            "stop_window": result.trial.stop_window,
            "stage": result.trial.stage,
            "steps": result.steps,
            "weights_step": result.weights_step,
            "stop_reason": result.stop_reason,
            "validation_loss": _number(result.losses[at]),
            "validation_accuracy": _number(result.accuracies[at]),
            "test_accuracy": test_accuracy,
            "eval_losses": [_number(loss) for loss in result.losses],
            "eval_accuracies": [_number(accuracy) for accuracy in result.accuracies],
            "tokens": result.tokens,
            "seconds": result.seconds,
            **self.trainer.label_metadata(),
            "adapter": adapter,
        }


def _number(value: float) -> float | None:
    """JSON has no NaN; a loss that is not finite is missing."""
    return value if math.isfinite(value) else None
