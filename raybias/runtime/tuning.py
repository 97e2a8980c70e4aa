"""Tune the runs of one method on one training set, in packs that the study's graph starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

from raybias.config import Backbone, TrainingSet
from raybias.engine.adapters.tuning import TokenSet, Trial
from raybias.errors import WorkFailed
from raybias.methods import Tuned
from raybias.methods.base import Inputs
from raybias.methods.tuned import (
    HyperParameters,
    best_hyper_parameters,
    hyper_parameter_grid,
    hyper_parameters_of,
    runs_of,
    select,
)
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import TunePlan
from raybias.runtime.graph import Grant, Work
from raybias.runtime.pack_worker import Tokens, TuneTask, record_of
from raybias.runtime.progress import Meter, ProgressAggregator, Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.workers import Workers
from raybias.seeding import key
from raybias.storage import Store


def trials_of(
    backbone: Backbone,
    training: TrainingSet,
    method: Tuned,
    seeds: Sequence[int],
    choices: Sequence[HyperParameters],
) -> tuple[Trial, ...]:
    """List one final trial per seed and choice of hyper-parameters, in the study's order."""
    found = []
    for choice in choices:
        name = f"{backbone.name}.{training.name}.{method.name}.lr{_exactly(choice.learning_rate)}"
        if method.weight_decays:
            name += f".wd{_exactly(choice.weight_decay)}"
        if method.stop_windows:
            name += f".t{choice.stop_window}"
        found += [Trial(f"{name}.s{seed}", seed, stage="final", **vars(choice)) for seed in seeds]
    return tuple(found)


def _exactly(value: float) -> str:
    """Write a number so that no other is written alike."""
    return repr(float(value)).removesuffix(".0")


def tokenise(inputs: Inputs, training: str, method: Tuned) -> Tokens:
    """Return the splits of a training set in tokens."""
    sentences = inputs.sentences[training]

    def of(name: str) -> TokenSet:
        rows = method.encode(inputs.encoder, sentences[name]["text"].to_list())
        return TokenSet(tuple(map(tuple, rows)), tuple(sentences[name]["label"].to_list()))

    return Tokens(of("train"), of("validation"), of("test") if "test" in sentences else None)


@dataclass(frozen=True)
class TuningJob:
    """The sweep and the final runs of one method on one training set; `work` does one pack."""

    prepared: PreparedStudy
    backbone: Backbone
    training: TrainingSet
    method: Tuned
    plan: TunePlan
    store: Store
    reporter: Reporter
    workers: Workers
    work: Work
    lock: Lock = field(default_factory=Lock)

    @property
    def title(self) -> str:
        """The job in words."""
        return f"tune {self.backbone.name} on {self.training.name}, {self.method.name}"

    @cached_property
    def tokens(self) -> Tokens:
        """The training set in tokens."""
        text = self.prepared.inputs(self.method, self.backbone)
        return tokenise(text, self.training.name, self.method)

    def tune(self, grant: Grant) -> bool:
        """Tune one pack of a stage; returns whether it was the last of the job.

        Runs whose adapter is in OUT are not tuned again; others resume from their state there.
        """
        task = grant.task
        stage = self._stage(task.stage)
        trials = stage.given.pop(task.key, stage.trials[task.pack :: task.packs])
        with translating_errors(stage.title):
            if {trial.run_id for trial in trials} & stage.missing:
                with self.lock:
                    _ = stage.progress  # One bar, whichever pack begins first.
                self.workers.tune(stage, trials, grant)
            with self.lock:
                stage.left -= 1
                if stage.left == 0:
                    stage.end()
                last = "final" if self.plan.final_packs else "sweep"
                return stage.left == 0 and task.stage == last

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `schema.RUNS` of all runs, those that are kept marked as selected."""
        swept = self._sweep.rows() if len(self.choices) > 1 else []
        final = [self.row(trial) for trial in self._all(self._choice)]
        others = [
            {**row, "rank": None, "tied": False, "selected": False}
            for row in swept
            if hyper_parameters_of(row) != self._choice
        ]
        return others + select([{**row, "stage": "final"} for row in final], self.method)

    def left(self, stage: str) -> float:
        """Return the share of a stage's runs that OUT lacks, 0 to 1."""
        if stage == "final" and len(self.choices) > 1 and self._sweep.missing:
            return 1.0
        known = self._stage(stage)
        return len(known.missing) / max(1, len(known.trials))

    @cached_property
    def choices(self) -> list[HyperParameters]:
        """What is swept over."""
        return hyper_parameter_grid(self.method)

    def _stage(self, name: str) -> TuningStage:
        with self.lock:
            return self._sweep if name == "sweep" else self._final

    @cached_property
    def _sweep(self) -> TuningStage:
        seeds = self.method.seeds[: self.method.sweep_seeds]
        trials = trials_of(self.backbone, self.training, self.method, seeds, self.choices)
        return TuningStage(self, "sweep", [replace(each, stage="sweep") for each in trials])

    @cached_property
    def _final(self) -> TuningStage:
        """The runs that the sweep has not tuned."""
        _, left = runs_of(self.method)
        return TuningStage(self, "final", self._all(self._choice)[len(self.method.seeds) - left :])

    @cached_property
    def _choice(self) -> HyperParameters:
        if len(self.choices) == 1:
            return self.choices[0]
        choice = best_hyper_parameters(self._sweep.rows(), self.choices)
        self.reporter.say(f"{self.title}: the sweep chose {choice}")
        return choice

    def _all(self, choice: HyperParameters) -> tuple[Trial, ...]:
        return trials_of(self.backbone, self.training, self.method, self.method.seeds, (choice,))

    def row(self, trial: Trial) -> dict[str, Any]:
        """Return a finished trial's row of `schema.RUNS`."""
        row = record_of(self.store, trial.run_id, self.fingerprint)
        if row is None:
            raise WorkFailed(f"no result of {trial.run_id}", where=self.store.uri)
        return row

    @cached_property
    def fingerprint(self) -> str:
        """Hash all that decides a trial's result except what differs between trials."""
        varied = {
            *("seeds", "learning_rates", "weight_decays", "stop_windows", "sweep_seeds"),
            *("keep", "select", "allow_failed", "name"),
        }
        # Sorted keys: where an option is declared decides nothing.
        options = [
            json.dumps(section.model_dump(mode="json", exclude=left_out), sort_keys=True)
            for section, left_out in ((self.method, varied), (self.backbone, set()))
        ]
        parts = (*options, *self.prepared.study.verbalizer.words(), repr(self.tokens))
        return f"{key(*parts):016x}"


class TuningStage:
    """The sweep or the final runs of a job: what its packs have in common, and how far they are.

    Attributes
    ----------
    name: of its folder in OUT/train.
    missing: runs that had no result when the stage began.
    left: packs that are not done.
    given: trials that a pack gave up, by the key of the task that goes on with them.
    """

    def __init__(self, job: TuningJob, name: str, trials: Sequence[Trial]) -> None:
        self.job, self.plan, self.trials = job, job.plan, trials
        self.title = f"{job.title} (sweep)" if name == "sweep" else job.title
        self.left = job.plan.packs(name)
        self.missing = {
            trial.run_id
            for trial in trials
            if record_of(job.store, trial.run_id, job.fingerprint) is None
        }
        parts = (job.backbone.name, job.training.name, job.method.name, name)
        self.name = f"{'.'.join(parts)}-{job.fingerprint[:8]}"
        self.given: dict[str, Sequence[Trial]] = {}
        self._shown = ExitStack()

    @cached_property
    def task(self) -> TuneTask:
        """What every worker of the stage is sent."""
        job, study = self.job, self.job.prepared.study
        return TuneTask(
            context=job.plan.context(job.backbone, study.verbalizer.words()),
            dataset=job.training.name,
            method=job.method,
            out=job.store.uri,
            folder=f"train/{self.name}",
            fingerprint=job.fingerprint,
            sharded=job.plan.sharded,
            meter=Meter(study=study.name, stage="tune", model=job.backbone.name),
            tokens=job.tokens,
        )

    @cached_property
    def progress(self) -> ProgressAggregator:
        """The bar of the stage, from its first pack to its last."""
        job, meter = self.job, self.task.meter
        shown = job.reporter.stage(self.title, len(self.missing), starting=job.workers.starting)
        advance = self._shown.enter_context(shown)
        end = job.method.recipe.last_step(len(job.tokens.train.rows))
        return ProgressAggregator(advance, meter, set(self.missing), end)

    def split(self, trials: Sequence[Trial], grant: Grant) -> None:
        """Have another pack go on with trials that one gave up."""
        whole = grant.task
        with self.job.lock:
            self.left += 1
            name = f"{whole.key}/{trials[0].run_id}"
            self.given[name] = trials
        part = len(trials) / max(1, whole.runs)
        grant.add(
            replace(whole, key=name, runs=len(trials), seconds=whole.seconds * part), self.job.work
        )

    def end(self) -> None:
        """End the bar; every run is an adapter now, and its state is needed no more."""
        if not self.missing:
            return
        self._shown.close()
        if self.progress.resumed:
            self.job.reporter.say(
                f"{self.title}: {self.progress.resumed} runs resumed,"
                f" {self.progress.repeated} steps done twice"
            )
        self.job.store.delete_folder(self.task.folder)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all its runs."""
        return [self.job.row(trial) for trial in self.trials]
