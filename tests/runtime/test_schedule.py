"""The graph of a study's tasks: its order, and bounds of its wall time against a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.planning.bounds import Bounds
from raybias.planning.inventory import assumed
from raybias.planning.machine import ResourceRequest
from raybias.planning.tasks import Task, remaining
from raybias.report.run_figures import devices_used
from raybias.schema import SCHEDULE_FILE
from raybias.storage import Store

GPUS = assumed("nodes=2,cpus=8,memory=64GiB,gpus=4,gpu_memory=24GB")
ONE = ResourceRequest(cpus=1, gpus=1, device=10**9)


def tuned(key: str, seconds: float, *after: str, workers: int = 1, gpus: int = 1) -> Task:
    need = ResourceRequest(cpus=1, gpus=gpus, device=10**9)
    return Task(
        key=key, kind="tune", backbone=key[0], seconds=seconds, need=need, after=after,
        least=workers, most=workers,
    )  # fmt: skip


def read(key: str, seconds: float, *after: str, most: int = 8, load: float = 0.0) -> Task:
    return Task(
        key=key, kind="read", backbone=key[0], seconds=seconds, need=ONE, after=after, most=most,
        load=load,
    )  # fmt: skip


def test_the_longest_path_behind_a_task_is_its_priority() -> None:
    tasks = [
        tuned("a", 5), tuned("b", 1), tuned("c", 10, "b"), read("d", 16, "a", "c", load=1),
    ]  # fmt: skip
    assert remaining(tasks) == {"a": 8.0, "b": 14.0, "c": 13.0, "d": 3.0}


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 50),
            st.integers(1, 4),
            st.integers(1, 3),
            st.booleans(),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_bounds_hold_what_a_list_schedule_takes(
    drawn: list[tuple[float, int, int, bool, int]],
) -> None:
    tasks: list[Task] = []
    for n, (seconds, gpus, workers, reads, before) in enumerate(drawn):
        after = [tasks[before].key] if before < n else []
        made = read(f"{n}", seconds, *after) if reads else tuned(
            f"{n}", seconds, *after, workers=min(workers, 8 // gpus, 2), gpus=gpus
        )  # fmt: skip
        tasks.append(made)
    wall, bounds = list_scheduled(tasks, 8), Bounds.of(tasks, GPUS, 8)
    assert bounds.low - 1e-6 <= wall
    if all(task.devices == 1 for task in tasks):
        assert wall <= bounds.high + 1e-6


def list_scheduled(tasks: Sequence[Task], free: int) -> float:
    """Run what is ready, longest path first; what is read takes every device that is left."""
    now, paths, left = 0.0, remaining(tasks), {task.key: task.seconds for task in tasks}
    waiting, held = sorted(tasks, key=lambda task: -paths[task.key]), dict[str, int]()
    while left:
        for task in [each for each in waiting if not {*each.after} & {*left}]:
            if task.least * task.devices <= free:
                waiting.remove(task)
                held[task.key] = task.least
                free -= task.least * task.devices
        for task in tasks:
            if task.divisible and task.key in held:
                more = min(task.most - held[task.key], free)
                held[task.key] += more
                free -= more
        pace = {task.key: held[task.key] if task.divisible else 1
                for task in tasks if task.key in held}  # fmt: skip
        step, first = min((left[key] / rate, key) for key, rate in pace.items())
        now += step
        left |= {key: left[key] - step * rate for key, rate in pace.items()}
        del left[first]
        free += held.pop(first) * next(each for each in tasks if each.key == first).devices
    return now


def test_bounds_are_the_longest_path_or_the_work_and_grahams_above_it() -> None:
    tasks = [
        *(replace(tuned(f"t{n}", 10), rounds=20) for n in range(12)),
        replace(tuned("p", 30), alone=20, singly=200, rounds=25),
    ]
    bounds = Bounds.of(tasks, GPUS, 8)
    assert (bounds.low, bounds.path, bounds.first) == (20, 20, "p"), "a pack can be halved"
    assert bounds.high == 30 + (150 - 30) / 8
    assert bounds.busy == pytest.approx(150 / 8 / 20)
    assert bounds.turns == 25
    assert str(bounds) == "between 20.0 s and 45.0 s"
    halved = [replace(task, alone=1, singly=task.seconds) for task in tasks]
    assert Bounds.of(halved, GPUS, 8).high == 1 + (150 - 1) / 8, "or each pack is halved"
    # What holds all devices comes on top, whatever runs beside it.
    wide = Bounds.of([*tasks, tuned("wide", 5, workers=8)], GPUS, 8)
    assert wide.high == bounds.high + 5


def test_a_schedule_says_how_busy_its_devices_were(tmp_path: Path) -> None:
    held = {"held": [1, 3, 2], "start": [0.0, 0.0, 2.0], "end": [5.0, 2.0, 6.0]}
    table = pl.DataFrame(held).with_columns(
        devices=pl.lit(4), **dict.fromkeys(("task", "kind", "backbone", "method"), pl.lit("tune"))
    )
    Store(tmp_path).write_table(SCHEDULE_FILE, table.to_arrow())
    assert devices_used(Store(tmp_path)).startswith("6.0 s, devices busy 79% of it, ")
