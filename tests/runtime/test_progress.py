"""What a user sees while a study runs: bars, lines, time left, and where workers' output is."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from rich.console import Console

from raybias.runtime.metrics import Meter
from raybias.runtime.progress import (
    Done,
    Evaluated,
    ProgressAggregator,
    Reporter,
    Stage,
    WorkerReport,
)


def test_stages_side_by_side_share_one_display_and_leave_a_line_each() -> None:
    target, together = io.StringIO(), Barrier(4)
    console = Console(file=target, force_terminal=True, width=120, color_system=None)
    reporter = Reporter(console)

    def stage(name: str) -> None:
        for turn in range(3):
            with reporter.stage(f"{name} {turn}", 20) as advance:
                together.wait()
                for n in range(20):
                    advance(note=f"step {n}", done=Done(steps=1))
                    reporter.say(f"line {name} {turn} {n}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(stage, "abcd"))
    lines = {line.strip() for line in target.getvalue().replace("\r", "\n").splitlines()}
    for name in "abcd":
        for turn in range(3):
            assert any(line.endswith(f"{name} {turn}: 20/20") for line in lines)
            for n in range(20):
                assert any(line.endswith(f"line {name} {turn} {n}") for line in lines)
    assert not reporter._shown.live.is_started


def test_a_stage_says_what_it_waits_for_and_then_how_long_it_takes() -> None:
    now = [0.0]
    stage = Stage(8, "a worker starts", lambda: now[0])
    now[0] = 100
    stage.advance(2)  # Were there already, and tell nothing of the pace.
    assert stage.beside == "a worker starts"
    now[0] = 120
    stage.advance(0, part=1.0, note="step 10", done=Done(steps=60))
    # One unit took 120 s, and five are left; some may stop early.
    assert stage.beside == "at most 10 min left, step 10, 0.5 seed steps/s"


def test_rates_and_time_left_are_of_the_last_minute() -> None:
    now = [0.0]
    stage = Stage(52, "", lambda: now[0])
    for moment in (100, 200, 210, 220):
        now[0] = moment
        stage.advance(done=Done(rows=1, tokens=128_760))
    # Two shards in the 20 s since the first of the window, without the time of a worker's start.
    assert stage.beside == "8 min left, 0.1 rows/s, 12,900 tokens/s"
    now[0] = 230
    stage.advance(40, done=Done(rows=40, retries=2))
    assert stage.beside.startswith("6 s left, 1.4 rows/s")
    assert stage.beside.endswith("2 retries")


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
