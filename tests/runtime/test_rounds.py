"""When the ranks of a worker group end their rounds, and wait for one another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.train.v2._internal.execution import context
from ray.train.v2._internal.execution.preemption import PreemptionContext
from ray.train.v2.api.preemption import PreemptionInfo

from raybias.engine.adapters.tuning import Evaluation
from raybias.methods import Full, Lora, SoftPrompt
from raybias.runtime.tune.worker import WorkerPack, ends_round


@pytest.mark.parametrize(
    ("elapsed", "slowest", "ends"),
    [(40, 10, False), (55, 10, True), (100, 30, False), (151, 30, True), (59.5, 0.1, False)],
)
def test_a_round_is_a_minute_or_six_evaluations(elapsed: float, slowest: float, ends: bool) -> None:
    assert ends_round(elapsed, slowest) == ends


class Clock:
    """Seconds that pass only while a `SlowTuner` works."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowTuner:
    """A unit that is evaluated every five steps, which take so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.step = clock, seconds, 0
        self.steps = self.tokens = 0

    def advance(self) -> list[Evaluation]:
        self.step += 5
        self.clock.now += self.seconds
        return [Evaluation("u", self.step, 1.0, 0.5, None)]


def pack_of(tuner: Any, method: Any, *, sharded: bool = False) -> Any:
    pack: Any = object.__new__(WorkerPack)
    pack.job = SimpleNamespace(method=method, sharded=sharded)
    pack.rank, pack.writes, pack.trials, pack.stopped = 0, False, ["u"], set()
    pack.tuner, pack._save = tuner, lambda result: None
    return pack


@pytest.mark.parametrize(
    ("method", "sharded", "seconds", "evaluations"),
    [
        (SoftPrompt(), False, 1, 1), (Lora(), True, 1, 1), (Lora(), False, 1, 60),
        (Full(), False, 4, 15), (Full(), False, 10, 6), (Full(), False, 40, 6),
    ],
)  # fmt: skip
def test_a_killed_worker_repeats_a_minute_or_six_evaluations(
    monkeypatch: pytest.MonkeyPatch,
    method: Any,
    sharded: bool,
    seconds: float,
    evaluations: int,
) -> None:
    """As ARCHITECTURE.md says: a checkpoint follows each round, so a kill costs one at most."""
    clock = Clock()
    monkeypatch.setattr("raybias.runtime.tune.worker.time", clock)
    monkeypatch.setattr("raybias.runtime.tune.worker._preempted", lambda: False)
    pack = pack_of(SlowTuner(clock, seconds), method, sharded=sharded)
    for _ in range(3):
        begun = clock.now
        assert len(pack.advance().evaluated) == evaluations
        assert clock.now - begun <= max(60, 6 * seconds)


class Tuner:
    """A unit that is evaluated three times, and hears of the loss of a node at the second."""

    def __init__(self, told: PreemptionContext) -> None:
        self.step, self.told = 0, told
        self.steps = self.tokens = 0

    def advance(self) -> list[Evaluation]:
        self.step += 5
        if self.step == 10:
            self.told.preemption_info = PreemptionInfo(None, {"node": [1]})
        return [Evaluation("u", self.step, 1.0, 0.5, "max_steps" if self.step == 15 else None)]

    def result(self, run_id: str) -> str:
        return run_id

    def drop(self, run_id: str) -> None:
        pass


def test_an_announced_loss_of_a_node_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    told = PreemptionContext()
    monkeypatch.setattr(
        context, "get_train_context", lambda: SimpleNamespace(preemption_context=told)
    )
    pack = pack_of(Tuner(told), Full())
    assert [each.step for each in pack.advance().evaluated] == [5, 10]
    assert [each.step for each in pack.advance().evaluated] == [15]
