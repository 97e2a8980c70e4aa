"""The graph of a study's tasks: its order, bounds of its wall time, and a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated import Runs, simulate
from raybias.planning.bounds import Bounds
from raybias.planning.inventory import assumed
from raybias.planning.machine import CPU, ResourceRequest
from raybias.planning.schedule import Task, remaining
from raybias.planning.workload import Layout
from raybias.report.run_figures import schedule_figure
from raybias.runtime.graph import Logbook

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


def test_what_is_alone_fills_the_gaps_and_replicas_share_what_is_read() -> None:
    # Eight GPUs: six tune for 10 s, what is read begins on two and takes all eight after that.
    made = simulate([*(tuned(f"t{n}", 10) for n in range(6)), read("r", 60)], GPUS)
    assert made.wall == pytest.approx(10 + (60 - 20) / 8)
    assert made.busy == pytest.approx(1.0)
    assert made.idle_hours == pytest.approx(0.0)


def test_a_share_of_the_devices_is_never_passed() -> None:
    tasks = [*(tuned(f"t{n}", 10) for n in range(6)), read("r", 60)]
    made = simulate(tasks, GPUS, most=3)
    assert made.devices == 3
    assert made.wall == pytest.approx(120 / 3)
    assert made.busy == pytest.approx(1.0)
    # What needs more than that runs alone.
    assert simulate([tuned("a", 5, gpus=4), tuned("b", 5)], GPUS, most=3).wall == 10


def test_a_worker_that_holds_the_backbone_loads_it_no_more() -> None:
    chain = [
        Task(key=f"a{n}", kind="tune", backbone="a", seconds=5, load=3, need=ONE,
             after=(f"a{n - 1}",) if n else ())
        for n in range(3)
    ]  # fmt: skip
    made = simulate(chain, GPUS)
    assert made.wall == 3 + 15
    assert len({span.worker for span in made.spans}) == 1


def test_the_largest_idle_block_names_what_it_waits_for() -> None:
    made = simulate([*(tuned(f"s{n}", 10) for n in range(7)), tuned("long", 30)], GPUS)
    block = made.idle_block()
    assert block is not None
    assert (block.devices, block.end - block.start, block.behind) == (7, 20, ("long",))


def test_what_has_no_room_is_no_schedule() -> None:
    with pytest.raises(ValueError, match="nothing has room: big"):
        simulate([tuned("big", 1, gpus=8)], GPUS)


def test_workers_share_a_gpu_and_what_takes_a_whole_one_waits_for_it() -> None:
    part = ResourceRequest(cpus=1, gpus=1, sharers=4, per_gpu=4, device=10**9)
    whole = replace(part, sharers=1)
    parts = [replace(tuned(f"p{n}", 10), need=part) for n in range(6)]
    wide = [replace(tuned(f"w{n}", 4), need=whole) for n in range(9)]
    made = simulate([*parts, *wide], replace(GPUS, per_gpu=4))
    # Six parts are on two of eight GPUs, and the others take what is whole one after another.
    assert (made.devices, made.per_device) == (32, 4)
    held = {span.task: {s.worker // 4 for s in made.spans if s.task == span.task}
            for span in made.spans}  # fmt: skip
    assert set(map(len, held.values())) == {1}
    assert len(set().union(*(held[f"p{n}"] for n in range(6)))) == 2
    assert made.wall == 10
    assert made.idle_hours == pytest.approx((8 * 10 - 6 / 4 * 10 - 9 * 4) / 3600)
    assert parts[0].work == 10 / 4


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
def test_a_schedule_keeps_order_devices_and_work(
    drawn: list[tuple[float, int, int, bool, int]],
) -> None:
    tasks: list[Task] = []
    for n, (seconds, gpus, workers, reads, before) in enumerate(drawn):
        after = [tasks[before].key] if before < n else []
        made = read(f"{n}", seconds, *after) if reads else tuned(
            f"{n}", seconds, *after, workers=min(workers, 8 // gpus, 2), gpus=gpus
        )  # fmt: skip
        tasks.append(made)
    schedule = simulate(tasks, GPUS)
    spans = {task.key: [s for s in schedule.spans if s.task == task.key] for task in tasks}
    for task in tasks:
        begun = min(span.start for span in spans[task.key])
        assert all(begun >= span.end for before in task.after for span in spans[before])
        done = sum(span.end - span.loaded for span in spans[task.key])
        assert done == pytest.approx(task.work)
    for worker in range(schedule.devices):
        own = sorted((s.start, s.end) for s in schedule.spans if s.worker == worker)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(own))
    paths, work = remaining(tasks), sum(task.work for task in tasks)
    assert schedule.wall >= max(*paths.values(), work / schedule.devices) - 1e-6
    bounds = Bounds.of(tasks, GPUS, 8)
    assert bounds.low - 1e-6 <= schedule.wall
    if all(task.devices == 1 for task in tasks):
        assert schedule.wall <= bounds.high + 1e-6


def test_bounds_are_the_longest_path_or_the_work_and_grahams_above_it() -> None:
    tasks = [*(tuned(f"t{n}", 10) for n in range(12)), replace(tuned("p", 30), alone=20)]
    bounds = Bounds.of(tasks, GPUS, 8)
    assert (bounds.low, bounds.path, bounds.first) == (20, 20, "p"), "a pack can be halved"
    assert bounds.high == 30 + (150 - 30) / 8
    assert bounds.busy == pytest.approx(150 / 8 / 20)
    assert str(bounds) == "between 20.0 s and 45.0 s"
    # What holds all devices comes on top, whatever runs beside it.
    wide = Bounds.of([*tasks, tuned("wide", 5, workers=8)], GPUS, 8)
    assert wide.high == bounds.high + 5


class Steps:
    """Work of which each run takes a second a step, whatever it is packed with."""

    most, every = 8, 1

    def step_seconds(self, speed: object, layout: object, runs: int) -> float:
        return float(runs)

    def evaluation_seconds(self, speed: object, layout: object, runs: int) -> float:
        return 0.0

    def test_seconds(self, speed: object, layout: object) -> float:
        return 0.0


def test_idle_devices_take_half_of_the_slowest_pack() -> None:
    runs = Runs(cast(Any, Steps()), CPU, Layout(1), (10,) * 4)
    assert runs.seconds() == 40
    assert runs.after(30).reached == 7.5
    tasks = [tuned("pack", runs.seconds()), tuned("after", 1, "pack")]
    assert simulate(tasks, GPUS).wall == 41
    # Halved at 2 s, after half a step, and at 4 s, after one and a half; then each is by itself.
    halved = simulate(tasks, GPUS, runs={"pack": runs})
    assert halved.wall == pytest.approx(4 + 8.5 + 1)
    assert len({span.worker for span in halved.spans}) == 4


def test_a_logbook_is_the_schedule_of_what_tasks_held() -> None:
    book = Logbook()
    one, other = tuned("a", 1), read("b", 9)
    book.hold({"a": (one, 1), "b": (other, 3)}, 4, 0.0)
    book.hold({"a": (one, 1), "b": (other, 2)}, 4, 2.0)
    book.hold({"b": (other, 4)}, 4, 5.0)
    book.hold({}, 4, 6.0)
    made = book.schedule()
    held = sorted((span.task, span.start, span.end) for span in made.spans)
    assert held == [("a", 0, 5), ("b", 0, 2), ("b", 0, 6), ("b", 0, 6), ("b", 5, 6), ("b", 5, 6)]
    assert made.idle_hours == pytest.approx(3 / 3600)
    block = made.idle_block()
    assert block is not None
    assert (block.devices, block.start, block.end, block.behind) == (1, 2, 5, ("a", "b"))
    assert "1 for 3.0 s from 2.0 s on, beside a, b" in schedule_figure(made, "drawn").svg
