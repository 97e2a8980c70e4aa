"""Bars of stages that run side by side, in threads."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from rich.console import Console

from raybias.runtime.progress import Done, Reporter


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
