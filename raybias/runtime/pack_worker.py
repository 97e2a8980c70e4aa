"""Tune a pack of trials on one worker: report each evaluation, keep states, save what stops.

A trial's state is one file in OUT, whichever pack wrote it, so that any worker can take a trial
up where another left it. A trial that stops is saved as an adapter.

Ranks that share a backbone deal the rows of all trials among themselves, so there a trial's
rounding depends on the others. The states of such a pack are one file, all of one step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from raybias.engine.adapter_folder import RAYBIAS, READS
from raybias.engine.adapters.base import AdapterTrainer
from raybias.engine.adapters.tuning import PackedTuner, Run, TokenSet, Trial
from raybias.engine.backbone import ModelContext
from raybias.errors import RaybiasError
from raybias.methods import Tuned
from raybias.methods.tuned import CUT
from raybias.methods.tuned_folder import saved_reading
from raybias.runtime.predict.shards import device_name, keep_ways
from raybias.runtime.progress import Meter, WorkerReport
from raybias.runtime.ray_internals import leaving_nodes
from raybias.runtime.worker_group import Zero3, within_memory
from raybias.storage import Store

#: The states of a pack whose ranks share a backbone; a stage has one such pack.
_JOINED: Final = "pack"
#: Large states are saved again after so many times the seconds that saving them took.
_KEPT_EVERY: Final = 20


@dataclass(frozen=True)
class Tokens:
    """The training set in tokens."""

    train: TokenSet
    validation: TokenSet
    test: TokenSet | None


@dataclass(frozen=True, kw_only=True)
class TuneTask:
    """The task of a stage, which all of its packs share; `folder` is of its states in OUT.

    `fingerprint` hashes all that decides a trial's result except what differs between trials.
    `until` is the step at which the sweep gives trials up: all wait there.
    """

    context: ModelContext
    dataset: str
    method: Tuned
    store: Store
    folder: str
    fingerprint: str
    sharded: bool
    meter: Meter
    tokens: Tokens
    until: int | None = None


def record_of(
    store: Store, run_id: str, fingerprint: str, until: int | None = None
) -> dict[str, Any] | None:
    """Return the row of a trial that has ended, or waits at the step `until`.

    None if it is not tuned so far, or was tuned otherwise.
    """
    name = f"adapters/{run_id}/{RAYBIAS}"
    if not store.exists(name):
        return None
    record: dict[str, Any] = json.loads(store.read_text(name))
    row: dict[str, Any] = record["run"]
    there = row["stop_reason"] != CUT or row["steps"] == until
    return row if there and record.get("fingerprint") == fingerprint else None


class PackWorker:
    """Tunes packs of one method on one backbone, which it loads once.

    It is an actor, a rank of a group, of which one `writes`, or in this process. It keeps states
    and ends when it is `leaving`: by default, when its node is taken away.
    """

    def __init__(
        self,
        context: ModelContext,
        leaving: Callable[[], bool] | None = None,
        *,
        writes: bool = True,
    ) -> None:
        self.context, self.writes = context, writes
        self.leaving = leaving or self._node_leaves
        self._looked, self._leaves = time.monotonic(), False
        self.trainer: AdapterTrainer | None = None
        #: Trials of the pack that go on, and those to hand to another worker.
        self.active: list[str] = []
        self.asked: tuple[str, ...] = ()

    def tune(self, task: TuneTask, trials: Sequence[Trial]) -> Iterator[WorkerReport]:
        """Tune trials to their end, or until this worker is `leaving`."""
        # The threads of torch are those of the thread that asks, which is not the constructor's.
        context = self.context.here()
        if self.trainer is None:
            self.trainer = task.method.trainer(context)
            keep_ways(task.store, context)
        self.begin(task, trials, self.trainer)
        yield from self.reports()

    def give(self, run_ids: Sequence[str]) -> None:
        """Give trials up after the evaluation that is under way; `WorkerReport.given` tells."""
        self.asked = tuple(run_ids)

    def _node_leaves(self) -> bool:
        import ray

        if time.monotonic() - self._looked >= 5.0:
            self._looked = time.monotonic()
            self._leaves |= ray.get_runtime_context().get_node_id() in leaving_nodes()
        return self._leaves

    def begin(self, task: TuneTask, trials: Sequence[Trial], trainer: AdapterTrainer) -> None:
        """Begin a pack with those of its trials that have no result."""
        self.task, self.trainer, self.store = task, trainer, task.store
        self.name = trials[0].run_id
        left = [
            trial
            for trial in trials
            if record_of(self.store, trial.run_id, task.fingerprint, task.until) is None
        ]
        self.asked, self.active = (), [trial.run_id for trial in left]
        self.together = len(left)
        self.finished = tuple(t.run_id for t in trials if t.run_id not in self.active)
        self._kept, self._keeping = time.monotonic(), 0.0
        tokens = task.tokens
        self.tuner = PackedTuner(
            trainer, task.method.recipe, left, train=tokens.train, validation=tokens.validation
        )

    def reports(self) -> Iterator[WorkerReport]:
        """Tune the pack to its end, or until this worker is `leaving`; report each evaluation."""
        yield self.restore()
        while self.active and not self.leaving():
            with self.task.meter.computing():
                report = self.advance()
            if self.writes:
                self.task.meter.add("raybias_seed_steps_total", report.steps)
                self.task.meter.add("raybias_tokens_total", report.tokens)
            yield report
        if not self.task.sharded:
            self.keep()

    def restore(self) -> WorkerReport:
        """Load the states that earlier workers kept; report what resumes and what is repeated."""
        reached: dict[str, int] = {}
        for name in self.store.files(f"{self.task.folder}/reached", suffix=".json"):
            for run_id, step in json.loads(self.store.read_text(name)).items():
                reached[run_id] = max(step, reached.get(run_id, 0))
        states: dict[str, dict[str, torch.Tensor]] = {}
        for owner in [_JOINED] if self.task.sharded else self.active:
            if self.store.exists(file := self._state(owner)):
                for key, tensor in load(self.store.read_bytes(file)).items():
                    run_id, _, name = key.rpartition(":")
                    states.setdefault(run_id or owner, {})[name] = tensor
        resumed, repeated = [], 0
        for run_id in list(self.active):
            step = 0
            if state := states.get(run_id):
                step = int(state["steps"])
                if self.tuner.load_state(run_id, state) or step == self.task.until:
                    self._save(self.tuner.runs[run_id])
                    self._drop(run_id)
                    self.finished += (run_id,)
                    continue
            if step or run_id in reached:
                resumed.append(run_id)
                repeated += max(0, reached.get(run_id, 0) - step)
        return WorkerReport(
            pack=self.name,
            first=True,
            finished=self.finished,
            resumed=tuple(resumed),
            repeated=repeated,
        )

    def _state(self, name: str) -> str:
        return f"{self.task.folder}/{name}.safetensors"

    def advance(self) -> WorkerReport:
        """Train to the next evaluation, save what stops, and keep states that are due."""
        steps, tokens = self.tuner.steps, self.tuner.tokens
        evaluations = self.tuner.advance(self.leaving)
        if self.writes and evaluations:
            reached = json.dumps({each.run_id: each.step for each in evaluations})
            self.store.write_text(f"{self.task.folder}/reached/{self.name}.json", reached)
        stops = [each.run_id for each in evaluations if each.stop_reason is not None]
        until = self.task.until
        cut = [e.run_id for e in evaluations if e.step == until and e.stop_reason is None]
        if cut or (stops and self.task.sharded):
            # Before there is a result, with which the others' states would have to agree.
            self.keep()
        for stopped in stops + cut:
            self._save(self.tuner.runs[stopped])
            self._drop(stopped)
        given = tuple(run_id for run_id in self.asked if run_id in self.active)
        due = time.monotonic() - self._kept >= _KEPT_EVERY * self._keeping
        if given or due or self.task.method.small_state:
            self.keep()
        for run_id in given:
            self._drop(run_id)
        self.asked = ()
        return WorkerReport(
            pack=self.name,
            evaluated=tuple(evaluations),
            finished=tuple(cut),
            given=given,
            steps=self.tuner.steps - steps,
            tokens=self.tuner.tokens - tokens,
        )

    def keep(self) -> None:
        """Write the states of the trials that go on."""
        begun = time.monotonic()
        if self.writes:
            states = {run_id: self.tuner.state(run_id) for run_id in self.active}
            if self.task.sharded:
                joined = {
                    f"{run_id}:{name}": tensor
                    for run_id, state in states.items()
                    for name, tensor in state.items()
                }
                states = {_JOINED: joined}
            for name, state in states.items():
                if state:
                    self.store.write_bytes(self._state(name), save(state))
        self._kept = time.monotonic()
        self._keeping = self._kept - begun

    def _drop(self, run_id: str) -> None:
        self.tuner.drop(run_id)
        self.active.remove(run_id)

    def _save(self, result: Run) -> None:
        reason, trainer = result.stop_reason or CUT, self.tuner.trainer
        unusable = reason in ("diverged", CUT)
        accuracy, test = None, self.task.tokens.test
        if test is not None and not unusable:
            sequences = trainer.prepare(test.rows)
            (logits_NL,) = trainer.logits([result.weights], [sequences])
            accuracy = float((logits_NL.argmax(1) == torch.tensor(test.labels)).double().mean())
        if not self.writes:
            return
        folder, at = f"adapters/{result.trial.run_id}", result.kept
        row = {
            **vars(result.trial),
            "model": self.task.context.spec.name,
            "method": self.task.method.name,
            "dataset": self.task.dataset,
            "steps": result.steps,
            "weights_step": result.weights_step,
            "stop_reason": reason,
            "validation_loss": _number(result.losses[at]),
            "validation_accuracy": _number(result.accuracies[at]),
            "untuned_accuracy": _number(result.accuracies[0]),
            "test_accuracy": accuracy,
            "eval_losses": [_number(loss) for loss in result.losses],
            "eval_accuracies": [_number(accuracy) for accuracy in result.accuracies],
            "tokens": result.tokens,
            "tuned_parameters": sum(weight.numel() for weight in result.weights.values()),
            "seconds": result.seconds,
            "verbalizer_ids": list(trainer.label_ids),
            "prompt_token_id": trainer.prompt_token_id,
            "adapter": None if unusable else folder,
        }
        record = self._record(row)
        if unusable:
            self.store.write_text(f"{folder}/{RAYBIAS}", json.dumps(record))
        else:
            trainer.save(self.store, folder, result.weights, record)

    def _record(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what raybias.json keeps of a run: its row, and how it was computed and is read."""
        trainer, context = self.tuner.trainer, self.task.context
        # What decides how a GPU rounds.
        computed = {
            "device": device_name(trainer.device),
            "torch": torch.__version__,
            "pack": self.together,
            "tokens_per_batch": trainer.batcher.tokens_per_batch,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        reads = saved_reading(
            self.task.method, context.spec, labels=context.labels, words=context.words
        )
        return {
            "run": row,
            "fingerprint": self.task.fingerprint,
            "computed": computed,
            READS: reads,
        }


def tune_together(config: dict[str, Any]) -> None:
    """Tune on every rank of a Ray Train group; all take the same steps, to the same bits."""
    import ray
    import ray.train
    from ray.train.torch import get_device

    task, trials = ray.get(config["work"])
    rank, device = ray.train.get_context().get_world_rank(), get_device()
    progress = config["progress"]
    error: RaybiasError | None = None
    with within_memory(task.context, task.store, task.folder) as halved:
        context = halved.here(device, Zero3(task.context.spec.dtype, device))
        worker = PackWorker(context, lambda: False, writes=rank == 0)
        try:
            worker.begin(task, trials, task.method.trainer(context))
        except RaybiasError as raised:
            error = raised
        # Every rank learns of the error here, so that none waits for another for ever.
        failed = torch.tensor(int(error is not None), device=context.execution.device)
        dist.all_reduce(failed)
        if failed.item():
            if error is not None:
                progress.put(error)
            return
        if rank == 0:
            keep_ways(task.store, context)
        for report in worker.reports():
            if rank == 0:
                progress.put(report)


def _number(value: float) -> float | None:
    """JSON has no NaN; a loss that is not finite is missing."""
    return value if math.isfinite(value) else None
