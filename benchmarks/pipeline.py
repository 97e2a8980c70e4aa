"""Scoring through Ray Data and Ray Serve against plain Ray actors, and a loop in one process.

All three compute the same shards on the same cores, and the first two from nothing: they start
replicas or actors of one thread each, which load the model, and commit files, whose rows are
compared to the bit. The loop, on all threads, has its model loaded and writes no files; it is set
against Data and Serve with replicas that are ready.

    python benchmarks/pipeline.py --rounds 5 --items 256 --runs 4 --rows 128
    python benchmarks/pipeline.py --rounds 5 --items 256 --runs 3 --rows 64
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import labelling
import numpy as np
import pyarrow as pa
import ray
import torch
import typer
import workload
from harness import CLOCK, Comparison, OutOption, Size, markdown, publish, timed
from ray.util import ActorPool

from raybias.config.parts import Verbalizer
from raybias.engine.adapters import base
from raybias.engine.adapters.base import SoftPromptTrainer
from raybias.engine.encoder import verbalizer_ids
from raybias.methods import SoftPrompt
from raybias.methods.base import PARTS, Shard
from raybias.planning.machine import Layout, ResourceRequest
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.tasks import Task
from raybias.planning.workload import shards_of
from raybias.runtime.graph import Grant
from raybias.runtime.predict.shards import Reading, ShardWorker
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Meter
from raybias.runtime.ray_session import connected
from raybias.schema import ITEMS, LABELS, PREDICTIONS, OutputSpec
from raybias.storage import Store

PROMPT = 8
#: What a round times, in this order.
SIDES = (
    "plain actors, from nothing", "Data + Serve, from nothing", "bare loop, loaded",
    "Data + Serve, loaded",
)  # fmt: skip


def fill(store: Store, *, texts: list[str], runs: int, width: int, rows: int) -> list[Shard]:
    """Write the items and as many random adapters as there are runs; gives back the shards."""
    count = len(texts)
    names = [f"{n:06d}" for n in range(count)]
    columns = (names, [n % 3 for n in range(count)], ["a"] * count, ["g"] * count, texts,
               names, *[[None] * count] * 2)  # fmt: skip
    table = pa.table(dict(zip(ITEMS.names, columns, strict=True)), schema=ITEMS)
    store.write_table("items/probe.parquet", table)
    listed = []
    for run in range(runs):
        prompt_PD = torch.randn(PROMPT, width, generator=torch.Generator().manual_seed(run)) * 0.02
        tensors = {base.PROMPT: prompt_PD}
        base.write_folder(
            store, f"adapters/r{run}", tensors, file=base.ADAPTER, parts=[], record={}
        )
        listed.append({"run_id": f"r{run}", "model": "m", "method": "soft_prompt", "dataset": "d"})
    return shards_of(listed, {"probe": count}, rows, OutputSpec("predictions", PREDICTIONS))


def bare_loop(reading: Reading, labeller: SoftPromptTrainer) -> None:
    """Compute the shards in one process, without files."""
    items = reading.store.read_table("items/probe.parquet")
    shapes = {base.PROMPT: (PROMPT, labeller.backbone.width)}
    for shard in reading.todo:
        texts = items["text"].slice(shard.first_row, shard.rows).to_pylist()
        tensors = base.read_tensors(
            reading.store, f"adapters/{shard.run_id}", shapes, file=base.ADAPTER
        )
        rows = labeller.encoder.encode(texts)
        labelling.label_logits(labeller, rows, tensors[base.PROMPT])


def plain_actors(reading: Reading, count: int) -> None:
    """Compute the shards with actors that are asked for them as they become free."""
    actor = ray.remote(num_cpus=0.75)(ShardWorker)
    context = ray.put(reading.context)
    workers = [actor.remote(context, reading.methods, reading.store) for _ in range(count)]
    items = ray.put(reading.store.read_table("items/probe.parquet"))
    for _ in ActorPool(workers).map_unordered(
        lambda each, shard: each.compute.remote(shard, items), reading.todo
    ):
        pass
    for each in workers:
        ray.kill(each)


def granted(slots: int) -> Grant:
    """Return what a study's graph grants a reading."""
    task = Task(key="read", kind="read", backbone="m", seconds=1.0)
    return Grant(task, slots, slots, {}, frozenset(), threading.Event(), lambda task: None)


def taken(store: Store) -> dict[str, pa.Table]:
    """Read the files that were made, and delete them, so that they are made again."""
    made = {name: store.read_table(name) for name in store.files(PARTS, recursive=True)}
    store.delete_folder(PARTS)
    return made


def rounds_of(
    shape: str, *, rounds: int, items: int, runs: int, rows: int, threads: int
) -> Iterator[tuple[float, ...]]:
    """Yield the wall seconds of all `SIDES` in turn, after one round that only warms up."""
    torch.set_num_threads(threads)
    place = Path(tempfile.mkdtemp())
    folder = workload.save_model(place / "model", shape, dtype="float32")
    backbone = workload.load(folder, dtype="float32", device="cpu")
    labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
    store, texts = Store(place / "out"), workload.items(None, items)
    plan = ScorePlan(
        backbone="m", method="soft_prompt", replicas_min=1, replicas_max=threads,
        need=ResourceRequest(cpus=1, gpus=0), replica_cpus=0.75, data_cpus=0.5,
        layout=Layout(labeller.batcher.tokens_per_batch), rows_per_shard=rows,
        items={}, runs=0, memory=(), device_memory=0,
    )  # fmt: skip
    reading = Reading(
        name="bench",
        context=plan.context(workload.spec_of(folder, "float32"), Verbalizer().words()),
        methods=(SoftPrompt(prompt_length=PROMPT),),
        plan=plan,
        store=store,
        todo=tuple(fill(store, texts=texts, runs=runs, width=backbone.width, rows=rows)),
        meter=Meter(study="bench", stage="score", model="m"),
    )
    grant = granted(threads)
    logging.getLogger("ray").setLevel(logging.ERROR)
    with connected():
        for turn in range(rounds + 1):
            bare = timed(lambda: bare_loop(reading, labeller), "cpu")
            actors = timed(lambda: plain_actors(reading, threads), "cpu")
            theirs = taken(store)
            replicas = Replicas(f"bench-{turn}", reading)

            def stream(replicas: Replicas) -> tuple[float, dict[str, pa.Table]]:
                spent = timed(
                    lambda: replicas.read(reading, grant, lambda *_, **__: None, max_failures=0),
                    "cpu",
                )
                return spent, taken(store)

            with replicas.held(grant):
                (serve, ours), (ready, again) = stream(replicas), stream(replicas)
            replicas.close()
            if len(theirs) != len(reading.todo) or not theirs == ours == again:
                raise RuntimeError("the rows differ")
            seconds = actors, serve, bare, ready
            print(f"round {turn}: {seconds}", file=sys.stderr)
            if turn:
                yield seconds
    shutil.rmtree(place)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare Ray Data and Serve with plain actors and a loop, on this machine's CPUs."""
    items = max(256, 2 * size.items)
    found = [
        *rounds_of(
            size.shape, rounds=size.rounds, items=items, runs=3, rows=64, threads=size.threads
        )
    ]
    work, ours = f"{items} items read by 3 runs on Ray", f"ours, {size.threads} Serve replicas"
    for first, how, peer in (
        (0, "from nothing", f"{size.threads} plain actors"),
        (2, "models loaded", f"a bare loop, {size.threads} threads"),
    ):
        ratios = tuple(each[first] / each[first + 1] for each in found)
        yield Comparison(f"{work}, {how}", ours, peer, CLOCK, ratios)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="Of all sides in turn.")] = 5,
    items: Annotated[int, typer.Option(help="Items of the probe.")] = 256,
    runs: Annotated[int, typer.Option(help="Adapters that read it.")] = 4,
    rows: Annotated[int, typer.Option(help="Items of a shard.")] = 128,
    threads: Annotated[int, typer.Option(help="CPU threads of either side.")] = 2,
    out: OutOption = None,
) -> None:
    """Time plain actors, the pipeline and the bare loop in turn."""
    found = np.array(
        [*rounds_of("125m", rounds=rounds, items=items, runs=runs, rows=rows, threads=threads)]
    )
    middle = np.median(found, axis=0)
    over = np.median(found[:, 1] / found[:, 0])
    share = np.median(found[:, 2] / found[:, 3])
    publish(
        f"Ray Data + Serve against plain actors and a bare loop, OPT-125m shape, float32,"
        f" {rounds} rounds",
        [
            markdown([*zip(SIDES, middle, items * runs / middle, strict=True)],
                     (f"side, on {threads} cores", "s", "rows/s")),
            f"Median of the rounds' ratios: from nothing, Data + Serve takes {over:.2f} times the"
            f" wall time of plain actors (goal: at most 1.25); loaded, it has {share:.2f} of the"
            " bare loop's pace (goal: at least 0.6). The rows are equal to the bit.",
        ],
        device="cpu", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
