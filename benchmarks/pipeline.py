"""Scoring through Ray Data and Ray Serve against plain Ray actors, and a loop in one process.

All compute the same shards on the same cores, the first two from nothing: they start replicas or
actors of one thread each, which load the model, and commit files, whose rows are compared to the
bit. The loop, on all threads, has its model loaded and is set against replicas that are ready.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import labelling
import pyarrow as pa
import ray
import torch
import workload
from harness import CLOCK, Comparison, Size, timed
from ray.util import ActorPool

from raybias.engine import adapter_folder
from raybias.engine.adapters import base
from raybias.engine.adapters.vectors import SoftPromptTrainer
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

PROMPT, RUNS, ROWS = 8, 3, 64


def fill(store: Store, texts: Sequence[str], width: int) -> list[Shard]:
    """Write the items and as many random adapters as there are runs; gives back the shards."""
    count = len(texts)
    names = [f"{n:06d}" for n in range(count)]
    columns = (names, [n % 3 for n in range(count)], ["a"] * count, ["g"] * count, texts,
               names, *[[None] * count] * 2)  # fmt: skip
    table = pa.table(dict(zip(ITEMS.names, columns, strict=True)), schema=ITEMS)
    store.write_table("items/probe.parquet", table)
    listed = []
    for run in range(RUNS):
        prompt_PD = torch.randn(PROMPT, width, generator=torch.Generator().manual_seed(run)) * 0.02
        tensors = {adapter_folder.PROMPT: prompt_PD}
        base.write_folder(
            store,
            f"adapters/r{run}",
            tensors,
            file=adapter_folder.ADAPTER_WEIGHTS,
            parts=[],
            record={},
        )
        listed.append({"run_id": f"r{run}", "model": "m", "method": "soft_prompt", "dataset": "d"})
    return shards_of(listed, {"probe": count}, ROWS, OutputSpec("predictions", PREDICTIONS))


def bare_loop(reading: Reading, labeller: SoftPromptTrainer) -> None:
    """Compute the shards in one process, without files."""
    items = reading.store.read_table("items/probe.parquet")
    shapes = {adapter_folder.PROMPT: (PROMPT, labeller.backbone.width)}
    for shard in reading.todo:
        texts = items["text"].slice(shard.first_row, shard.rows).to_pylist()
        tensors = base.read_tensors(
            reading.store, f"adapters/{shard.run_id}", shapes, file=adapter_folder.ADAPTER_WEIGHTS
        )
        rows = labeller.encoder.encode(texts)
        labelling.label_logits(labeller, rows, tensors[adapter_folder.PROMPT])


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


def rounds_of(size: Size, texts: Sequence[str]) -> Iterator[tuple[float, ...]]:
    """Yield seconds of actors, Data with Serve, the loop, and Serve that is ready; one warms up."""
    threads = size.threads
    torch.set_num_threads(threads)
    place = Path(tempfile.mkdtemp())
    folder = workload.save_model(place / "model", size.shape, dtype="float32")
    backbone = workload.load(folder, dtype="float32", device="cpu")
    labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
    store = Store(place / "out")
    plan = ScorePlan(
        backbone="m", method="soft_prompt", replicas_min=1, replicas_max=threads,
        need=ResourceRequest(cpus=1, gpus=0), replica_cpus=0.75, data_cpus=0.5,
        layout=Layout(labeller.batcher.tokens_per_batch), rows_per_shard=ROWS,
        items={}, runs=0, memory=(), device_memory=0,
    )  # fmt: skip
    reading = Reading(
        name="bench",
        context=replace(plan.context(workload.spec_of(folder, "float32")), words=LABELS),
        methods=(SoftPrompt(prompt_length=PROMPT),),
        plan=plan,
        store=store,
        todo=tuple(fill(store, texts, backbone.width)),
        meter=Meter(study="bench", stage="score", model="m"),
    )
    grant = granted(threads)
    logging.getLogger("ray").setLevel(logging.ERROR)
    with connected():
        for turn in range(size.rounds + 1):
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
    texts = workload.items(None, max(256, 2 * size.items))
    found = [*rounds_of(size, texts)]
    work = f"{len(texts)} items read by {RUNS} runs on Ray"
    for first, how, peer in (
        (0, "from nothing", f"{size.threads} plain actors"),
        (2, "models loaded", f"a bare loop, {size.threads} threads"),
    ):
        ratios = tuple(each[first] / each[first + 1] for each in found)
        yield Comparison(f"{work}, {how}", "ours, as many replicas", peer, CLOCK, ratios)
