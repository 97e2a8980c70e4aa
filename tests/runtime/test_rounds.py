"""When a worker keeps the states of its runs, and what it gives away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raybias.engine.adapters.tuning import Evaluation
from raybias.methods import Full, Lora, SoftPrompt
from raybias.runtime.tune import worker
from raybias.runtime.tune.worker import WorkerPack, states_due
from raybias.storage import Store


@pytest.mark.parametrize(
    ("elapsed", "slowest", "due"),
    [(40, 10, False), (55, 10, True), (100, 30, False), (151, 30, True), (59.5, 0.1, False)],
)
def test_states_are_due_after_a_minute_or_six_evaluations(
    elapsed: float, slowest: float, due: bool
) -> None:
    assert states_due(elapsed, slowest) == due


class Clock:
    """Seconds that pass only while a `SlowTuner` works."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowTuner:
    """Runs that are evaluated every five steps, which take so many seconds."""

    def __init__(self, clock: Clock, seconds: float, runs: str) -> None:
        self.clock, self.seconds, self.runs = clock, seconds, list(runs)
        self.steps = self.tokens = 0

    def advance(self) -> list[Evaluation]:
        self.steps += 5
        self.clock.now += self.seconds
        return [Evaluation(run, self.steps, 1.0, 0.5, None) for run in self.runs]

    def state(self, run_id: str) -> dict[str, torch.Tensor]:
        return {"step": torch.tensor(self.steps)}

    def drop(self, run_id: str) -> None:
        self.runs.remove(run_id)


def pack_of(tuner: Any, method: Any, out: Path, *, sharded: bool = False) -> WorkerPack:
    pack = object.__new__(WorkerPack)
    pack.task = SimpleNamespace(method=method, sharded=sharded, folder="train/x")  # type: ignore
    pack.store, pack.writes, pack.name = Store(out), True, "u"
    pack.active, pack.asked, pack.tuner = list(tuner.runs), (), tuner
    pack._kept, pack._slowest = 0.0, 0.0
    return pack


def kept(out: Path) -> set[str]:
    return {path.stem for path in out.glob("train/x/*.safetensors")}


@pytest.mark.parametrize(
    ("method", "sharded", "seconds", "evaluations"),
    [
        (SoftPrompt(), False, 1, 1), (Lora(), True, 1, 1), (Lora(), False, 1, 60),
        (Full(), False, 4, 15), (Full(), False, 10, 6), (Full(), False, 40, 6),
    ],
)  # fmt: skip
def test_a_killed_worker_repeats_one_evaluation_or_a_minute_of_large_states(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    method: Any, sharded: bool, seconds: float, evaluations: int,
) -> None:  # fmt: skip
    clock = Clock()
    monkeypatch.setattr(worker, "time", clock)
    pack = pack_of(SlowTuner(clock, seconds, "u"), method, tmp_path, sharded=sharded)
    for _ in range(2):
        for n in range(1, evaluations + 1):
            pack.advance()
            assert kept(tmp_path) == (set("u") if n == evaluations else set())
        (tmp_path / "train/x/u.safetensors").unlink()


def test_what_a_pack_is_asked_for_is_kept_and_given_after_the_evaluation(tmp_path: Path) -> None:
    pack = pack_of(SlowTuner(Clock(), 1, "uvw"), Full(), tmp_path)
    assert pack.advance().given == ()
    pack.asked = ("v", "w", "gone")
    assert pack.advance().given == ("v", "w")
    assert pack.active == ["u"]
    assert kept(tmp_path) >= {"v", "w"}
    assert pack.advance().given == ()
