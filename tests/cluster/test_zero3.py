"""ZeRO-3: weights are sent once per step, and readers give what a whole backbone gives (60 s)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
import yaml
from polars.testing import assert_frame_equal
from safetensors.torch import load_file, save_file
from torch import multiprocessing

from raybias.config import Backbone, parse_study
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.engine.memory import total
from raybias.errors import ModelError
from raybias.methods import Lora, SoftPrompt
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.schema import LABELS
from support import backbones, prompting, question_data, studies
from support.commands import free_port

pytestmark = pytest.mark.cluster

PACKS = (1, 2, 4)
STEPS = 6


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backbones.save("opt", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def ranks(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two ranks that share a backbone counted, tuned and refused."""
    folder = tmp_path_factory.mktemp("ranks")
    half = shutil.copytree(tiny_model, folder / "half")
    held = load_file(half / "model.safetensors")
    kept = {name: tensor for name, tensor in held.items() if ".layers.1." not in name}
    save_file(kept, half / "model.safetensors", metadata={"format": "pt"})
    arguments = (free_port(), str(tiny_model), str(half), str(folder))
    multiprocessing.spawn(_rank, args=arguments, nprocs=2)
    return folder


def test_gathered_weight_bytes_per_seed_step_fall_as_the_pack_grows(ranks: Path) -> None:
    counted = torch.load(ranks / "counted.pt")
    whole = counted["weight_bytes"]
    assert counted["held"] <= 0.51 * whole  # each rank keeps its half
    per_seed_step = [counted[size] / (size * STEPS) for size in PACKS]
    assert per_seed_step[0] == pytest.approx(2 * whole, rel=0.6)  # forward and backward
    for size, bytes_each in zip(PACKS, per_seed_step, strict=True):
        assert bytes_each * size == pytest.approx(per_seed_step[0], rel=0.02)


def test_a_sharded_classifier_gives_the_same_factors(tiny_model: Path, ranks: Path) -> None:
    sharded = torch.load(ranks / "factors.pt")
    whole = _factors(tiny_model, None)
    assert sharded.keys() == whole.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(sharded[name], tensor, atol=1e-4, rtol=0)


def test_every_rank_refuses_a_checkpoint_that_lacks_weights(tiny_model: Path, ranks: Path) -> None:
    held, kept = (
        load_file(folder / "model.safetensors") for folder in (tiny_model, ranks / "half")
    )
    one, two = ((ranks / f"{rank}.txt").read_text() for rank in (0, 1))
    assert one == two
    assert f"({len(held) - len(kept)} of the {len(held)} weights that a causal" in one


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_ranks_that_share_a_backbone_answer_as_whole_ones_do(tmp_path: Path, kind: str) -> None:
    """Five shards for two ranks, and answers of any length: the ranks pass unequally often."""
    if kind == "labels":
        study = studies.save(tmp_path, "zero_shot", "cot", "soft_prompt")
    else:
        study = studies.pairs(tmp_path)
        prompting.save("opt", tmp_path / "tiny")
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    studies.run(study, whole, *studies.NO_RAY)
    changes = ("shard=zero3", "train_workers=2", "rows_per_shard=7")
    options = [word for change in changes for word in ("--set", f"resources.{change}")]
    studies.run(study, shared, *options)
    folders = {"labels": ["predictions"], "pairs": ["pair_scores", "coreference"]}[kind]
    for folder in folders:
        found, expected = (question_data.answers(out, folder) for out in (shared, whole))
        assert_frame_equal(found, expected, abs_tol=1e-6, rel_tol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_packs_that_share_a_backbone_in_turn_have_the_runs_of_one_pack(tmp_path: Path) -> None:
    """Runs of which only some fit beside the backbone are tuned in packs, one after another."""
    study = studies.save(tmp_path, "soft_prompt")
    content = yaml.safe_load(study.read_text())
    content["methods"][0] |= {"seeds": [1, 2, 3], "keep": 3}
    content["resources"] |= {"shard": "zero3", "train_workers": 2, "tokens_per_batch": 512}
    whole = PreparedStudy.of(parse_study(content, folder=tmp_path))
    (tuning,) = plan(whole, assumed("cpus=2,memory=24GiB")).tuning
    assert tuning.packs["final"] == 1
    study.write_text(yaml.safe_dump(content))
    studies.run(study, tmp_path / "one")
    content["resources"]["memory_per_device"] = f"{total(tuning.memory) - 1}B"
    study.write_text(yaml.safe_dump(content))
    (tuning,) = plan(
        PreparedStudy.of(parse_study(content, folder=tmp_path)), assumed("cpus=2,memory=24GiB")
    ).tuning
    assert tuning.packs["final"] > 1
    studies.run(study, tmp_path / "several")
    one, several = (
        pl.read_parquet(tmp_path / out / "runs.parquet").sort("run_id").drop("seconds")
        for out in ("one", "several")
    )
    assert_frame_equal(one, several, abs_tol=1e-6)
    assert not [*(tmp_path / "several/train").rglob("*.safetensors")]


def _factors(model: Path | str, sharding: Any) -> dict[str, torch.Tensor]:
    """The factors and head of the second of two runs, after a few steps."""
    method = Lora(rank=2, seeds=(1, 2), keep=1, batch_size=4, eval_every=3, max_steps=STEPS)
    tuner = _tuner(method, _trainer(method, model, sharding), 2)
    while tuner.advance():
        pass
    return dict(tuner.runs["s2"].weights)


def _trainer(method: Any, model: Path | str, sharding: Any) -> Any:
    spec = Backbone(id=str(model), dtype="float32", bos="prepend")
    return method.trainer(ModelContext(spec, LABELS, Execution(sharding=sharding)))


def _tuner(method: Any, trainer: Any, seeds: int) -> Any:
    """A pack of runs s1, s2, ... on 24 sentences."""
    from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial

    rows = tuple((1, 5 + n % 30, 6 + n % 7, *[7] * (n % 5)) for n in range(24))
    tokens = TokenSet(rows=rows, labels=tuple(n % 3 for n in range(24)))
    units = [Trial(f"s{n}", n, 0.01, "final", 0.01, 5) for n in range(1, seeds + 1)]
    return PackedTuner(trainer, method.recipe, units, train=tokens, validation=tokens)


def _rank(rank: int, port: int, model: str, half: str, out: str) -> None:
    """Do on a sharded backbone all that the tests of two ranks look at."""
    # Make this process a rank of two.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    from raybias.runtime.worker_group import Zero3

    sharding = Zero3("float32", torch.device("cpu"))
    with pytest.raises(ModelError, match="its checkpoint lacks") as refused:
        _trainer(SoftPrompt(prompt_length=2), half, sharding)
    (Path(out) / f"{rank}.txt").write_text(str(refused.value))
    found = {"factors": _factors(model, sharding), "counted": _gathered(model, sharding)}
    if rank == 0:
        for name, each in found.items():
            torch.save(each, Path(out) / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _gathered(model: str, sharding: Any) -> dict[Any, float]:
    """The bytes that tuning packs of growing size gathers, and those of the weights."""
    counter = _count_gathers()
    method = SoftPrompt(
        prompt_length=2, seeds=(1,), keep=1, batch_size=4, eval_every=STEPS, max_steps=STEPS
    )
    trainer = _trainer(method, model, sharding)
    parameters = list(trainer.backbone.model.parameters())
    counted: dict[Any, float] = {
        "weight_bytes": sum(p.ds_numel * 4 for p in parameters),
        "held": sum(p.ds_tensor.numel() * 4 for p in parameters),
    }
    # In its first pass DeepSpeed records what is used when, and gathers more.
    for size in (PACKS[0], *PACKS):
        tuner = _tuner(method, trainer, size)
        tuner._evaluate = lambda runs: []  # what a step costs is asked, not an evaluation
        before = counter()
        tuner.advance()
        counted[size] = counter() - before
    return counted


def _count_gathers() -> Callable[[], int]:
    """Count the bytes that DeepSpeed gathers from now on."""
    from deepspeed import comm

    total = 0

    def counting(gather: Callable[..., Any]) -> Callable[..., Any]:
        def counted(output: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            nonlocal total
            total += output.numel() * output.element_size()
            return gather(output, *arguments, **options)

        return counted

    comm.allgather_fn = counting(comm.allgather_fn)
    comm.all_gather_into_tensor = counting(comm.all_gather_into_tensor)
    return lambda: total
