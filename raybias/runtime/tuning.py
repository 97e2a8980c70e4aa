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
from raybias.methods.tuned import (
    HyperParameters,
    at_cut,
    hyper_parameter_grid,
    hyper_parameters_of,
    ranked_hyper_parameters,
    runs_of,
    select,
)
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import TunePlan
from raybias.runtime.graph import Grant
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
        # `repr` writes no two numbers alike.
        rate, decay = (
            repr(float(each)).removesuffix(".0")
            for each in (choice.learning_rate, choice.weight_decay)
        )
        name = f"{backbone.name}.{training.name}.{method.name}.lr{rate}"
        name += f".wd{decay}" if method.weight_decays else ""
        name += f".t{choice.stop_window}" if method.stop_windows else ""
        ranks, targets, lengths = ({*each} for each in zip(*method.adapter_sizes, strict=True))
        name += f".r{choice.adapter_rank}" if len(ranks) > 1 else ""
        name += f".{choice.target}" if len(targets) > 1 else ""
        name += f".p{choice.prompt_length}" if len(lengths) > 1 else ""
        found += [Trial(f"{name}.s{seed}", seed, stage="final", **vars(choice)) for seed in seeds]
    return tuple(found)


@dataclass(frozen=True)
class TuningJob:
    """The sweep and the final runs of one method on one training set."""

    prepared: PreparedStudy
    backbone: Backbone
    training: TrainingSet
    method: Tuned
    plan: TunePlan
    store: Store
    reporter: Reporter
    workers: Workers
    lock: Lock = field(default_factory=Lock)

    @property
    def title(self) -> str:
        """The job in words."""
        return f"tune {self.backbone.name} on {self.training.name}, {self.method.name}"

    @cached_property
    def tokens(self) -> Tokens:
        """The splits of the training set in tokens."""
        inputs = self.prepared.inputs(self.method, self.backbone)
        splits = inputs.sentences[self.training.name]

        def of(name: str) -> TokenSet:
            rows = self.method.encode(inputs.encoder, splits[name]["text"].to_list())
            return TokenSet(tuple(map(tuple, rows)), tuple(splits[name]["label"].to_list()))

        return Tokens(of("train"), of("validation"), of("test") if "test" in splits else None)

    def tune(self, grant: Grant) -> bool:
        """Tune what OUT lacks of one pack of a stage; return whether it was the job's last."""
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
                last = "final" if self.plan.packs["final"] else "sweep"
                return stage.left == 0 and task.stage == last

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `schema.RUNS` of all runs, those that are kept marked as selected."""
        swept = self._rows(self._sweep.trials) if len(self.choices) > 1 else []
        if self.method.sweep_cut:
            given_up = set(self.choices) - set(self._going_on)
            cut = self._rows(self._cut.trials, self._cut.task.until)
            swept += [row for row in cut if hyper_parameters_of(row) in given_up]
        final = self._rows(self._finals)
        others = [
            {**row, "rank": None, "tied": False, "selected": False}
            for row in swept
            if hyper_parameters_of(row) != self._choice
        ]
        return others + select([{**row, "stage": "final"} for row in final], self.method)

    def left(self, stage: str) -> float:
        """Return the share of a stage's runs that OUT lacks, 0 to 1."""
        for before in self.plan.packs:
            if before == stage:
                break
            if self.plan.packs[before] and self._stage(before).missing:
                return 1.0
        known = self._stage(stage)
        return len(known.missing) / max(1, len(known.trials))

    @cached_property
    def choices(self) -> list[HyperParameters]:
        """What is swept over."""
        return hyper_parameter_grid(self.method)

    def _stage(self, name: str) -> TuningStage:
        with self.lock:
            stage: TuningStage = getattr(self, f"_{name}")
            return stage

    @cached_property
    def _cut(self) -> TuningStage:
        return TuningStage(self, "cut", self._swept(self.choices))

    @cached_property
    def _sweep(self) -> TuningStage:
        return TuningStage(self, "sweep", self._swept(self._going_on))

    def _swept(self, choices: Sequence[HyperParameters]) -> list[Trial]:
        seeds = self.method.seeds[: self.method.sweep_seeds]
        trials = trials_of(self.backbone, self.training, self.method, seeds, choices)
        return [replace(each, stage="sweep") for each in trials]

    @cached_property
    def _going_on(self) -> list[HyperParameters]:
        """What the sweep's cut leaves, in the study's order."""
        if (cut := self.method.sweep_cut) is None:
            return self.choices
        found = self._rows(self._cut.trials, cut.step)
        rows = [at_cut(row, self.method, cut) for row in found]
        best = ranked_hyper_parameters(rows, self.choices)[: cut.keep]
        self.reporter.say(
            f"{self.title}: {len(best)} of {len(self.choices)} combinations go on at step"
            f" {cut.step:,}"
        )
        return [choice for choice in self.choices if choice in best]

    @cached_property
    def _final(self) -> TuningStage:
        # The sweep has tuned the first seeds.
        _, left = runs_of(self.method)
        return TuningStage(self, "final", self._finals[-left:] if left else ())

    @cached_property
    def _choice(self) -> HyperParameters:
        if len(self.choices) == 1:
            return self.choices[0]
        rows = self._rows(self._sweep.trials)
        choice, *_ = ranked_hyper_parameters(rows, self._going_on)
        self.reporter.say(f"{self.title}: the sweep chose {choice}")
        return choice

    @cached_property
    def _finals(self) -> tuple[Trial, ...]:
        seeds, choices = self.method.seeds, (self._choice,)
        return trials_of(self.backbone, self.training, self.method, seeds, choices)

    def _rows(self, trials: Sequence[Trial], until: int | None = None) -> list[dict[str, Any]]:
        """Return rows of `schema.RUNS` of trials, all of which have ended, or are at the cut."""
        found = []
        for trial in trials:
            row = record_of(self.store, trial.run_id, self.fingerprint, until)
            if row is None:
                raise WorkFailed(f"no result of {trial.run_id}", where=self.store.uri)
            found.append(row)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Hash all that decides a trial's result except what differs between trials."""
        varied = {
            *("seeds", "learning_rates", "weight_decays", "stop_windows", "sweep_seeds"),
            *("sweep_cut", "ranks", "targets"),
            *("keep", "select", "allow_failed", "name", "training"),
        }
        # Sorted keys: where an option is declared decides nothing.
        options = [
            json.dumps(section.model_dump(mode="json", exclude=left_out), sort_keys=True)
            for section, left_out in ((self.method, varied), (self.backbone, set()))
        ]
        parts = (*options, *self.prepared.study.label_words, repr(self.tokens))
        return f"{key(*parts):016x}"


class TuningStage:
    """The sweep, until its cut or to its end, or the final runs of a job, and how far they are.

    missing: runs that had no result when the stage began.
    left: packs that are not done.
    goes_on: whether its trials were tuned until the sweep's cut before.
    given: trials that a pack gave up, by the key of the task that goes on with them.
    """

    def __init__(self, job: TuningJob, name: str, trials: Sequence[Trial]) -> None:
        self.job, self.plan, self.trials = job, job.plan, trials
        cut = job.method.sweep_cut
        until = cut.step if cut and name == "cut" else None
        self.goes_on = cut is not None and name == "sweep"
        self.title = job.title if name == "final" else f"{job.title} (sweep)"
        self.left = job.plan.packs[name]
        self.missing = {
            trial.run_id
            for trial in trials
            if record_of(job.store, trial.run_id, job.fingerprint, until) is None
        }
        whose = f"{job.backbone.name}.{job.training.name}.{job.method.name}"
        self.name = f"{whose}.{name}-{job.fingerprint[:8]}"
        self.given: dict[str, Sequence[Trial]] = {}
        self._shown, study = ExitStack(), job.prepared.study
        #: What all of its workers are sent.
        self.task = TuneTask(
            context=job.plan.context(job.backbone, study),
            dataset=job.training.name,
            method=job.method,
            store=job.store,
            # What goes on after the cut goes on from the states that it kept.
            folder=f"train/{self.name.replace('.cut-', '.sweep-')}",
            fingerprint=job.fingerprint,
            until=until,
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
        end = self.task.until or job.method.recipe.last_step(len(job.tokens.train.rows))
        return ProgressAggregator(advance, meter, set(self.missing), end)

    def split(self, trials: Sequence[Trial], grant: Grant) -> None:
        """Have another pack go on with trials that one gave up."""
        whole = grant.task
        with self.job.lock:
            self.left += 1
            name = f"{whole.key}/{trials[0].run_id}"
            self.given[name] = trials
        part = len(trials) / max(1, whole.runs)
        grant.add(replace(whole, key=name, runs=len(trials), seconds=whole.seconds * part))

    def end(self) -> None:
        """End the bar; every run is an adapter now, and its state is needed no more.

        At a sweep's cut the states remain, from which the rest of the sweep goes on.
        """
        if self.missing:
            self._shown.close()
            progress = self.progress
            if progress.repeated or (progress.resumed and not self.goes_on):
                self.job.reporter.say(
                    f"{self.title}: {progress.resumed} runs resumed,"
                    f" {progress.repeated} steps done twice"
                )
        store, folder = self.job.store, self.task.folder
        if self.task.until is None and (self.missing or (self.goes_on and store.files(folder))):
            store.delete_folder(folder)
