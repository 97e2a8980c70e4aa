"""Studies that one process does without Ray: which, and what becomes of those that it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from raybias.config import load_study
from raybias.errors import PlanError
from raybias.runtime import study as running
from raybias.runtime.study import run_study
from raybias.runtime.work import StudyRun
from support import studies

pytestmark = pytest.mark.long


class _Connected(Exception):
    """Ray was to be connected to."""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of a second, in a process that must not connect to Ray."""

    @contextmanager
    def connected(address: str | None) -> Iterator[bool]:
        raise _Connected

    monkeypatch.setattr(running, "connected", connected)
    # Other tests of this process can share a cluster.
    monkeypatch.setattr(running, "names_no_cluster", lambda address: address is None)
    return studies.save(tmp_path, "soft_prompt")


def run(study: Path, out: Path, *changes: str, **options: Any) -> None:
    run_study(load_study(study, overrides=changes), out, **options)


def read(out: Path) -> pl.DataFrame:
    return pl.read_parquet(f"{out}/predictions/**/*.parquet").sort("run_id", "item_id")


def test_a_sweep_is_done_without_ray_and_nothing_is_left_to_start_it_for(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lefts, left = tmp_path / "out", list[float](), StudyRun.left
    monkeypatch.setattr(StudyRun, "left", lambda self: lefts.append(left(self)) or lefts[-1])
    rates = "methods.0.learning_rates=[1.0e+30, 0.01]"
    run(study, out, rates)
    assert read(out).height == 30
    runs = pl.read_parquet(out / "runs.parquet").sort("stage", "seed")
    rows = runs.select("stage", "seed", "learning_rate", "stop_reason").rows()
    assert [row[:3] for row in rows[:2]] == [("final", seed, 0.01) for seed in (1, 2)]
    assert rows[2:] == [("sweep", 1, 1e30, "diverged")]
    made = [*out.rglob("adapter_model.safetensors"), *out.glob("predictions/**/*.parquet")]
    then = {file: file.stat().st_mtime_ns for file in made}
    run(study, out, rates)
    assert lefts[0] > 0 == lefts[1]
    assert {file: file.stat().st_mtime_ns for file in made} == then


def test_what_draws_nothing_is_counted_once_its_runs_are_written_down(
    study: Path, tmp_path: Path
) -> None:
    run(study, tmp_path / "out", "methods=[{kind: zero_shot, read: likelihood}]")
    assert read(tmp_path / "out").height == 30


def test_what_is_planned_to_take_long_goes_to_ray(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_STARTING_S", 0.0)
    with pytest.raises(_Connected):
        run(study, tmp_path / "out")
    assert not (tmp_path / "out/adapters").exists()


def test_what_takes_longer_than_planned_goes_to_ray_with_what_is_done(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = ("methods.0.max_steps=300", "methods.0.early_stop.after_step=300")
    out = tmp_path / "out"
    monkeypatch.setattr(StudyRun, "left", lambda self: 0.0)
    monkeypatch.setattr(running, "_STARTING_S", 0.5)
    with pytest.raises(_Connected):
        run(study, out, *steps)
    assert "methods: takes longer than planned, and goes on with Ray" in capfd.readouterr().err
    assert len([*out.glob("train/*/*.safetensors")]) == 2, "states that other workers go on from"
    run(study, out, *steps, address="none")
    assert "2 runs resumed" in capfd.readouterr().err


def test_what_several_processes_must_share_is_refused(study: Path, tmp_path: Path) -> None:
    shared = ("resources.shard=zero3", "resources.train_workers=2")
    with pytest.raises(PlanError, match="leave out --address none"):
        run(study, tmp_path / "out", *shared, address="none")
