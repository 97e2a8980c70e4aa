"""Log a study to MLflow and Weights & Biases, through Ray's integrations.

Each run of a study becomes one of theirs, with its parameters and evaluations, and the final
tables one more. The driver logs them, so no worker needs the network, and a study that is run
again adds only what is missing.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, Final

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
_RESULTS: Final = (
    *("steps", "validation_loss", "untuned_accuracy", "validation_accuracy", "test_accuracy"),
    "tokens",
)
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
    """Log finished runs to every tracker of the study.

    Parameters
    ----------
    rows: of `schema.RUNS`.
    mark: the study's fingerprint, which tells its runs from those of its namesakes.
    """
    methods = {(b.name, m.name): m for b in study.backbones for m in study.methods_of(b)}
    for tracker in _trackers(study, mark):
        for row in rows:
            every = getattr(methods[row["model"], row["method"]], "eval_every", 1)
            points = _course(row, every)
            if not tracker.tried(reporter, row["run_id"], _parameters(row), points):
                break


def track_tables(study: Study, store: Store, *, reporter: Reporter | None = None) -> None:
    """Log the final tables in OUT to every tracker of the study."""
    tables = {
        name.removeprefix("tables/"): store.read_text(name)
        for name in store.files("tables", suffix=".csv")
    }
    parameters = {"study": study.name, "profile": study.profile, "out": store.uri}
    for tracker in _trackers(study, read_record(store).hash):
        tracker.tried(reporter or Reporter(), "tables", parameters, (), tables)


@dataclass(frozen=True)
class Point:
    """Numbers that belong to a step."""

    step: int
    numbers: dict[str, float]


@dataclass
class _Tracker(ABC):
    """One tracker of a study.

    Attributes
    ----------
    place: the server or project.
    """

    place: str
    study: str
    mark: str

    name: ClassVar[str]

    @abstractmethod
    def log(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        """Log one run, unless it is there; `tables` are CSV by file name."""

    def tried(
        self,
        reporter: Reporter,
        run: str,
        parameters: Row,
        points: Sequence[Point],
        tables: Mapping[str, str] | None = None,
    ) -> bool:
        """Log one run, and go on without a tracker that fails: OUT holds the same."""
        try:
            self.log(run, parameters, points, tables or {})
        except Exception as error:
            problem = " ".join(str(error).split())[:200]
            reporter.say(f"note: {self.name} was not told of {run} ({problem})")
            return False
        return True


def _trackers(study: Study, mark: str) -> Iterator[_Tracker]:
    for kind, place in ((_MLflow, study.tracking.mlflow), (_Wandb, study.tracking.wandb)):
        if place:
            yield kind(place, study.name, mark)


@dataclass
class _MLflow(_Tracker):
    name: ClassVar[str] = "MLflow"

    @cached_property
    def logged(self) -> set[str]:
        """List the finished runs of this very study."""
        import mlflow

        mlflow.set_tracking_uri(self.place)
        if mlflow.get_experiment_by_name(self.study) is None:
            return set()
        found = mlflow.search_runs(
            experiment_names=[self.study],
            filter_string=f"tags.{_MARK} = '{self.mark}' and attributes.status = 'FINISHED'",
            output_format="list",
        )
        return {run.info.run_name for run in found}

    def log(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        from ray.air.integrations.mlflow import setup_mlflow

        # Tables are made anew each time; a run that is finished stays as it is.
        if run in self.logged and not tables:
            return
        mlflow = setup_mlflow(
            config=dict(parameters),
            tracking_uri=self.place,
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
class _Wandb(_Tracker):
    name: ClassVar[str] = "Weights & Biases"

    def log(
        self, run: str, parameters: Row, points: Sequence[Point], tables: Mapping[str, str]
    ) -> None:
        import wandb
        from ray.air.integrations.wandb import setup_wandb

        logged = setup_wandb(
            config=dict(parameters),
            project=self.place,
            group=self.study,
            trial_id=f"{key(self.mark, run):016x}",
            trial_name=run,
        )
        try:
            # A run of this id that is there is resumed, at the step after its last.
            for point in points if not logged.step else ():
                logged.log(point.numbers, step=point.step)
            for file, text in tables.items():
                columns, *rows = csv.reader(text.splitlines())
                logged.log({f"tables/{file}": wandb.Table(columns=columns, data=rows)})
        finally:
            logged.finish()


def _parameters(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _PARAMETERS if row[name] is not None}


def _course(row: Row, every: int) -> list[Point]:
    """List a run's evaluations, and what it ended with."""
    points = []
    evaluations = zip(row["eval_losses"] or (), row["eval_accuracies"] or (), strict=True)
    for number, (loss, accuracy) in enumerate(evaluations):
        numbers = {"eval_loss": loss, "eval_accuracy": accuracy}
        found = {name: value for name, value in numbers.items() if value is not None}
        points.append(Point(min(number * every, row["steps"]), found))
    ended = {f"final_{name}": float(row[name]) for name in _RESULTS if row[name] is not None}
    ended["selected"] = float(bool(row["selected"]))
    return [*points, Point(int(row["steps"] or 0), ended)]
