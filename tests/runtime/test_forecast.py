"""What a plan says of wall time, and bounds of it against a simulation of a study's tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raybias
from raybias.config import Study
from raybias.errors import PlanError
from raybias.planning.bounds import Bounds, Forecast
from raybias.planning.inventory import assumed
from raybias.planning.machine import GPUS, Layout, ResourceRequest
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan
from raybias.planning.tasks import Task, remaining, tasks_of
from raybias.report.run_figures import devices_used
from raybias.schema import SCHEDULE_FILE
from raybias.storage import Store
from support import imagined

A100 = "cpus=64,memory=900GiB,gpus=8,gpu_memory=80GB,gpu=A100"


@pytest.fixture
def study(shapes: Path) -> Callable[..., Study]:
    swept = {"max_steps": 50_000, "learning_rates": [1e-2, 1e-3], "eval_every": 125}
    return partial(imagined.study, shapes, data="long", probe="few", methods=[swept])


def planned(wanted: Study, *nodes: str, **options: Any) -> tuple[Plan, Forecast]:
    made = plan(PreparedStudy.of(wanted), assumed(*nodes), **options)
    return made, Forecast.of(made)


def test_a_small_backbone_shares_steps_and_a_large_one_does_not(
    study: Callable[..., Study],
) -> None:
    made, forecast = planned(study("opt-125m", "opt-13b"), f"nodes=4,{A100}")
    small, large = made.tuning
    layout = Layout(16384)
    alone, packed = (small.work.step_seconds(GPUS["A100"], layout, runs) for runs in (1, 14))
    assert packed < 4 * alone, "launches, not products, take the time of a small backbone"
    assert small.pack > 1 == large.pack
    assert large.packs == {"sweep": 2, "final": 14}
    assert forecast.planned.low < forecast.latest.low
    for bounds in (forecast.planned, forecast.latest):
        assert bounds.path <= bounds.low <= bounds.high
        assert 0 < bounds.busy < 1


def test_a_share_of_a_cluster_is_planned_as_a_cluster_of_that_size(
    study: Callable[..., Study],
) -> None:
    (shared, part), (alone, whole) = (
        planned(study(resources={"share": 0.5}), A100),
        planned(study(), A100.replace("gpus=8", "gpus=4")),
    )
    assert shared.devices == alone.devices == 4
    assert part.planned == whole.planned
    assert shared.tuning[0].workers == alone.tuning[0].workers


def test_more_nodes_are_never_slower_and_stop_helping(study: Callable[..., Study]) -> None:
    shown = raybias.plan(study("opt-13b"), assume=[A100], scale=[1, 4, 16])
    walls = [forecast.planned.low for _, forecast in shown.scales]
    assert walls == sorted(walls, reverse=True)
    assert walls[2] > walls[1] / 4, "the longest path does not get shorter"
    text = str(shown)
    assert "more than" in text
    assert re.search(r"wall time between [\d.]+ \w+ and [\d.]+ \w+ if runs stop early", text)
    assert "These are bounds" in text


def test_a_plan_begins_with_devices_that_nothing_would_use(study: Callable[..., Study]) -> None:
    few = [{"max_steps": 50_000, "seeds": [1, 2, 3], "keep": 3}]
    wanted = study("opt-13b", methods=few)
    first = str(raybias.plan(wanted, assume=[f"nodes=8,{A100}"])).splitlines()[0]
    assert re.match(r"at most \d+% of the time of 64 devices is used: ", first)
    (stage,) = planned(wanted, A100.replace("gpus=8", "gpus=1"))[0].tuning
    assert stage.pack == 3


def test_all_that_does_not_fit_is_refused_at_once_or_left_out(study: Callable[..., Study]) -> None:
    wanted = study("opt-125m", "opt-13b", "opt-66b")
    node = "cpus=8,memory=900GiB,gpus=1,gpu_memory=16GB"
    with pytest.raises(PlanError, match=r"2 parts .* opt-13b .*; opt-66b .*--skip-unfit"):
        planned(wanted, node)
    made, _ = planned(wanted, node, skip_unfit=True)
    assert {stage.backbone for stage in (*made.tuning, *made.scoring)} == {"opt-125m"}
    assert [name for name, _ in made.unfit] == ["opt-13b", "opt-66b"]
    assert {task.backbone for task in tasks_of(made)} == {"opt-125m"}


def test_zero3_over_a_network_takes_the_time_that_it_gathers(study: Callable[..., Study]) -> None:
    nodes = "nodes=2,cpus=64,memory=192GiB,gpus=4,gpu_memory=24GB,gpu=A10G"
    alone = {"gpus_per_worker": 1, "shard": "zero3"}
    sharded, slow = planned(study("opt-13b", resources=alone), nodes)
    split, fast = planned(study("opt-13b"), nodes)
    assert sharded.tuning[0].layout.across
    assert split.tuning[0].gpus == 2
    work, layout = sharded.tuning[0].work, sharded.tuning[0].layout
    gathered = 2 * work.passes.all_bytes * 7 / 8 / 5e9
    assert work.step_seconds(sharded.tuning[0].speed, layout, 14) == pytest.approx(
        gathered, rel=0.01
    )
    assert slow.latest.low > 3 * fast.latest.low
    faster = replace(sharded.tuning[0].speed, network=100e9)
    assert work.step_seconds(faster, layout, 14) < gathered / 5
    assert not any("gathering" in note for note in split.notes)
    assert any("gathering" in note for note in sharded.notes)


EIGHT = assumed("nodes=2,cpus=8,memory=64GiB,gpus=4,gpu_memory=24GB")
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
    wall, bounds = list_scheduled(tasks, 8), Bounds.of(tasks, EIGHT, 8)
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
    bounds = Bounds.of(tasks, EIGHT, 8)
    assert (bounds.low, bounds.path, bounds.first) == (20, 20, "p"), "a pack can be halved"
    assert bounds.high == 30 + (150 - 30) / 8
    assert bounds.busy == pytest.approx(150 / 8 / 20)
    assert bounds.turns == 25
    assert str(bounds) == "between 20.0 s and 45.0 s"
    halved = [replace(task, alone=1, singly=task.seconds) for task in tasks]
    assert Bounds.of(halved, EIGHT, 8).high == 1 + (150 - 1) / 8, "or each pack is halved"
    # What holds all devices comes on top, whatever runs beside it.
    wide = Bounds.of([*tasks, tuned("wide", 5, workers=8)], EIGHT, 8)
    assert wide.high == bounds.high + 5


def test_a_schedule_says_how_busy_its_devices_were(tmp_path: Path) -> None:
    held = {"held": [1, 3, 2], "start": [0.0, 0.0, 2.0], "end": [5.0, 2.0, 6.0]}
    table = pl.DataFrame(held).with_columns(
        devices=pl.lit(4), **dict.fromkeys(("task", "kind", "backbone", "method"), pl.lit("tune"))
    )
    Store(tmp_path).write_table(SCHEDULE_FILE, table.to_arrow())
    assert devices_used(Store(tmp_path)).startswith("6.0 s, devices busy 79% of it, ")
