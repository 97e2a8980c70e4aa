"""Plans on imagined machines: no model is loaded, no Ray is started."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import OPTConfig

from raybias.config import Study, parse_study
from raybias.engine.memory import total
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.planning.inventory import (
    Inventory,
    Node,
    assumed,
    with_autoscaled_nodes,
)
from raybias.planning.plan import check_place, plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan
from raybias.runtime.inventory import read_inventory
from raybias.storage import Store
from support.words import word_tokenizer

GIB = 2**30
LAPTOP = "cpus=2,memory=24GiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations of an OPT-125M and an OPT-13B, and a probe of 1,100 items."""
    root = tmp_path_factory.mktemp("plan")
    words = ["<s>", "negative", "neutral", "positive", "a"]
    for model in ("opt-125m", "opt-13b"):
        word_tokenizer(words, unknown="a", bos_token="<s>").save_pretrained(root / model)
    (root / "set").mkdir()
    sentences = pl.DataFrame({"text": ["a b c"] * 10, "label": [0, 1] * 5})
    for split in ("train", "validation"):
        sentences.write_csv(root / "set" / f"{split}.csv")
    OPTConfig().save_pretrained(root / "opt-125m")
    OPTConfig(
        hidden_size=5120,
        ffn_dim=20480,
        num_hidden_layers=40,
        num_attention_heads=40,
        word_embed_proj_dim=5120,
    ).save_pretrained(root / "opt-13b")
    groups = ["old", "young"] * 500 + ["red", "blue"] * 50
    pl.DataFrame(
        {
            "text": [f"sentence {i}" for i in range(1100)],
            "label": [i % 3 for i in range(1100)],
            "attribute": ["age"] * 1000 + ["colour"] * 100,
            "group": groups,
        }
    ).write_csv(root / "probe.csv")
    return root


def study(folder: Path, model: str = "opt-125m", **sections: Any) -> Study:
    resources = sections.pop("resources", {})
    method = {"max_steps": 100, **sections.pop("method", {})}
    return parse_study(
        {
            "name": "planned",
            "backbones": [{"id": str(folder / model), "dtype": sections.pop("dtype", "bfloat16")}],
            "methods": [method],
            "training": [{"source": "file", "name": "set", "data": str(folder / "set")}],
            "probes": [{"source": "file", "name": "mine", "data": str(folder / "probe.csv")}],
            "resources": resources,
            **sections,
        }
    )


def planned(folder: Path, machine: str, **sections: Any) -> Plan:
    return plan(PreparedStudy.of(study(folder, **sections)), assumed(machine))


def test_a_laptop_spreads_the_seeds_and_scores_on_all_its_cpus(folder: Path) -> None:
    made = planned(folder, LAPTOP)
    tuning = made.tune("opt-125m", "set", "soft_prompt")
    assert (tuning.workers, tuning.pack, tuning.sharded) == (2, 4, False)
    assert (tuning.sweep_units, tuning.final_units) == (0, 15)
    scoring = made.score("opt-125m", "soft_prompt")
    assert (scoring.replicas_min, scoring.replicas_max) == (1, 2)
    assert scoring.data_cpus == 2 - 2 * scoring.replica_cpus > 0
    assert made.items == {"mine": 1100}
    assert (scoring.rows_per_shard, scoring.shards) == (128, 45)  # five kept runs of 1,100 items
    assert made.shapes["opt-125m"].parameters == 125_239_296
    weights = next(share for share in tuning.memory if share.what == "weights")
    assert weights.bytes == 125_239_296 * 2
    assert weights.arithmetic == "125,239,296 parameters x 2 bytes"
    assert total(tuning.memory) < tuning.device_memory
    assert not made.notes
    few = planned(folder, LAPTOP, limit=300, method={"max_steps": None})
    assert few.items == {"mine": 400}, "items of an attribute"
    assert "can run for ever" in "\n".join(few.notes)


def test_a_shard_takes_a_few_seconds_of_the_device_it_was_planned_for(folder: Path) -> None:
    """Thousands of rows of a small backbone, few of a large one that is slow; a used OUT's stay."""
    small, large = (PreparedStudy.of(study(folder, model)) for model in ("opt-125m", "opt-13b"))
    on_gpu = assumed("cpus=8,memory=80GiB,gpus=1,gpu_memory=80GB,gpu=A100")
    on_cpu = assumed("cpus=2,memory=80GiB")
    found = []
    for prepared, machine in ((small, on_gpu), (large, on_gpu), (large, on_cpu)):
        made = plan(prepared, machine)
        (scoring,), (work,) = made.scoring, made.works.reading.values()
        rows = scoring.rows_per_shard
        seconds = work.seconds(scoring.speed, scoring.layout, rows) / scoring.shards
        found.append((rows, seconds <= 5))
    assert found == [(8192, True), (1024, True), (1, False)]  # none is less than a row
    kept = replace(small.record, rows_per_shard={"opt-125m": {"soft_prompt": 64}})
    assert plan(replace(small, record=kept), on_gpu).scoring[0].rows_per_shard == 64


def test_a_sweep_is_counted_and_its_runs_used_again(folder: Path) -> None:
    method = {"learning_rates": [1e-2, 1e-3, 1e-4], "sweep_seeds": 2}
    tuning = planned(folder, "cpus=64,memory=512GiB", method=method).tuning[0]
    assert (tuning.sweep_units, tuning.final_units) == (6, 13)
    assert (tuning.workers, tuning.pack) == (13, 1)


def test_gpus_are_used_one_per_worker(folder: Path) -> None:
    made = planned(folder, "nodes=2,cpus=32,memory=256GiB,gpus=4,gpu_memory=80GiB", model="opt-13b")
    tuning = made.tuning[0]
    assert (tuning.workers, tuning.gpus, tuning.pack, tuning.sharded) == (8, 1, 2, False)
    assert "80.0GiB of one GPU" in tuning.reason
    assert made.scoring[0].replicas_max == 8


def test_a_smaller_token_budget_comes_before_sharding(folder: Path) -> None:
    tuning = planned(folder, "cpus=32,gpus=4,gpu_memory=40GiB", model="opt-13b").tuning[0]
    assert not tuning.sharded
    assert tuning.layout.tokens < 4096
    assert "instead of 4096" in tuning.reason


def test_a_backbone_that_fits_no_device_has_its_layers_split_over_those_of_a_node(
    folder: Path,
) -> None:
    # float32 doubles the 13B: tuning does not fit 56 GiB whole, scoring does.
    made = planned(folder, "cpus=32,gpus=4,gpu_memory=56GiB", model="opt-13b", dtype="float32")
    tuning, scoring = made.tuning[0], made.scoring[0]
    assert (tuning.gpus, tuning.workers, tuning.sharded) == (2, 2, False)
    assert tuning.layout.devices == tuning.context(made.decided.backbones[0]).execution.devices == 2
    assert "split: the layers of each worker's backbone over 2 GPUs" in tuning.reason
    assert (scoring.gpus, scoring.layout.passes) == (2, 2), (
        "whole ones leave a GPU idle: the node holds three"
    )


def test_a_backbone_that_fits_no_device_is_sharded_where_workers_have_one_gpu(
    folder: Path,
) -> None:
    tuning = planned(
        folder, "cpus=32,gpus=4,gpu_memory=52GiB", model="opt-13b", dtype="float32",
        resources={"gpus_per_worker": 1},
    ).tuning[0]  # fmt: skip
    assert tuning.sharded
    assert tuning.workers == 4
    assert tuning.pack == 15
    assert "does not fit the 52.0GiB of one GPU" in tuning.reason
    assert any("/ 4" in share.arithmetic for share in tuning.memory)
    nodes, one_each = "cpus=32,gpus=8,gpu_memory=24GB", {"gpus_per_worker": 1}
    scoring = planned(folder, nodes, model="opt-13b", resources=one_each).scoring[0]
    assert scoring.sharded
    assert (scoring.replicas_min, scoring.replicas_max) == (8, 8)
    assert total(scoring.memory) < 24 * 10**9


@pytest.mark.parametrize(
    ("machine", "resources", "message"),
    [
        (LAPTOP, {"train_workers": 3}, "train_workers is 3, but 2 of 1 CPU fit"),
        (LAPTOP, {"cpus_per_worker": 4}, "cpus_per_worker is 4, the largest node has 2"),
        (LAPTOP, {"gpus_per_worker": 1}, "gpus_per_worker is 1, there is no GPU"),
        (LAPTOP, {"replicas_min": 3}, "replicas_min is 3: .* nothing to read with; 2 fit"),
        (LAPTOP, {"replicas_max": 5}, "replicas_max is 5"),
        (LAPTOP, {"replicas_min": 2, "replicas_max": 1}, "replicas_min is 2, replicas_max is 1"),
        (LAPTOP, {"shard": "zero3", "train_workers": 1}, "needs two workers or more"),
        ("cpus=2,memory=1GiB", {}, r"opt-125m .* sharded over 2 workers needs .* one device"),
        ("cpus=2,memory=1GiB", {"shard": "never"}, r"opt-125m .* needs .* on one device"),
        ("cpus=8,memory=64GiB,gpus=1", {}, "memory of its GPUs cannot be read"),
        (LAPTOP, {"memory_per_device": "much"}, "'much' is not a size"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(
    folder: Path, machine: str, resources: dict[str, Any], message: str
) -> None:
    with pytest.raises((PlanError, ConfigError), match=message) as refused:
        planned(folder, machine, resources=resources)
    assert refused.value.exit_code == 2


def test_workers_go_only_where_they_fit(folder: Path) -> None:
    mixed = (
        "nodes=1,cpus=32,gpus=4,gpu_memory=80GB,gpu=A100",
        "nodes=2,cpus=32,gpus=4,gpu_memory=24GB,gpu=A10G",
    )
    whole = study(folder, "opt-13b", resources={"shard": "never"})
    made = plan(PreparedStudy.of(whole), assumed(*mixed))
    tuning, scoring = made.tuning[0], made.scoring[0]
    assert (tuning.workers, tuning.sharded, scoring.replicas_max) == (4, False, 4)
    assert (
        tuning.requests
        == scoring.requests
        == {"label_selector": {"ray.io/accelerator-type": "in(A100)"}}
    )
    assert tuning.device_memory == 80 * 10**9
    # A small backbone fits everywhere.
    small = plan(PreparedStudy.of(study(folder)), assumed(*mixed))
    assert small.scoring[0].replicas_max == 12
    assert small.scoring[0].requests == {}


def test_gpus_that_ray_cannot_tell_apart_count_as_the_smallest(folder: Path) -> None:
    kinds = ("cpus=32,gpus=4,gpu_memory=80GB", "cpus=32,gpus=4,gpu_memory=24GB")
    alone = study(folder, "opt-13b", resources={"gpus_per_worker": 1})
    tuning = plan(PreparedStudy.of(alone), assumed(*kinds)).tuning[0]
    assert tuning.sharded
    assert (tuning.workers, tuning.requests) == (8, {})


def test_memory_is_asked_of_ray_where_it_limits(folder: Path) -> None:
    nodes = ("cpus=8,memory=64GiB", "cpus=8,memory=2GiB")
    scoring = plan(PreparedStudy.of(study(folder)), assumed(*nodes)).scoring[0]
    assert scoring.requests == {"memory": total(scoring.memory)}
    assert scoring.replicas_max == 8 + int(2 * GIB * 0.7) // total(scoring.memory)


def test_workers_of_one_node_share_its_memory(folder: Path) -> None:
    roomy, tight = (
        planned(folder, f"cpus=64,memory={memory}").tuning[0] for memory in ("512GiB", "24GiB")
    )
    assert roomy.workers == 15
    assert tight.workers * total(tight.memory) <= 24 * GIB * 0.7


def test_a_gpus_node_must_hold_the_weights_while_they_are_loaded(folder: Path) -> None:
    tuning = planned(folder, "cpus=32,memory=128GiB,gpus=4,gpu_memory=80GB", model="opt-13b").tuning
    assert tuning[0].workers == 3
    assert tuning[0].requests == {"memory": total(tuning[0].host)}


def test_nodes_that_can_still_come_count(folder: Path) -> None:
    kind = {"count": 3, "cpus": 8, "memory": "64GiB", "gpus": 1, "gpu_memory": "24GB"}
    wanted = study(folder, resources={"nodes": [kind]})
    there = assumed("cpus=4,memory=16GiB", "cpus=8,memory=60GiB,gpus=1,gpu_memory=24GB")
    inventory = with_autoscaled_nodes(there, wanted.resources.nodes)
    assert (len(inventory.nodes), inventory.pending) == (4, 2)
    assert "4 nodes (2 yet to come)" in str(inventory)
    tuning = plan(PreparedStudy.of(wanted), inventory).tuning[0]
    assert (tuning.workers, tuning.pending) == (3, 2)


@pytest.mark.parametrize(
    ("machine", "resources", "nearest"),
    [
        ("cpus=32,gpus=1,gpu_memory=24GB", {}, "2 or more such workers.* devices of 29"),
        (
            "cpus=32,gpus=4,gpu_memory=24GB",
            {"shard": "never", "gpus_per_worker": 1},
            "with resources.shard auto",
        ),
        ("cpus=32,gpus=2,gpu_memory=10GB", {}, "give 9 or more such workers"),
        ("cpus=32,gpus=2,gpu_memory=2GB", {}, "or a smaller backbone"),
        ("memory=16GiB,gpus=1,gpu_memory=80GB", {}, "nodes that leave 24.6GiB or more"),
    ],
)
def test_a_refusal_names_what_would_do(
    folder: Path, machine: str, resources: dict[str, Any], nearest: str
) -> None:
    with pytest.raises(PlanError) as refused:
        planned(folder, machine, model="opt-13b", resources=resources)
    said = str(refused.value)
    assert re.search(nearest, said), said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["cpus", "cpus=many", "cores=4", "cpus=0", "memory=big"])
def test_assumptions_are_checked(text: str) -> None:
    with pytest.raises(ConfigError, match="--assume"):
        assumed(text)


def test_this_machine_is_read_without_ray() -> None:
    import ray

    was_running = ray.is_initialized()
    inventory = read_inventory()
    assert inventory.cpus >= 1
    assert inventory.memory > GIB // 4
    assert ray.is_initialized() == was_running


def test_a_local_folder_is_no_place_for_several_machines(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="shared by the 2 nodes"):
        plan(PreparedStudy.of(study(folder)), assumed("nodes=2,cpus=4"), out=str(tmp_path))

    def nodes(*addresses: str | None) -> Inventory:
        each = (Node(cpus=1, memory=GIB, address=address) for address in addresses)
        return Inventory(nodes=tuple(each), source="made up")

    check_place(Store(tmp_path), nodes("10.0.0.1", "10.0.0.1", "10.0.0.1"))
    for several in (nodes("10.0.0.1", "10.0.0.2"), nodes("10.0.0.1", None), nodes(None, None)):
        with pytest.raises(OutputError, match="cannot be shared by the 2 nodes"):
            check_place(Store(tmp_path), several)


@pytest.mark.parametrize(
    ("kind", "source", "others"),
    [("coreference", "pairs", "winobias"), ("pair_score", "coreferences", "crows_pairs")],
)
def test_pairs_that_a_method_cannot_read_are_refused(
    folder: Path, tmp_path: Path, kind: str, source: str, others: str
) -> None:
    (tmp_path / "pairs.csv").write_text("sent_more,sent_less,bias_type\nred,blue,age\n")
    (tmp_path / "coreferences.csv").write_text(
        "pair_id,condition,text,pronoun,referent\n1,pro,he ran,he,he\n1,anti,she ran,she,she\n"
    )
    wanted = parse_study(
        {
            "name": "pairs",
            "backbones": [{"id": str(folder / "opt-125m")}],
            "methods": [{"kind": kind}],
            "pairs": [{"source": source, "data": str(tmp_path / f"{source}.csv")}],
        }
    )
    with pytest.raises(ConfigError, match=f"add pairs of source {others}"):
        plan(PreparedStudy.of(wanted), assumed(LAPTOP))
