"""What a study says of its speed: shares of time, rates, and what was done again."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from raybias.runtime.metrics import Meter
from raybias.runtime.progress import Done, Pace, Reporter
from raybias.runtime.tune.reports import Evaluated, ProgressAggregator, WorkerReport


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pace_is_of_the_last_minute() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert str(pace) == ""
    for _ in range(30):
        clock.now += 10
        pace.add(Done(rows=50, tokens=1000))
    assert str(pace) == "5 rows/s, 100 tokens/s"
    for _ in range(8):
        clock.now += 10
        pace.add(Done(steps=2500))
    clock.now += 500  # a pause that is not over says nothing
    assert str(pace) == "250 seed steps/s"
    pace.add(Done(retries=2))
    assert str(pace) == "2 retries"
    clock.now += 10
    pace.add(Done(tokens=510 * 12_876))
    assert str(pace) == "12,900 tokens/s, 2 retries"


def test_a_pack_that_begins_again_is_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, float] = {}

    def add(self: Meter, name: str, count: int) -> None:
        counted[name] = counted.get(name, 0) + count

    monkeypatch.setattr(Meter, "add", add)
    monkeypatch.setattr(Meter, "set", lambda self, name, value: counted.update({name: value}))
    told: list[Done] = []

    def advance(
        count: int = 1, *, part: float = 0.0, note: str = "", done: Done | None = None
    ) -> None:
        told.append(done or Done())

    tally = ProgressAggregator(advance, Meter(study="s", stage="tune", model="m"), {"a", "b"})
    evaluated = (Evaluated("a", 10, 0.5, stopped=False), Evaluated("b", 10, 0.5, stopped=True))
    for round_ in [
        WorkerReport("a", first=True), WorkerReport("c", first=True),
        WorkerReport("a", evaluated=evaluated, steps=20, tokens=300),
        WorkerReport("a", first=True, resumed=("a",), repeated=4),
        WorkerReport("a", evaluated=evaluated[:1], steps=10, tokens=100),
        # It left before an evaluation, as its node goes.
        WorkerReport("a", steps=3, tokens=30),
    ]:  # fmt: skip
        tally.add(round_)
    assert counted == {
        "raybias_repeated_total": 4, "raybias_retries_total": 1, "raybias_queue_depth": 1,
    }  # fmt: skip
    tuned = [Done(tokens=100, steps=10), Done(tokens=30, steps=3)]
    assert told == [Done(tokens=300, steps=20), Done(retries=1), *tuned]


def test_evaluations_are_not_counted_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is over when it stops, however often it is evaluated."""
    waiting: list[float] = []
    monkeypatch.setattr(Meter, "add", lambda self, name, count: None)
    monkeypatch.setattr(Meter, "set", lambda self, name, value: waiting.append(value))
    target = io.StringIO()
    with Reporter(Console(file=target)).stage("tune", 3) as advance:
        tally = ProgressAggregator(
            advance, Meter(study="s", stage="tune", model="m"), {"a", "b", "c"}
        )

        def told(run_id: str, *steps: int, stops: bool = False) -> tuple[Evaluated, ...]:
            return tuple(
                Evaluated(run_id, step, 0.5, stopped=stops and step == steps[-1]) for step in steps
            )

        tally.add(WorkerReport("p", first=True))
        tally.add(WorkerReport("p", evaluated=told("a", *range(10, 160, 10))))
        assert tally.left == {"a", "b", "c"}
        tally.add(WorkerReport("p", evaluated=(*told("a", 160, stops=True), *told("b", 10, 20))))
        # A pack that begins again can tell of a run once more.
        tally.add(WorkerReport("p", evaluated=told("b", 30, stops=True)))
        tally.add(WorkerReport("q", evaluated=told("b", 30, stops=True)))
        # A worker that was killed had finished the last run and could not tell.
        tally.add(WorkerReport("p", first=True, finished=("a", "b", "c")))
    assert waiting == [3, 3, 2, 1, 1, 0]
    assert target.getvalue() == "tune: 3/3 (1 retries)\n"
