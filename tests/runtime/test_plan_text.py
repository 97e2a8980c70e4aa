"""What `raybias plan` prints of the embedded study: its stages, sums that add up, nodes to come."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from typer.testing import CliRunner

import raybias
from raybias.cli import app
from raybias.errors import ConfigError

DEMO = str(files("raybias") / "assets" / "demo.yaml")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


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
    assert f"together {same.costs.hours:,.1f} device-hours at most" == found["together"].strip()


def test_gpus_bring_a_dtype_their_nodes_memory_and_hours() -> None:
    gpus = "nodes=2,cpus=8,memory=64GiB,gpus=2,gpu_memory=80GiB,gpu=A100"
    rates = "methods.0.learning_rates=[0.1,0.01]"
    found = parts(printed("--assume", gpus, "--set", rates, "--set", "backbones.0.dtype=auto"))
    assert found["dtype"].startswith("dtype bfloat16: A100")
    assert "2 runs of the sweep, then 7 runs of what it chooses; " in found["tune"]
    assert "each worker 1 CPU and 1 GPU" in found["tune"]
    assert len(memory_tables(found["tune"])) == 2, "of the device, and of its node"
    assert re.fullmatch(r"together [\d.]+ device-hours at most", found["together"])


def test_workers_that_share_a_backbone_and_nodes_to_come_are_said_to() -> None:
    kind = "{count: 2, cpus: 4, memory: 64GiB, gpus: 2, gpu_memory: 24GiB}"
    options = ("--set", f"resources.nodes=[{kind}]", "--set", "resources.shard=zero3")
    found = parts(printed(*options, "--peak-tflops", "10"))
    assert "nodes (2 yet to come)" in found["demo"], "this machine is there"
    assert "4 workers share one pack of 8 seeds; each worker 1 CPU and 1 GPU" in found["tune"]
    assert "2 nodes of them yet to come" in found["tune"]
    assert "4 workers share the backbone" in found["score"]
    assert "gathered by all workers" in found["score"]
    assert "device-hours" in found["together"]


def test_a_plan_is_of_a_cluster_or_of_an_assumption() -> None:
    with pytest.raises(ConfigError, match="--address and --assume exclude each other; give one"):
        printed("--assume", "cpus=2", "--address", "auto")
