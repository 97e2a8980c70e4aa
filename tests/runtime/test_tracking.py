"""MLflow and Weights & Biases are told of a study once, and cost it nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from raybias import config
from raybias.runtime.progress import Reporter
from raybias.runtime.tracking import check_tracking, track_runs, track_tables
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import begin, make_record


def study_of(**tracking: str) -> config.Study:
    return config.Study(
        name="tracked",
        backbones=({"id": "planted"},),
        methods=({"kind": "soft_prompt", "eval_every": 50},),
        training=({"source": "planted"},),
        probes=({"source": "planted"},),
        tracking=tracking,
    )


def rows_of(study: config.Study) -> list[dict[str, Any]]:
    method = study.methods[0].name
    row = dict.fromkeys(RUNS.names) | {"model": "planted", "method": method, "dataset": "planted"}
    row |= {"steps": 120, "learning_rate": 0.001, "selected": True, "stage": "final"}
    course = {"eval_losses": [0.5, None, 0.25], "eval_accuracies": [0.5, 0.75, 1.0]}
    return [row | course | {"run_id": f"run{seed}", "seed": seed} for seed in (1, 2)]


def filled(folder: Path, study: config.Study) -> Store:
    store = Store(folder)
    begin(store, make_record(study, {}, command="test"))
    store.write_text("tables/gaps.csv", 'group,gap\n"a, b",0.5\n')
    return store


def test_tracking_makes_no_other_study() -> None:
    one = make_record(study_of(), {}, command="")
    assert one.hash == make_record(study_of(mlflow="http://here"), {}, command="").hash


def test_wandb_gets_runs_once_and_the_tables_or_one_note_says_why_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library itself is not here; Ray's call to it stands in."""
    integration = pytest.importorskip("ray.air.integrations.wandb")
    fake = ModuleType("wandb")
    fake.Table = lambda columns, data: (columns, data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    begun: dict[str, tuple[dict[str, Any], Mock]] = {}

    def setup(**given: Any) -> Mock:
        if given["project"] == "away":
            raise OSError("no\nnetwork")
        run = Mock(step=120 if given["trial_name"] == "run2" else 0)
        begun[given["trial_name"]] = (given, run)
        return run

    monkeypatch.setattr(integration, "setup_wandb", setup)
    study = study_of(wandb="project")
    reporter = Reporter(Console(file=io.StringIO()))
    track_runs(study, rows_of(study), mark="m", reporter=reporter)
    given, held = begun["run1"]
    assert (given["project"], given["config"]["learning_rate"]) == ("project", 0.001)
    assert [call.kwargs["step"] for call in held.log.call_args_list] == [0, 50, 100, 120]
    assert held.log.call_args_list[1].args == ({"eval_accuracy": 0.75},)
    held.finish.assert_called_once()
    begun["run2"][1].log.assert_not_called()
    track_tables(study, filled(tmp_path, study), reporter=reporter)
    table = (["group", "gap"], [["a, b", "0.5"]])
    assert begun["tables"][1].log.call_args.args == ({"tables/gaps.csv": table},)
    said, away = io.StringIO(), study_of(wandb="away")
    reporter = Reporter(Console(file=said, width=200))
    track_runs(away, rows_of(away), mark="m", reporter=reporter)
    assert said.getvalue() == "note: Weights & Biases was not told of run1 (no network)\n"


def test_mlflow_gets_runs_once_and_the_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # it puts artifacts beside the process
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    study = study_of(mlflow=uri)
    check_tracking(study)
    said = io.StringIO()
    reporter = Reporter(Console(file=said))
    for _ in range(2):
        track_runs(study, rows_of(study), mark="m", reporter=reporter)
    track_tables(study, filled(tmp_path / "out", study), reporter=reporter)
    assert said.getvalue() == ""
    runs = mlflow.search_runs(experiment_names=["tracked"], output_format="list")
    assert sorted(run.info.run_name for run in runs) == ["run1", "run2", "tables"]
    (one,) = (run for run in runs if run.info.run_name == "run1")
    assert one.data.params["learning_rate"] == "0.001"
    assert one.data.metrics["final_steps"] == 120
    client = mlflow.MlflowClient(uri)
    course = client.get_metric_history(one.info.run_id, "eval_accuracy")
    assert [(point.step, point.value) for point in course] == [(50, 0.5), (100, 0.75), (120, 1.0)]
    (tables,) = (run for run in runs if run.info.run_name == "tables")
    assert [file.path for file in client.list_artifacts(tables.info.run_id, "tables")] == [
        "tables/gaps.csv"
    ]
