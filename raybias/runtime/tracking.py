"""Log a study to MLflow and Weights & Biases, through Ray's integrations.

Each run of a study becomes one of theirs, and the final tables one more. The driver logs them, so
no worker needs the network, and a study that is run again adds only what is missing.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from raybias.config import Study
from raybias.errors import ConfigError, said_by
from raybias.runtime.progress import Reporter
from raybias.seeding import key
from raybias.storage import Store
from raybias.study_record import read_record

#: The columns of `schema.RUNS` that were decided before a run.
_PARAMETERS: Final = (
    "model", "method", "dataset", "seed", "learning_rate", "weight_decay", "stop_window",
    "adapter_rank", "target", "prompt_length", "stage",
)  # fmt: skip
#: And those that it ended with.
_RESULTS: Final = (
    *("steps", "validation_loss", "untuned_accuracy", "validation_accuracy", "test_accuracy"),
    "tokens",
)
_MARK: Final = "raybias"

Row = Mapping[str, Any]


def check_tracking(study: Study) -> None:
    """Refuse a study that asks for a tracker which is not installed."""
    for name in ("mlflow", "wandb"):
        if getattr(study.tracking, name) and find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name} is set, and {name} is not installed",
                where=study.name,
                cure=f"`pip install {name}`, or take the key out",
            )


def track_runs(study: Study, rows: Sequence[Row], *, mark: str, reporter: Reporter) -> None:
    """Log finished runs (schema.RUNS) to every tracker; `mark` is the study's fingerprint."""
    methods = {(b.name, m.name): m for b in study.backbones for m in study.methods_of(b)}
    logs = []
    for row in rows:
        every = getattr(methods[row["model"], row["method"]], "eval_every", 1)
        parameters = {name: row[name] for name in _PARAMETERS if row[name] is not None}
        logs.append(_Log(row["run_id"], parameters, points=_course(row, every)))
    _tell(study, mark, logs, reporter)


def track_tables(study: Study, store: Store, *, reporter: Reporter | None = None) -> None:
    """Log the final tables in OUT to every tracker of the study."""
    tables = {
        name.removeprefix("tables/"): store.read_text(name)
        for name in store.files("tables", suffix=".csv")
    }
    parameters = {"study": study.name, "profile": study.profile, "out": store.uri}
    log = _Log("tables", parameters, tables=tables)
    _tell(study, read_record(store).hash, [log], reporter or Reporter())


@dataclass(frozen=True)
class _Log:
    """What a tracker is told of one run; `points` are numbers by step, `tables` CSV by file."""

    run: str
    parameters: Row
    points: Sequence[tuple[int, dict[str, float]]] = ()
    tables: Mapping[str, str] = field(default_factory=dict)


def _tell(study: Study, mark: str, logs: Sequence[_Log], reporter: Reporter) -> None:
    """Log runs to every tracker, and go on without one that fails: OUT holds the same."""
    for name, connect, place in (
        ("MLflow", _mlflow, study.tracking.mlflow),
        ("Weights & Biases", _wandb, study.tracking.wandb),
    ):
        write = None
        if not place:
            continue
        for log in logs:
            try:
                write = write or connect(place, study.name, mark)
                write(log)
            except Exception as error:
                reporter.say(f"note: {name} was not told of {log.run} ({said_by(error)})")
                break


def _mlflow(place: str, study: str, mark: str) -> Callable[[_Log], None]:
    """Connect to an MLflow server; returns what logs a run there, unless it is finished."""
    import mlflow
    from ray.air.integrations.mlflow import setup_mlflow

    mlflow.set_tracking_uri(place)
    finished = set[str]()
    if mlflow.get_experiment_by_name(study) is not None:
        wanted = f"tags.{_MARK} = '{mark}' and attributes.status = 'FINISHED'"
        found = mlflow.search_runs(
            experiment_names=[study], filter_string=wanted, output_format="list"
        )
        finished = {run.info.run_name for run in found}

    def write(log: _Log) -> None:
        # Tables are made anew each time; a run that is finished stays as it is.
        if log.run in finished and not log.tables:
            return
        run = setup_mlflow(
            config=dict(log.parameters),
            tracking_uri=place,
            experiment_name=study,
            create_experiment_if_not_exists=True,
            run_name=log.run,
            tags={_MARK: mark},
        )
        status = "FAILED"
        try:
            for step, numbers in log.points:
                run.log_metrics(numbers, step=step)
            for file, text in log.tables.items():
                run.log_text(text, f"tables/{file}")
            status = "FINISHED"
        finally:
            run.end_run(status)

    return write


def _wandb(place: str, study: str, mark: str) -> Callable[[_Log], None]:
    import wandb
    from ray.air.integrations.wandb import setup_wandb

    def write(log: _Log) -> None:
        run = setup_wandb(
            config=dict(log.parameters),
            project=place,
            group=study,
            trial_id=f"{key(mark, log.run):016x}",
            trial_name=log.run,
        )
        try:
            # A run of this id that is there is resumed, at the step after its last.
            for step, numbers in log.points if not run.step else ():
                run.log(numbers, step=step)
            for file, text in log.tables.items():
                columns, *rows = csv.reader(text.splitlines())
                run.log({f"tables/{file}": wandb.Table(columns=columns, data=rows)})
        finally:
            run.finish()

    return write


def _course(row: Row, every: int) -> list[tuple[int, dict[str, float]]]:
    points = []
    evaluations = zip(row["eval_losses"] or (), row["eval_accuracies"] or (), strict=True)
    for number, (loss, accuracy) in enumerate(evaluations):
        numbers = {"eval_loss": loss, "eval_accuracy": accuracy}
        known = {name: value for name, value in numbers.items() if value is not None}
        points.append((min(number * every, row["steps"]), known))
    ended = {f"final_{name}": float(row[name]) for name in _RESULTS if row[name] is not None}
    ended["selected"] = float(bool(row["selected"]))
    return [*points, (int(row["steps"] or 0), ended)]
