"""Tells MLflow and Weights & Biases of a study, through Ray's own integrations.

Each run of a study becomes one of theirs, with its parameters and the course of its
evaluations, and the final tables one more. All is read from what the driver holds, so no
worker needs the network, and a study that is run again adds only what is missing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Final, Protocol

from raybias.config import Study
from raybias.errors import ConfigError
from raybias.runtime.progress import Reporter
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import read_record

#: The columns of `schema.RUNS` that were decided before a run.
_PARAMETERS: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window", "stage",
)  # fmt: skip
#: And those that it ended with.
_RESULTS: Final = ("steps", "validation_loss", "validation_accuracy", "test_accuracy", "tokens")
_MARK: Final = "raybias"

Row = Mapping[str, Any]


def check_tracking(study: Study) -> None:
    """Refuse a study that asks for a tracker which is not installed.

    Raises
    ------
    ConfigError: says how to install it.
    """
    for name in ("mlflow", "wandb"):
        if getattr(study.tracking, name) and find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name} is set, and {name} is not installed",
                where=study.name,
                cure=f"`pip install {name}`, or take the key out",
            )


def track_runs(study: Study, rows: Sequence[Row], *, mark: str, reporter: Reporter) -> None:
    """Tell every tracker of the study of finished runs.

    Parameters
    ----------
    rows: of `schema.RUNS`.
    mark: the study's fingerprint, which tells its runs from those of its namesakes.
    """
    methods = {(b.name, m.name): m for b in study.backbones for m in study.methods_of(b)}
    for tracker in _trackers(study, mark):
        with_errors = _Spoken(reporter, tracker.name)
        for row in rows:
            method = methods[row["model"], row["method"]]
            every = method.steps_between_evaluations
            if not with_errors.tell(tracker, row["run_id"], _parameters(row), _course(row, every)):
                break


def track_tables(study: Study, store: Store, *, reporter: Reporter | None = None) -> None:
    """Tell every tracker of the study of the final tables in OUT."""
    reporter, mark = reporter or Reporter(), read_record(store).hash
    tables = {
        name.removeprefix("tables/"): store.read_text(name)
        for name in store.files("tables", suffix=".csv")
    }
    for tracker in _trackers(study, mark):
        parameters = {"study": study.name, "profile": study.profile, "out": store.uri}
        _Spoken(reporter, tracker.name).tell(tracker, "tables", parameters, (), tables)


@dataclass(frozen=True)
class Point:
    """Numbers that belong to a step."""

    step: int
    numbers: dict[str, float]


class Tracker(Protocol):
    """One tracker's side of a study."""

    @property
    def name(self) -> str:
        """Its name."""

    def tell(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        """Write one run down; `tables` are CSV by file name. Does nothing if it is there."""


@dataclass
class _Spoken:
    """Goes on without a tracker that fails: what it is told is in OUT too."""

    reporter: Reporter
    name: str

    def tell(
        self,
        tracker: Tracker,
        run: str,
        parameters: Row,
        points: Sequence[Point],
        tables: Mapping[str, str] | None = None,
    ) -> bool:
        try:
            tracker.tell(run, parameters, points, tables or {})
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            self.reporter.say(f"note: {self.name} was not told of {run} ({said})")
            return False
        return True


def _trackers(study: Study, mark: str) -> Iterator[Tracker]:
    if study.tracking.mlflow:
        yield _MLflow(study.tracking.mlflow, study.name, mark)
    if study.tracking.wandb:
        yield _Wandb(study.tracking.wandb, study.name, mark)


@dataclass
class _MLflow:
    uri: str
    study: str
    mark: str
    name: str = "MLflow"

    @cached_property
    def told(self) -> set[str]:
        """The runs of this very study that it has."""
        import mlflow

        mlflow.set_tracking_uri(self.uri)
        if mlflow.get_experiment_by_name(self.study) is None:
            return set()
        found = mlflow.search_runs(
            experiment_names=[self.study],
            filter_string=f"tags.{_MARK} = '{self.mark}' and attributes.status = 'FINISHED'",
            output_format="list",
        )
        return {run.info.run_name for run in found}

    def tell(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        from ray.air.integrations.mlflow import setup_mlflow

        # Tables are made anew each time; a run that is finished stays as it is.
        if run in self.told and not tables:
            return
        mlflow = setup_mlflow(
            config=dict(parameters),
            tracking_uri=self.uri,
            experiment_name=self.study,
            create_experiment_if_not_exists=True,
            run_name=run,
            tags={_MARK: self.mark},
        )
        status = "FAILED"
        try:
            for point in points:
                mlflow.log_metrics(point.numbers, step=point.step)
            for file, text in tables.items():
                mlflow.log_text(text, f"tables/{file}")
            status = "FINISHED"
        finally:
            mlflow.end_run(status)


@dataclass
class _Wandb:
    project: str
    study: str
    mark: str
    name: str = "Weights & Biases"

    def tell(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        import wandb
        from ray.air.integrations.wandb import setup_wandb

        held = setup_wandb(
            config=dict(parameters),
            project=self.project,
            group=self.study,
            trial_id=f"{key(self.mark, run):016x}",
            trial_name=run,
        )
        try:
            # A run of this id that is there is resumed, at the step after its last.
            for point in points if not held.step else ():
                held.log(point.numbers, step=point.step)
            for file, text in tables.items():
                columns, *rows = csv.reader(text.splitlines())
                held.log({f"tables/{file}": wandb.Table(columns=columns, data=rows)})
        finally:
            held.finish()


def _parameters(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _PARAMETERS if row[name] is not None}


def _course(row: Row, every: int) -> list[Point]:
    """A run's evaluations, and what it ended with."""
    points = []
    evaluations = zip(row["eval_losses"] or (), row["eval_accuracies"] or (), strict=True)
    for number, (loss, accuracy) in enumerate(evaluations, start=1):
        numbers = {"eval_loss": loss, "eval_accuracy": accuracy}
        found = {name: value for name, value in numbers.items() if value is not None}
        points.append(Point(min(number * every, row["steps"]), found))
    ended = {f"final_{name}": float(row[name]) for name in _RESULTS if row[name] is not None}
    ended["selected"] = float(bool(row["selected"]))
    return [*points, Point(int(row["steps"] or 0), ended)]
