"""ZeRO-3: weights are sent once per step, and readers give what a whole backbone gives (60 s)."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from polars.testing import assert_frame_equal
from safetensors.torch import load_file, save_file
from torch import multiprocessing

from raybias.config import Backbone, load_study
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.errors import ModelError
from raybias.methods import Lora, PairScore, SoftPrompt, ZeroShot
from raybias.planning.prepared import fit_methods
from raybias.planning.workload import shards_of
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.worker import ShardWorker, read_mine
from raybias.runtime.study import run_study
from raybias.runtime.workers import Reading
from raybias.schema import ITEMS, LABELS, PAIRS
from raybias.storage import Store
from support.tiny import save_study

pytestmark = pytest.mark.cluster

PACKS = (1, 2, 4)
STEPS = 6


@pytest.fixture(scope="module")
def ranks(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two ranks that share a backbone counted, tuned and refused."""
    folder = tmp_path_factory.mktemp("ranks")
    half = shutil.copytree(tiny_model, folder / "half")
    held = load_file(half / "model.safetensors")
    kept = {name: tensor for name, tensor in held.items() if ".layers.1." not in name}
    save_file(kept, half / "model.safetensors", metadata={"format": "pt"})
    _spawn(_rank, str(tiny_model), str(half), str(folder))
    return folder


def test_gathered_weight_bytes_per_seed_step_fall_as_the_pack_grows(ranks: Path) -> None:
    counted = torch.load(ranks / "counted.pt")
    whole = counted["weight_bytes"]
    assert counted["held"] <= 0.51 * whole  # each rank keeps its half
    per_seed_step = [counted[size] / (size * STEPS) for size in PACKS]
    print({size: round(b / whole, 3) for size, b in zip(PACKS, per_seed_step, strict=True)})
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
def test_ranks_that_share_a_backbone_answer_as_whole_ones_do(
    tiny_model: Path, tmp_path: Path
) -> None:
    # Five shards for two ranks, and answers of any length: the ranks pass unequally often.
    readings = [*_readings(tiny_model, tmp_path)]
    for reading in readings:
        store = reading.store
        whole = ShardWorker(reading.context, reading.methods, store)
        for shard in reading.todo:
            whole.compute(shard, store.read_table(f"items/{shard.probe}.parquet"))
            store.write_bytes(f"whole/{shard.file}", store.read_bytes(shard.file))
            store.delete(shard.file)
    _spawn(_reading_rank, readings)
    for reading in readings:
        store = reading.store
        for shard in reading.todo:
            found, expected = (
                pl.DataFrame(store.read_table(name)) for name in (shard.file, f"whole/{shard.file}")
            )
            assert_frame_equal(found, expected, abs_tol=1e-4, rel_tol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_study_is_read_by_workers_that_share_its_backbone(tmp_path: Path) -> None:
    changes = ("resources.shard=zero3", "resources.train_workers=2")
    method = "methods=[{kind: zero_shot, seeds: [7]}]"
    study = load_study(save_study(tmp_path, items=48), overrides=(method, *changes))
    run_study(study, tmp_path / "out")
    store, spec = Store(tmp_path / "out"), study.backbones[0]
    # As the study has it: the room for answers depends on the form of prompts.
    (fitted,) = fit_methods(study).methods
    runs, items = (store.read_table(name) for name in ("runs.parquet", "items/mine.parquet"))
    for shard in shards_of(runs.to_pylist(), {"mine": 48}, 48, fitted.output()):
        found = pl.DataFrame(store.read_table(shard.file))
        ShardWorker(ModelContext(spec, LABELS), [fitted], store).compute(shard, items)
        expected = pl.DataFrame(store.read_table(shard.file))
        assert_frame_equal(found, expected, abs_tol=1e-4, rel_tol=0)


def _readings(model: Path, out: Path) -> Iterator[Reading]:
    """A method that writes, one that compares pairs, and one that was tuned."""
    store, words = Store(out), [f"w{n}" for n in range(60)]
    texts = [" ".join(words[(3 * n + k) % 60] for k in range(1 + n % 7)) for n in range(19)]
    items = [
        {**dict.fromkeys(ITEMS.names), "item_id": f"i{n}", "text": text, "label": 0}
        for n, text in enumerate(texts)
    ]
    pairs = [
        {**dict.fromkeys(PAIRS.names, ""), "sent_more": text, "sent_less": f"w5 {text}"}
        for text in texts
    ]
    store.write_table("items/mine.parquet", pa.Table.from_pylist(items, ITEMS))
    kept = [{**pair, "kept": True} for pair in pairs]
    store.write_table("items/pairs.parquet", pa.Table.from_pylist(kept, PAIRS))
    store.write_text("prompts/r.json", json.dumps({"run_id": "r", "seed": 3, "shots": []}))
    spec = Backbone(id=str(model), dtype="float32", bos="prepend")
    prompt = SoftPrompt(prompt_length=2)
    trainer = prompt.trainer(ModelContext(spec, LABELS))
    trainer.save(store, "adapters/r", trainer.init_weights(5), {})
    for method, probe in (
        (ZeroShot(answer_tokens=9), "mine"),
        (PairScore(scores=("prepend", "sum")), "pairs"),
        (prompt, "mine"),
    ):
        run = {"run_id": "r", "model": "tiny", "method": method.kind, "dataset": "none"}
        stored = replace(method.output(), folder=method.kind)
        shards = shards_of([run], {probe: len(texts)}, 4, stored)
        yield Reading(
            name="reading",
            context=ModelContext(spec, LABELS, Execution(256)),
            methods=(method,),
            plan=cast("Any", None),
            store=store,
            todo=tuple(shards),
            meter=Meter(study="s", stage="score", model="tiny"),
        )


def _reading_rank(rank: int, port: int, readings: list[Reading]) -> None:
    _join(rank, port)
    for reading in readings:
        done = [*read_mine(reading, torch.device("cpu"))]
        assert len(done) == len(reading.todo[rank::2])
    dist.destroy_process_group()


def _factors(model: Path | str, sharding: Any) -> dict[str, torch.Tensor]:
    """The factors and head of the second of two runs, after a few steps."""
    from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial

    method = Lora(rank=2, seeds=(1, 2), keep=1, batch_size=4, eval_every=3, max_steps=STEPS)
    spec = Backbone(id=str(model), dtype="float32", bos="prepend")
    trainer = method.trainer(ModelContext(spec, LABELS, Execution(sharding=sharding)))
    rows = tuple((1, 5 + n % 30, 6 + n % 7, *[7] * (n % 5)) for n in range(24))
    tokens = TokenSet(rows=rows, labels=tuple(n % 3 for n in range(24)))
    units = [Trial(f"s{seed}", seed, 0.01, "final", 0.01, 5) for seed in method.seeds]
    tuner = PackedTuner(trainer, method.recipe, units, train=tokens, validation=tokens)
    while not tuner.done:
        tuner.advance()
    return dict(tuner.runs["s2"].weights)


def _spawn(work: Callable[..., None], *arguments: Any) -> None:
    """Do `work` in two processes that can join each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, args=(port, *arguments), nprocs=2)


def _rank(rank: int, port: int, model: str, half: str, out: str) -> None:
    """Do on a sharded backbone all that the tests of two ranks look at."""
    _join(rank, port)
    from raybias.runtime.zero3 import Zero3

    sharding = Zero3("float32", torch.device("cpu"))
    spec = Backbone(id=half, dtype="float32", bos="prepend")
    with pytest.raises(ModelError, match="its checkpoint lacks") as refused:
        SoftPrompt(prompt_length=2).trainer(
            ModelContext(spec, LABELS, Execution(sharding=sharding))
        )
    (Path(out) / f"{rank}.txt").write_text(str(refused.value))
    found = {"factors": _factors(model, sharding), "counted": _gathered(model, sharding)}
    if rank == 0:
        for name, each in found.items():
            torch.save(each, Path(out) / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _gathered(model: str, sharding: Any) -> dict[Any, float]:
    """The bytes that tuning packs of growing size gathers, and those of the weights."""
    from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial

    spec = Backbone(id=model, dtype="float32", bos="prepend")
    counter = _count_gathers()
    rows = tuple((1, 5 + n % 30, 6 + n % 7, 7) for n in range(24))
    tokens = TokenSet(rows=rows, labels=tuple(n % 3 for n in range(24)))
    method = SoftPrompt(
        prompt_length=2, seeds=(1,), keep=1, batch_size=4, eval_every=STEPS, max_steps=STEPS
    )
    trainer = method.trainer(ModelContext(spec, LABELS, Execution(sharding=sharding)))
    parameters = list(trainer.scorer.backbone.model.parameters())
    counted: dict[Any, float] = {
        "weight_bytes": sum(p.ds_numel * 4 for p in parameters),
        "held": sum(p.ds_tensor.numel() * 4 for p in parameters),
    }
    # In its first pass DeepSpeed records what is used when, and gathers more.
    for size in (PACKS[0], *PACKS):
        units = [Trial(f"s{seed}", seed, 0.01, "final", 0.01, 5) for seed in range(size)]
        tuner = PackedTuner(trainer, method.recipe, units, train=tokens, validation=tokens)
        tuner._evaluate = lambda runs: []  # what a step costs is asked, not an evaluation
        before = counter()
        tuner.advance()
        counted[size] = counter() - before
    return counted


def _join(rank: int, port: int) -> None:
    """Make this process a rank of two."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)


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
