"""A plan prints itself, from Python as from the command line."""

from __future__ import annotations

from importlib.resources import as_file, files

import pytest
from typer.testing import CliRunner

import raybias
from raybias.cli import app

NODES = ("nodes=2,cpus=4,memory=16GiB", "cpus=8,memory=64GiB,gpus=1,gpu_memory=80GiB,gpu=A100")


@pytest.mark.long
@pytest.mark.parametrize("assume", [NODES[:1], NODES[1:]])
def test_a_plan_prints_itself_as_the_command_does(assume: tuple[str, ...]) -> None:
    with as_file(files("raybias") / "assets/demo.yaml") as path:
        planned = raybias.plan(raybias.load_study(path), assume=assume, peak_tflops=1)
        options = [word for nodes in assume for word in ("--assume", nodes)]
        command = ["plan", str(path), *options, "--peak-tflops", "1"]
        printed = CliRunner().invoke(app, command).output
    assert f"{planned}\n" == printed
    assert planned._repr_html_().startswith("<pre>demo on ")
    for part in ("tune planted on planted (soft_prompt)", "score with planted", "costs at most"):
        assert part in printed
    assert f"together {planned.costs.hours:,.1f} device-hours at most" in printed
    workers = planned.plan.tune("planted", "planted", "soft_prompt").workers
    assert f"{workers} worker" in printed
    assert ("and of its node's memory" in printed) == ("gpus=1" in assume[0])


def test_a_cluster_and_assumed_nodes_exclude_each_other() -> None:
    with (
        as_file(files("raybias") / "assets/demo.yaml") as path,
        pytest.raises(raybias.BadInput, match="--address and --assume exclude each other"),
    ):
        raybias.plan(raybias.load_study(path), address="auto", assume=NODES)
