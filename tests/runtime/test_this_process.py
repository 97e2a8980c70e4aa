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
from raybias.report.page import write_report
from raybias.runtime import study as running
from raybias.runtime.pack_worker import PackWorker
from raybias.runtime.progress import WorkerReport
from raybias.runtime.study import run_study
from raybias.runtime.work import StudyRun
from raybias.storage import Store
from support import studies
from support.pages import page_of

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


def test_a_sweep_gives_up_what_is_behind_and_the_rest_has_the_bits_of_a_whole_sweep(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = (
        "methods.0.learning_rates=[1.0e-5, 0.01, 1.0e-4, 0.02]", "methods.0.max_steps=24",
        "methods.0.eval_every=4", "methods.0.early_stop.after_step=24",
    )  # fmt: skip
    cut = (*changes, "methods.0.sweep_cut={step: 8, keep: 2}")
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(study, whole, *changes)

    def steps(folder: Path) -> dict[float, tuple[int, str]]:
        swept = pl.read_parquet(folder / "runs.parquet").filter(seed=1)
        return {rate: rest for rate, *rest in swept.select(
            "learning_rate", "steps", "stop_reason").iter_rows()}  # fmt: skip

    # It ends twice: once at the cut, whose runs go on from their states, and once behind it.
    advance, calls = PackWorker.advance, list[int | None]()

    def ended(self: PackWorker) -> WorkerReport:
        calls.append(self.task.until)
        if len(calls) in (2, 6):
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(PackWorker, "advance", ended)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(study, out, *cut)
    monkeypatch.undo()
    run(study, out, *cut, address="none")
    assert calls.count(8) == 3, "to step 4 in one process, to step 8 in another"
    assert "2 of 4 combinations go on at step 8" in capfd.readouterr().err
    left = {rate for rate, (_, reason) in steps(out).items() if reason != "cut"}
    assert left == {0.01, 0.02}
    assert steps(out) == {
        rate: ended if rate in left else [8, "cut"] for rate, ended in steps(whole).items()
    }
    for file in out.glob("adapters/*/adapter_model.safetensors"):
        assert file.read_bytes() == (whole / file.relative_to(out)).read_bytes()
    assert read(out).equals(read(whole))
    assert not [*out.glob("train/*")]
    given_up = pl.read_parquet(out / "runs.parquet").filter(stop_reason="cut")
    assert given_up["adapter"].null_count() == given_up.height == 2
    assert not given_up["selected"].any()
    write_report(Store(out), load_study(study, overrides=cut))
    assert "2 runs of the sweep given up at step 8, behind" in page_of(Store(out)).text


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
