"""Plans of backbones that no GPU holds: shared by Ray Train's workers, or split by layers."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from raybias.engine.memory import total
from raybias.errors import PlanError
from raybias.planning.costs import costs_of, describe
from raybias.planning.tasks import tasks_of
from support.imagined import planned, study


def test_runs_that_do_not_fit_a_shared_backbone_at_once_are_tuned_in_packs_in_turn(
    shapes: Path,
) -> None:
    """Factors and moments of fifteen runs take 13 GiB on each rank; only five runs fit."""
    lora = [{"kind": "lora", "max_steps": 100}]
    asked = study(shapes, "opt-13b", methods=lora, resources={"shard": "zero3"})
    made = planned(asked, "nodes=2,cpus=48,memory=192GiB,gpus=4,gpu_memory=24GB")
    (tuning,) = made.tuning
    assert (tuning.workers, tuning.sharded) == (8, True)
    assert tuning.pack * tuning.packs["final"] >= 15
    assert tuning.packs["final"] > 1
    assert total(tuning.memory) < 24 * 10**9
    tasks = [task for task in tasks_of(made) if task.kind == "tune"]
    assert [task.runs for task in tasks] == [5, 5, 5]
    for before, task in pairwise(tasks):
        assert before.key in task.after, "two groups of workers do not fit beside each other"
    text = describe(made, costs_of(made))
    assert "8 workers share 3 packs of up to 5 seeds, one after another" in text
    with pytest.raises(PlanError, match=r"sharded over 8 workers needs .* on one device"):
        planned(asked, "nodes=2,cpus=48,memory=192GiB,gpus=4,gpu_memory=12GB")


def test_a_plan_says_how_much_longer_ray_train_would_take_than_split_layers(shapes: Path) -> None:
    nodes = "cpus=64,memory=900GiB,gpus=8,gpu_memory=24GB,gpu=L4"
    (tuning,) = planned(study(shapes, "opt-13b"), nodes).tuning
    found = re.search(
        r"with ZeRO-3 by Ray Train it is estimated to take ([\d,.]+) times", tuning.reason
    )
    assert found
    (shared,) = planned(study(shapes, "opt-13b", resources={"shard": "zero3"}), nodes).tuning
    assert "as resources.shard asks" in shared.reason
    assert float(found[1].replace(",", "")) > 1
