"""What a user sees while a study runs: bars, lines, time left, and where workers' output is."""

from __future__ import annotations

import io
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from rich.console import Console

from raybias.engine.adapters.tuning import Evaluation
from raybias.runtime.progress import Done, Meter, ProgressAggregator, Reporter, Stage, WorkerReport


def test_stages_side_by_side_share_one_display_and_leave_a_line_each() -> None:
    target, together = io.StringIO(), Barrier(4)
    console = Console(file=target, force_terminal=True, width=120, color_system=None)
    reporter = Reporter(console)

    def stage(name: str) -> None:
        for turn in range(2):
            with reporter.stage(f"{name} {turn}", 9) as advance:
                together.wait()
                for n in range(9):
                    advance(note=f"step {n}", done=Done(steps=1))
                    reporter.say(f"line {name} {turn} {n}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(stage, "abcd"))
    lines = {line.strip() for line in target.getvalue().replace("\r", "\n").splitlines()}
    for name in "abcd":
        for turn in range(2):
            assert any(line.endswith(f"{name} {turn}: 9/9") for line in lines)
            for n in range(9):
                assert any(line.endswith(f"line {name} {turn} {n}") for line in lines)
    assert not reporter._shown.live.is_started


def test_a_stage_says_what_it_waits_for_and_then_its_pace_in_the_last_minute() -> None:
    now = [0.0]
    stage = Stage(52, "a worker starts", lambda: now[0])
    now[0] = 100
    stage.advance(2)  # Were there already, and tell nothing of the pace.
    assert stage.beside == "a worker starts"
    now[0] = 120
    stage.advance(0, part=1.0, note="step 10", done=Done(steps=60))
    # One unit took 120 s, and 49 are left; some may stop early.
    assert stage.beside == "at most 1.6 h left, step 10, 0.5 seed steps/s"
    for moment in (200, 210, 220):
        now[0] = moment
        stage.advance(done=Done(rows=1, tokens=128_760))
    # Two shards in the 20 s since the first of the window, without the time of a worker's start.
    assert "0.1 rows/s, 12,900 tokens/s" in stage.beside
    now[0] = 230
    stage.advance(40, done=Done(rows=40, retries=2))
    assert "1.4 rows/s" in stage.beside
    assert stage.beside.endswith("2 retries")


class Told(Meter):
    """A meter that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(study="s", stage="tune", model="m")
        self.counted, self.waiting = Counter[str](), list[float]()

    def add(self, name: str, count: float) -> None:
        self.counted[name] += count

    def set(self, name: str, value: float) -> None:
        self.waiting.append(value)


def evaluated(run_id: str, *steps: int, stops: bool = False) -> tuple[Evaluation, ...]:
    ends = "early_stop" if stops else None
    return tuple(Evaluation(run_id, n, 1.0, 0.5, ends if n == steps[-1] else None) for n in steps)


def test_a_pack_that_begins_again_is_a_retry_and_evaluations_are_no_runs() -> None:
    """A run is over when it stops, however often it is evaluated."""
    meter, target, done = Told(), io.StringIO(), list[Done]()
    with Reporter(Console(file=target)).stage("tune", 3) as advance:

        def told(count: int = 1, **how: Any) -> None:
            done.append(how.get("done") or Done())
            advance(count, **how)

        tally = ProgressAggregator(told, meter, {"a", "b", "c"})
        tally.add(WorkerReport("p", first=True))
        early = evaluated("a", *range(10, 160, 10))
        tally.add(WorkerReport("p", evaluated=early, steps=150, tokens=300))
        assert tally.left == {"a", "b", "c"}
        stopped = (*evaluated("a", 160, stops=True), *evaluated("b", 10, 20))
        tally.add(WorkerReport("p", evaluated=stopped))
        # A pack that begins again can tell of a run once more.
        tally.add(WorkerReport("p", first=True, resumed=("b",), repeated=4))
        tally.add(WorkerReport("p", evaluated=evaluated("b", 30, stops=True)))
        tally.add(WorkerReport("q", evaluated=evaluated("b", 30, stops=True)))
        # It left before an evaluation, as its node goes.
        tally.add(WorkerReport("p", steps=3, tokens=30))
        # A worker that was killed had finished the last run and could not tell.
        tally.add(WorkerReport("p", first=True, finished=("a", "b", "c")))
    assert meter.waiting[-1] == 0
    assert sorted(set(meter.waiting), reverse=True) == [3, 2, 1, 0]
    assert meter.counted == {"raybias_repeated_total": 4, "raybias_retries_total": 2}
    assert (sum(each.steps for each in done), sum(each.tokens for each in done)) == (153, 330)
    assert sum(each.retries for each in done) == 2
    assert target.getvalue().startswith("tune: 3/3 (")
    assert target.getvalue().endswith(", 2 retries)\n")
