"""Tune on Ray Train: one worker group for all trials of a stage.

The driver starts a trainer for the trials that have no result, and reads their rows back from the
adapters' folders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raybias.config import Backbone, StudyText, TrainingSet
from raybias.engine.adapters.tuning import TokenSet, Trial
from raybias.errors import WorkFailed
from raybias.methods import Tuned, tuned_methods
from raybias.methods.selection import (
    HyperParameters,
    best_hyper_parameters,
    hyper_parameter_grid,
    hyper_parameters_of,
    select,
)
from raybias.planning.plan import Plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import TunePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_session import translating_errors
from raybias.runtime.tune.reports import ProgressAggregator
from raybias.runtime.tune.worker import Tokens, WorkerTask, record_of, work
from raybias.runtime.worker_group import WorkerGroup
from raybias.seeding import key
from raybias.storage import Store


def tune(
    prepared: PreparedStudy,
    backbone: Backbone,
    training: TrainingSet,
    plan: Plan,
    store: Store,
    *,
    reporter: Reporter | None = None,
) -> list[dict[str, Any]]:
    """Tune every seed of one backbone on one training set; returns rows of `schema.RUNS`.

    Trials whose adapter is in `store` are not tuned again; those that a killed worker or driver
    left unfinished resume from their last checkpoint. Ray must be connected.

    Raises
    ------
    WorkFailed: workers failed for good, or too few runs finished.
    """
    reporter = reporter or Reporter()
    rows: list[dict[str, Any]] = []
    for method in tuned_methods(prepared.study.methods_of(backbone)):
        if method.last_step(1) is None:
            reporter.say(
                f"note: {backbone.name} on {training.name}: max_steps is not set; the early-stop"
                " rule can run for ever on a slowly falling loss"
            )
        planned = plan.tune(backbone.name, training.name, method.name)
        rows += TuningJob(prepared, backbone, training, method, planned, store, reporter).run()
    return rows


def trials_of(
    backbone: Backbone,
    training: TrainingSet,
    method: Tuned,
    *,
    seeds: Sequence[int],
    choices: Sequence[HyperParameters],
    stage: str,
) -> tuple[Trial, ...]:
    """List one trial per seed and choice of a sweep, in the study's order."""
    prefix = f"{backbone.name}.{training.name}.{method.name}"

    def name(choice: HyperParameters) -> str:
        parts = [prefix, f"lr{choice.learning_rate:g}"]
        if method.weight_decays:
            parts.append(f"wd{choice.weight_decay:g}")
        if method.stop_windows:
            parts.append(f"t{choice.stop_window}")
        return ".".join(parts)

    return tuple(
        Trial(
            run_id=f"{name(choice)}.s{seed}",
            seed=seed,
            stage=stage,
            learning_rate=choice.learning_rate,
            weight_decay=choice.weight_decay,
            stop_window=choice.stop_window,
        )
        for choice in choices
        for seed in seeds
    )


def tokenise(text: StudyText, training: str, method: Tuned) -> Tokens:
    """Return the splits of a training set in tokens."""
    sentences = text.sentences[training]

    def of(name: str) -> TokenSet:
        rows = method.token_rows(text, sentences[name]["text"].to_list())
        return TokenSet(tuple(map(tuple, rows)), tuple(sentences[name]["label"].to_list()))

    return Tokens(of("train"), of("validation"), of("test") if "test" in sentences else None)


@dataclass(frozen=True)
class TuningJob:
    """The sweep and the final runs of one method."""

    prepared: PreparedStudy
    backbone: Backbone
    training: TrainingSet
    method: Tuned
    plan: TunePlan
    store: Store
    reporter: Reporter

    @property
    def title(self) -> str:
        """Name the job for people."""
        return f"tune {self.backbone.name} on {self.training.name}, {self.method.name}"

    @property
    def words(self) -> tuple[str, ...]:
        """The study's label words."""
        return self.prepared.study.verbalizer.words()

    @cached_property
    def tokens(self) -> Tokens:
        """The training set in tokens."""
        text = self.prepared.text(self.method, self.backbone)
        return tokenise(text, self.training.name, self.method)

    def run(self) -> list[dict[str, Any]]:
        """Run the sweep if there is one, then all seeds; mark those that are kept as selected."""
        method = self.method
        choices = hyper_parameter_grid(method)
        choice, swept = choices[0], []
        if len(choices) > 1:
            swept = self._run("sweep", method.seeds[: method.sweep_seeds], choices)
            choice = best_hyper_parameters(swept, choices)
            self.reporter.say(f"{self.title}: the sweep chose {choice}")
        final = self._run("final", method.seeds, (choice,))
        others = [
            {**row, "rank": None, "tied": False, "selected": False}
            for row in swept
            if hyper_parameters_of(row) != choice
        ]
        return others + select([{**row, "stage": "final"} for row in final], method)

    def _run(
        self, stage: str, seeds: Sequence[int], choices: Sequence[HyperParameters]
    ) -> list[dict[str, Any]]:
        """Tune what is missing of a stage and return the rows of all its trials."""
        trials = trials_of(
            self.backbone, self.training, self.method, seeds=seeds, choices=choices, stage=stage
        )
        if missing := [trial.run_id for trial in trials if self._row(trial) is None]:
            self._fit(stage, trials, missing)
        rows = [self._row(trial) for trial in trials]
        if lost := [trial.run_id for trial, row in zip(trials, rows, strict=True) if row is None]:
            raise WorkFailed(f"no result of {', '.join(lost)}", where=self.store.uri)
        return [row for row in rows if row is not None]

    def _row(self, trial: Trial) -> dict[str, Any] | None:
        return record_of(self.store, trial.run_id, self.fingerprint)

    def _fit(self, stage: str, trials: tuple[Trial, ...], missing: Sequence[str]) -> None:
        study, plan = self.prepared.study, self.plan
        title = f"{self.title} ({stage})" if stage == "sweep" else self.title
        parts = (self.backbone.name, self.training.name, self.method.name, stage)
        group = WorkerGroup(
            name=f"{'.'.join(parts)}-{self.fingerprint[:8]}",
            workers=plan.workers if plan.sharded else min(plan.workers, len(trials)),
            plan=plan,
            max_failures=study.resources.max_failures,
            max_preemptions=study.resources.max_preemptions,
        )
        job = WorkerTask(
            context=plan.context(self.backbone, self.words),
            dataset=self.training.name,
            method=self.method,
            trials=trials,
            out=self.store.uri,
            folder=group.folder,
            fingerprint=self.fingerprint,
            sharded=plan.sharded,
            meter=Meter(study=study.name, stage="tune", model=self.backbone.name),
        )
        with self.reporter.stage(title, len(missing)) as advance, translating_errors(title):
            tally = ProgressAggregator(advance, job.meter, set(missing))
            group.run(work, (job, self.tokens), self.store, tally)
        if tally.error is not None:
            raise tally.error
        if tally.resumed:
            self.reporter.say(
                f"{title}: {tally.resumed} runs resumed, {tally.repeated} steps done twice"
            )
        # Every trial is an adapter now; its training state is needed no more.
        self.store.delete_folder(group.folder)

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
        parts = (*options, *self.words, repr(self.tokens))
        return f"{key(*parts):016x}"
