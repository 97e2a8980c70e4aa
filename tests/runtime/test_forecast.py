"""What a plan says of wall time: packs by the cost curve, sizes of the cluster, models left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import raybias
from raybias.config import Study
from raybias.errors import PlanError
from raybias.planning.bounds import Forecast
from raybias.planning.inventory import assumed
from raybias.planning.machine import CPU, GPUS, Layout
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan
from raybias.planning.tasks import tasks_of
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


def test_attention_and_the_last_test_take_time(study: Callable[..., Study]) -> None:
    made, _ = planned(study(), A100)
    work, layout = made.tuning[0].work, Layout(4096)
    passes = replace(work.passes, shape=replace(work.passes.shape, heads=960))
    heads = replace(work, passes=passes)
    more = [heads.step_seconds(on, layout, 4) / work.step_seconds(on, layout, 4)
            for on in (CPU, GPUS["A100"])]  # fmt: skip
    # Eighty times the heads: what a CPU computes one after another, and a GPU in one kernel.
    assert more[0] > 2
    assert more[1] == 1
    tested = replace(work, tested=work.tested._replace(number=2210, length=30.0))
    longer = [each.pack_seconds(CPU, layout, (125, 250)) for each in (work, tested)]
    flops = 2 * work.passes.parameters * 2210 * 30
    assert longer[1] - longer[0] > 2 * flops / CPU.peak


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


def test_two_cores_are_busy_to_the_end(study: Callable[..., Study]) -> None:
    made, forecast = planned(study(), "cpus=2,memory=16GiB")
    assert (made.tuning[0].workers, made.tuning[0].speed) == (2, CPU)
    assert forecast.planned.busy > 0.9
    assert not forecast.unused


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
