"""What a user sees while a study runs: bars, lines, time left, and where workers' output is."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from rich.console import Console

from raybias.runtime.progress import Done, Pace, Reporter
from raybias.runtime.ray_session import worker_logs


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


def test_a_stage_says_what_it_waits_for_and_then_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("raybias.runtime.progress.time.monotonic", lambda: now[0])
    # Arguments' defaults are bound before the clock is replaced.
    monkeypatch.setattr(Pace.__init__, "__defaults__", (lambda: now[0],))
    target = io.StringIO()
    with Reporter(Console(file=target)).stage("tune", 8, starting="a worker starts") as advance:
        now[0] = 100
        advance(2)  # Were there already, and tell nothing of the pace.
        now[0] = 120
        advance(0, part=1.0, note="step 10", done=Done(steps=60))
        now[0] = 200
        advance(6, done=Done(rows=9))
    assert target.getvalue().splitlines() == [
        "tune: a worker starts",
        "tune: 2/8 (a worker starts)",
        # One unit took 120 s, and five are left; some may stop early.
        "tune: 2/8 (at most 10 min left, step 10, 0.5 seed steps/s)",
        "tune: 8/8 (0.113 rows/s)",
    ]


def test_time_left_follows_the_pace_of_the_last_minute() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.left(5) == ""
    for n, moment in enumerate((100, 200, 210, 220)):
        now[0] = moment
        pace.add(Done(rows=1), n + 1)
    # Three units in the 120 s since the first of the window.
    assert pace.left(2) == "80 s left"
    assert pace.left(50) == "33 min left"
    assert pace.left(500) == "6 h left"
    assert pace.left(0) == ""


def test_what_workers_print_is_kept_by_their_names_without_rays_markers(tmp_path: Path) -> None:
    (tmp_path / "worker-1-01-7.err").write_text(":job_id:01\n:actor_name:PackWorker\nno GPU\n")
    (tmp_path / "worker-1-01-7.out").write_text(":job_id:01\n:actor_name:PackWorker\n")
    (tmp_path / "worker-2-01-8.out").write_text(":job_id:01\nat https://me:secret@host/x\n")
    (tmp_path / "gcs_server.out").write_text("Ray's own\n")
    said = worker_logs(tmp_path)
    assert said.startswith("== PackWorker, standard error (worker-1-01-7.err)\nno GPU\n\n== task, ")
    assert "secret" not in said
    assert "Ray's own" not in said
    assert said.count("==") == 2
    assert worker_logs(tmp_path / "none") == ""
