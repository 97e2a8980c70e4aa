"""Plans on imagined machines and how they are printed: no model is loaded, no Ray is started."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raybias
from raybias.cli import app
from raybias.engine.memory import total
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.methods import methods_of
from raybias.planning.inventory import Inventory, Node, assumed, choose, with_autoscaled_nodes
from raybias.planning.plan import check_place, plan, serving_plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Stage
from raybias.runtime.inventory import read_inventory
from raybias.storage import Store
from raybias.study_record import begin, make_record
from support.imagined import planned, study

GIB = 2**30
LAPTOP = "cpus=2,memory=24GiB"
A100 = "cpus=64,memory=900GiB,gpus=8,gpu_memory=80GB,gpu=A100"
ONE_EACH = {"gpus_per_worker": 1}
DEMO = str(files("raybias") / "assets" / "demo.yaml")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def test_a_laptop_spreads_the_seeds_and_scores_on_all_its_cpus(shapes: Path) -> None:
    made = planned(study(shapes), LAPTOP)
    tuning = made.tune("opt-125m", "set", "soft_prompt")
    assert (tuning.workers, tuning.pack, tuning.sharded) == (2, 4, False)
    assert (tuning.work.sweep, tuning.work.final) == (0, 15)
    scoring = made.score("opt-125m", "soft_prompt")
    assert (scoring.replicas_min, scoring.replicas_max) == (1, 2)
    assert scoring.data_cpus == 2 - 2 * scoring.replica_cpus > 0
    assert scoring.items == {"mine": 1100}
    assert (scoring.rows_per_shard, scoring.shards) == (128, 45)  # five kept runs of 1,100 items
    assert made.shapes["opt-125m"].parameters == 125_239_296
    weights = next(share for share in tuning.memory if share.what == "weights")
    assert weights.bytes == 125_239_296 * 2
    assert weights.arithmetic == "125,239,296 parameters x 2 bytes"
    assert total(tuning.memory) < tuning.device_memory
    assert not made.notes
    few = planned(study(shapes, limit=300, methods=[{"max_steps": None}]), LAPTOP)
    assert few.scoring[0].items == {"mine": 400}, "items of an attribute"
    assert "can run for ever" in "\n".join(few.notes)


def test_a_shard_takes_a_few_seconds_of_the_device_it_was_planned_for(shapes: Path) -> None:
    """Thousands of rows of a small backbone, few of a large one that is slow; a used OUT's stay."""
    small, large = (PreparedStudy.of(study(shapes, model)) for model in ("opt-125m", "opt-13b"))
    on_gpu = assumed("cpus=8,memory=80GiB,gpus=1,gpu_memory=80GB,gpu=A100")
    on_cpu = assumed("cpus=2,memory=80GiB")
    found = []
    for prepared, machine in ((small, on_gpu), (large, on_gpu), (large, on_cpu)):
        made = plan(prepared, machine)
        (scoring,) = made.scoring
        rows = scoring.rows_per_shard
        seconds = scoring.work.seconds(scoring.speed, scoring.layout, rows) / scoring.shards
        found.append((rows, seconds <= 5))
    assert found == [(8192, True), (1024, True), (1, False)]  # none is less than a row
    kept = replace(small.record, rows_per_shard={"opt-125m": {"soft_prompt": 64}})
    assert plan(replace(small, record=kept), on_gpu).scoring[0].rows_per_shard == 64


@pytest.mark.parametrize(
    ("nodes", "model", "options", "held", "reason"),
    [
        (["nodes=2,cpus=32,memory=256GiB,gpus=4,gpu_memory=80GiB"], "opt-13b", {}, (8, 1, False),
         "80.0GiB of one GPU"),
        # A smaller token budget comes before sharding.
        (["cpus=32,gpus=4,gpu_memory=40GiB"], "opt-13b", {}, (4, 1, False), "instead of 4096"),
        (["cpus=32,gpus=4,gpu_memory=56GiB"], "opt-13b", {"dtype": "float32"}, (2, 2, False),
         "split: the layers of each worker's backbone over 2 GPUs"),
        (["cpus=32,gpus=4,gpu_memory=52GiB"], "opt-13b",
         {"dtype": "float32", "resources": ONE_EACH}, (4, 1, True), "the 52.0GiB of one GPU"),
        (["cpus=64,memory=900GiB,gpus=8,gpu_memory=24GB,gpu=A10G"], "opt-13b", {}, (4, 2, False),
         "split: the layers"),
        # It fits two GPUs, of which one computes at a time; over NVLink all eight do.
        ([A100], "opt-66b", {"data": "long"}, (8, 1, True), "estimated faster than layers split"),
        # GPUs that Ray cannot tell apart count as the smallest.
        (["cpus=32,gpus=4,gpu_memory=80GB", "cpus=32,gpus=4,gpu_memory=24GB"], "opt-13b",
         {"resources": ONE_EACH}, (8, 1, True), "does not fit"),
    ],
)  # fmt: skip
def test_a_backbone_is_held_in_the_fastest_way_that_fits(
    shapes: Path, nodes: list[str], model: str, options: dict[str, Any],
    held: tuple[int, int, bool], reason: str,
) -> None:  # fmt: skip
    made = planned(study(shapes, model, **options), *nodes)
    (tuning,) = made.tuning
    assert (tuning.workers, tuning.gpus, tuning.sharded) == held
    assert reason in tuning.reason
    if tuning.sharded:
        assert any(f"/ {tuning.workers}" in share.arithmetic for share in tuning.memory)
    execution = tuning.context(made.study.backbones[0]).execution
    assert tuning.layout.devices == execution.devices == tuning.gpus


def test_reading_is_planned_by_itself(shapes: Path) -> None:
    whole = planned(
        study(shapes, "opt-13b", dtype="float32"), "cpus=32,gpus=4,gpu_memory=56GiB"
    ).scoring[0]  # fmt: skip
    assert (whole.gpus, whole.layout.passes) == (2, 2), "whole ones leave a GPU idle"
    shared = planned(
        study(shapes, "opt-13b", resources=ONE_EACH), "cpus=32,gpus=8,gpu_memory=24GB"
    ).scoring[0]
    assert (shared.sharded, shared.replicas_min, shared.replicas_max) == (True, 8, 8)
    assert total(shared.memory) < 24 * 10**9


def test_an_endpoints_replica_is_planned_as_a_studys_are_but_shares_no_weights(
    shapes: Path,
) -> None:
    resources = {"replicas_min": 4, "deterministic": True}
    asked = PreparedStudy.of(study(shapes, "opt-13b", resources=resources))
    (backbone,) = asked.study.backbones
    (method,) = methods_of(asked.study, backbone)

    def planned_on(nodes: str, gpus: int | None = None) -> Stage:
        items, inventory = asked.data.items, assumed(nodes)
        return serving_plan(asked.study, backbone, method, items, inventory, gpus=gpus)

    small = planned_on("cpus=64,memory=900GiB,gpus=8,gpu_memory=24GB")
    assert (small.gpus, small.layout.devices, small.sharded) == (2, 2, False)
    large = planned_on("cpus=64,memory=900GiB,gpus=8,gpu_memory=80GB")
    assert (large.gpus, large.context(backbone).execution.tokens_per_batch) == (1, 4096)
    with pytest.raises(PlanError, match=r"opt-13b .* on one device"):
        planned_on("nodes=8,cpus=8,memory=100GiB,gpus=1,gpu_memory=24GB")
    to_come = planned_on("cpus=8,memory=100GiB", gpus=2)
    assert (to_come.gpus, to_come.layout.devices) == (2, 2)
    assert small.deterministic


#: 24 GB hold no OPT-13B.
SMALL = "cpus=32,gpus=4,gpu_memory=24GB"


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
        *((text, {}, "--assume") for text in ("cpus", "cpus=many", "cores=4", "cpus=0")),
        # What would do instead.
        (SMALL.replace("=4", "=1"), {}, "2 or more such workers.* devices of 29"),
        (SMALL, {"shard": "never", **ONE_EACH}, "resources.shard auto"),
        ("cpus=32,gpus=2,gpu_memory=10GB", {}, "give 9 or more such workers"),
        ("cpus=32,gpus=2,gpu_memory=2GB", {}, "or a smaller backbone"),
        ("memory=16GiB,gpus=1,gpu_memory=80GB", {}, "nodes that leave 24.6GiB or more"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_with_what_would_do(
    shapes: Path, machine: str, resources: dict[str, Any], message: str
) -> None:
    model = "opt-13b" if "gpu_memory" in machine else "opt-125m"
    with pytest.raises((PlanError, ConfigError), match=message) as refused:
        planned(study(shapes, model, resources=resources), machine)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_a_prefix_counts_in_the_memory_and_is_not_sharded(shapes: Path) -> None:
    methods = [{"kind": "prefix", "prompt_lengths": [4, 16], "max_steps": 100}]
    made = planned(study(shapes, methods=methods), LAPTOP)
    tune, read = (
        {each.what: each for each in part.memory} for part in (made.tuning[0], made.scoring[0])
    )
    pack = made.tuning[0].pack
    tuned = tune["prefixes, gradients, AdamW, best"]
    assert tuned.bytes == pack * 16 * 12 * 2 * 768 * 4 * 5
    of_rows = tune["keys and values of the rows' prefixes"]
    assert "16 vectors x 12 layers x 2 x 768" in of_rows.arithmetic
    assert "keys and values, of prefixes too" in read
    with pytest.raises(PlanError, match="cannot share opt-125m for prefix; set "):
        planned(study(shapes, methods=methods, resources={"shard": "zero3"}), LAPTOP)


def test_workers_go_only_where_they_fit(shapes: Path) -> None:
    mixed = (
        "nodes=1,cpus=32,gpus=4,gpu_memory=80GB,gpu=A100",
        "nodes=2,cpus=32,gpus=4,gpu_memory=24GB,gpu=A10G",
    )
    made = planned(study(shapes, "opt-13b", resources={"shard": "never"}), *mixed)
    tuning, scoring = made.tuning[0], made.scoring[0]
    assert (tuning.workers, tuning.sharded, scoring.replicas_max) == (4, False, 4)
    selected = {"label_selector": {"ray.io/accelerator-type": "in(A100)"}}
    assert tuning.requests == scoring.requests == selected
    assert tuning.device_memory == 80 * 10**9
    (small,) = planned(study(shapes), *mixed).scoring
    assert (small.replicas_max, small.requests) == (12, {}), "it fits everywhere"


def test_memory_limits_workers_and_is_asked_of_ray(shapes: Path) -> None:
    (scoring,) = planned(study(shapes), "cpus=8,memory=64GiB", "cpus=8,memory=2GiB").scoring
    assert scoring.requests == {"memory": total(scoring.memory)}
    assert scoring.replicas_max == 8 + int(2 * GIB * 0.7) // total(scoring.memory)
    roomy, tight = (
        planned(study(shapes), f"cpus=64,memory={memory}").tuning[0]
        for memory in ("512GiB", "24GiB")
    )
    assert roomy.workers == 15
    # Weights pass through the memory of the node, which holds three workers' at a time.
    (loading,) = planned(
        study(shapes, "opt-13b"), "cpus=32,memory=128GiB,gpus=4,gpu_memory=80GB"
    ).tuning
    assert (loading.workers, loading.requests) == (3, {"memory": total(loading.host)})
    assert tight.workers * total(tight.memory) <= 24 * GIB * 0.7


def test_nodes_that_can_still_come_count(shapes: Path) -> None:
    kind = {"count": 3, "cpus": 8, "memory": "64GiB", "gpus": 1, "gpu_memory": "24GB"}
    wanted = study(shapes, resources={"nodes": [kind]})
    there = assumed("cpus=4,memory=16GiB", "cpus=8,memory=60GiB,gpus=1,gpu_memory=24GB")
    inventory = with_autoscaled_nodes(there, wanted.resources.nodes)
    assert (len(inventory.nodes), inventory.pending) == (4, 2)
    assert "4 nodes (2 yet to come)" in str(inventory)
    tuning = plan(PreparedStudy.of(wanted), inventory).tuning[0]
    assert (tuning.workers, tuning.pending) == (3, 2)


def test_this_machine_is_read_without_ray_and_asked_for_its_dtypes_where_it_matters() -> None:
    import ray

    was_running = ray.is_initialized()
    inventory = read_inventory()
    assert inventory.cpus >= 1
    assert inventory.nodes[0].memory > GIB // 4
    assert inventory.nodes[0].cpu_bfloat16 is None
    assert read_inventory(dtypes=True).nodes[0].cpu_bfloat16 is not None
    assert ray.is_initialized() == was_running


def test_a_local_folder_is_no_place_for_several_machines(shapes: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="shared by the 2 nodes"):
        planned(study(shapes), "nodes=2,cpus=4", out=str(tmp_path))

    def nodes(*addresses: str | None) -> Inventory:
        each = (Node(cpus=1, memory=GIB, address=address) for address in addresses)
        return Inventory(nodes=tuple(each), source="made up")

    check_place(Store(tmp_path), nodes("10.0.0.1", "10.0.0.1", "10.0.0.1"))
    for several in (nodes("10.0.0.1", "10.0.0.2"), nodes("10.0.0.1", None), nodes(None, None)):
        with pytest.raises(OutputError, match="cannot be shared by the 2 nodes"):
            check_place(Store(tmp_path), several)


def cpus(*able: bool | None) -> Inventory:
    nodes = tuple(Node(cpus=4, memory=16 * GIB, cpu_bfloat16=each) for each in able)
    return Inventory(nodes=nodes, source="made up")


@pytest.mark.parametrize(
    ("inventory", "said"),
    [
        (cpus(True), "dtype bfloat16: this CPU multiplies in it"),
        (cpus(False), "dtype float32: this CPU emulates bfloat16"),
        (cpus(True, False, True), "dtype float32: the CPU of 1 of 3 nodes emulates bfloat16"),
        (cpus(True, None), "dtype float32: 1 of 2 nodes have CPUs that are not known to"),
        (assumed("nodes=2,gpus=8,gpu_memory=80GiB,gpu=A100"), "dtype bfloat16: A100 can"),
        (assumed("gpus=8,gpu_memory=80GiB"), "dtype bfloat16: assumed of GPUs whose kind is not"),
        (
            assumed("gpus=1,gpu_memory=16GiB,gpu=V100", "gpus=1,gpu_memory=80GiB,gpu=A100"),
            "dtype float32: no bfloat16 on V100; 1 of 2 nodes",
        ),
        # What a GPU says of itself counts before its kind.
        (
            Inventory((Node(cpus=4, memory=GIB, gpus=1, gpu="Quadro", bfloat16=False),), "made up"),
            "dtype float32: no bfloat16 on Quadro",
        ),
    ],
)
def test_the_dtype_is_the_safe_one_and_says_why(inventory: Inventory, said: str) -> None:
    assert str(choose(inventory, gpus=inventory.gpus > 0)).startswith(said)


def test_a_plan_decides_the_dtype_and_an_out_keeps_what_was_decided(
    shapes: Path, tmp_path: Path
) -> None:
    wanted = study(shapes, dtype="auto")
    assert wanted.undecided
    prepared = PreparedStudy.of(wanted)
    fast, slow = plan(prepared, cpus(True)), plan(prepared, cpus(False))
    assert fast.study.backbones[0].dtype == "bfloat16"
    assert slow.study.backbones[0].dtype == "float32"
    assert slow.shapes["opt-125m"].weight_bytes == 2 * fast.shapes["opt-125m"].weight_bytes
    store = Store(tmp_path / "out")
    begin(store, make_record(fast.study, {}, command="test"))
    again = plan(prepared, cpus(False), out=store.uri)
    assert (again.study, again.precision) == (fast.study, None)


def printed(*options: str) -> str:
    result = CliRunner().invoke(app, ["plan", DEMO, *options])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def parts(text: str) -> dict[str, str]:
    """The paragraphs of a plan by their first word; `tune` and `score` are stages."""
    return {part.split()[0]: part for part in text.strip().split("\n\n")}


def memory_tables(stage: str) -> list[tuple[float, float]]:
    """Of each memory table: the sum of its lines in bytes, and the sum that it prints."""
    tables, lines = [], 0.0
    for what, number, unit in re.findall(r"^    (\w+).* ([\d.]+)([KMG]?i?B)$", stage, flags=re.M):
        size = float(number) * UNITS[unit]
        if what == "together":
            tables.append((lines, size))
            lines = 0.0
        else:
            lines += size
    return tables


def test_a_machine_without_gpus_has_its_stages_with_sums_that_add_up() -> None:
    text = printed("--assume", "cpus=4,memory=16GiB")
    found = parts(text)
    assert list(found) == ["demo", "tune", "score", "speed", "together", "wall"]
    assert "1 node, 4 CPUs, 11.2GiB for workers (assumed)" in found["demo"]
    packs = "8 runs; 4 packs of up to 2 seeds, 4 workers at once; each worker 1 CPU\n"
    assert packs in found["tune"]
    assert "planted 3,240 items" in found["score"]
    assert "1 replica to start with, up to 4; each 1 CPU; " in found["score"]
    assert re.search(r"\d+ shards of \d+ rows or fewer", found["score"])
    for stage in ("tune", "score"):
        ((lines, total),) = memory_tables(found[stage])
        assert lines == pytest.approx(total, rel=1e-3)
    assert found["speed"].startswith("speed of CPU: "), "what hours reckon with"
    assert max(map(len, found["score"].splitlines())) <= 120
    same = raybias.plan(raybias.load_study(DEMO), assume=["cpus=4,memory=16GiB"])
    assert f"{same}\n" == text, "from Python as from the command line"
    assert same._repr_html_().startswith("<pre>demo on ")
    assert (
        f"together {sum(each.hours for each in same.costs.values()):,.1f} device-hours at most"
        == found["together"].strip()
    )


def test_workers_that_share_a_backbone_and_nodes_to_come_are_said_to() -> None:
    kind = "{count: 2, cpus: 4, memory: 64GiB, gpus: 2, gpu_memory: 24GiB}"
    rates = "methods.0.learning_rates=[0.1,0.01]"
    cut = "methods.0.sweep_cut={step: 20, keep: 1}"
    options = ("--set", cut)
    options += ("--set", f"resources.nodes=[{kind}]", "--set", "resources.shard=zero3")
    options += ("--set", rates, "--set", "backbones.0.dtype=auto")
    found = parts(printed(*options, "--peak-tflops", "10"))
    assert "nodes (2 yet to come)" in found["demo"], "this machine is there"
    assert found["dtype"].startswith("dtype bfloat16: ")
    assert (
        "2 runs of the sweep, of which 1 go on at step 20, then 7 runs of what it chooses; "
        in found["tune"]
    )
    assert "each worker 1 CPU and 1 GPU" in found["tune"]
    assert len(memory_tables(found["tune"])) == 2, "of the device, and of its node"
    assert "4 workers share one pack of" in found["tune"]
    assert "2 nodes of them yet to come" in found["tune"]
    assert "4 workers share the backbone" in found["score"]
    assert "gathered by all workers" in found["score"]
    assert "device-hours" in found["together"]


def test_a_plan_is_of_a_cluster_or_of_an_assumption() -> None:
    with pytest.raises(ConfigError, match="--address and --assume exclude each other; give one"):
        printed("--assume", "cpus=2", "--address", "auto")
