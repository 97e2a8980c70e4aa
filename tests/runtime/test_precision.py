"""dtype auto: the choice by hardware alone, and that an OUT keeps it (5 s)."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import OPTConfig

from raybias.config import parse_study
from raybias.planning.inventory import Inventory, Node, assumed, choose
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.runtime.inventory import read_inventory
from raybias.storage import Store
from raybias.study_record import begin, make_record
from support.words import word_tokenizer


def cpus(*able: bool | None) -> Inventory:
    nodes = tuple(Node(cpus=4, memory=16 * 2**30, cpu_bfloat16=each) for each in able)
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
    ],
)
def test_the_choice_is_the_safe_one_and_says_why(inventory: Inventory, said: str) -> None:
    assert str(choose(inventory, gpus=inventory.gpus > 0)).startswith(said)


def test_what_a_gpu_says_of_itself_counts_before_its_kind() -> None:
    node = Node(cpus=4, memory=2**30, gpus=1, gpu="Quadro", bfloat16=False)
    assert choose(Inventory((node,), "made up"), gpus=True).dtype == "float32"


def test_this_machine_is_asked_where_it_matters() -> None:
    assert read_inventory().nodes[0].cpu_bfloat16 is None
    assert read_inventory(dtypes=True).nodes[0].cpu_bfloat16 is not None


def test_a_plan_decides_and_an_out_keeps_what_was_decided(tmp_path: Path) -> None:
    OPTConfig().save_pretrained(tmp_path / "opt")
    word_tokenizer(["<s>", "a"], unknown="a", bos_token="<s>").save_pretrained(tmp_path / "opt")
    (tmp_path / "probe.csv").write_text("text,label,attribute,group\na,0,age,old\nb,1,age,young\n")
    study = parse_study(
        {
            "name": "auto",
            "backbones": [{"id": str(tmp_path / "opt")}],
            "methods": [{"kind": "zero_shot", "template": "{text}"}],
            "probes": [{"source": "file", "data": str(tmp_path / "probe.csv")}],
        }
    )
    assert study.undecided
    prepared = PreparedStudy.of(study)
    fast, slow = plan(prepared, cpus(True)), plan(prepared, cpus(False))
    assert fast.decided.backbones[0].dtype == "bfloat16"
    assert slow.decided.backbones[0].dtype == "float32"
    assert slow.shapes["opt"].weight_bytes == 2 * fast.shapes["opt"].weight_bytes
    store = Store(tmp_path / "out")
    begin(store, make_record(fast.decided, {}, command="test"))
    again = plan(prepared, cpus(False), out=store.uri)
    assert (again.decided, again.precision) == (fast.decided, None)
