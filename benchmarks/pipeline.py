"""Scoring through Ray Data and Ray Serve against a bare loop on the same cores.

The bare loop is one process that encodes and scores the same shards, one run after another, on
all threads. Ours is what a study does: Data streams the shards through Serve replicas of one
thread each, which commit prediction files. Starting the replicas is timed apart: it is paid once
a backbone, however much there is to score.

    python benchmarks/pipeline.py --rounds 3
"""

from __future__ import annotations

import logging
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import torch
import typer
import workload
from comparison import CLOCK, Comparison, Size

from raybias.config import Backbone, Verbalizer
from raybias.engine.adapters.soft_prompt import load_soft_prompt, save_soft_prompt
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods import SoftPrompt
from raybias.methods.base import Shard
from raybias.planning.shards import shards_of
from raybias.planning.stage_plans import ScorePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import scorers
from raybias.runtime.predict.stream import score_shards
from raybias.runtime.ray_session import connected
from raybias.schema import ITEMS, LABELS, PREDICTIONS, OutputSpec
from raybias.storage import Store

PROMPT = 8


def fill(store: Store, spec: Backbone, *, texts: list[str], runs: int, width: int) -> list[Shard]:
    """Write the items and as many random adapters as there are runs; gives back the shards."""
    count = len(texts)
    names = [f"{n:06d}" for n in range(count)]
    columns = (names, [n % 3 for n in range(count)], ["a"] * count, ["g"] * count, texts,
               names, *[[None] * count] * 2)  # fmt: skip
    table = pa.table(dict(zip(ITEMS.names, columns, strict=True)), schema=ITEMS)
    store.write_table("items/probe.parquet", table)
    rows = []
    for run in range(runs):
        prompt_PD = torch.randn(PROMPT, width, generator=torch.Generator().manual_seed(run)) * 0.02
        save_soft_prompt(store, f"adapters/r{run}", prompt_PD, spec=spec, record={})
        rows.append({"run_id": f"r{run}", "model": "m", "method": "soft_prompt", "dataset": "d"})
    return shards_of(rows, {"probe": count}, 256, OutputSpec("predictions", PREDICTIONS))


def bare_loop(store: Store, scorer: LabelScorer, shards: list[Shard]) -> None:
    """Measure what the same work costs in one process, without files."""
    items = store.read_table("items/probe.parquet")
    for shard in shards:
        texts = items["text"].slice(shard.first_row, shard.rows).to_pylist()
        prompt_PD = load_soft_prompt(
            store, f"adapters/{shard.run_id}", width=scorer.backbone.width, length=PROMPT
        )
        scorer.score(scorer.backbone.encode(texts), prompts_SPD=prompt_PD[None])


def rounds_of(
    *, shape: str, dtype: str, rounds: int, items: int, runs: int, threads: int
) -> Iterator[tuple[float, float, float]]:
    """Time the bare loop, the pipeline and the replicas' start in turn, in seconds."""
    torch.set_num_threads(threads)
    place = Path(tempfile.mkdtemp())
    folder = workload.save_model(
        place / "model", shape=shape, dtype="float32", device="cpu", merges=None
    )
    spec = Backbone.model_validate({"id": str(folder), "dtype": dtype})
    backbone = workload.load(folder, dtype=dtype, device="cpu")
    scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
    store = Store(place / "out")
    texts = workload.items(None, items)
    shards = fill(store, spec, texts=texts, runs=runs, width=backbone.width)
    plan = ScorePlan(
        backbone="m", method="soft_prompt", replicas_min=threads, replicas_max=threads,
        threads=1, replica_cpus=0.75, gpus=0, data_cpus=0.5,
        tokens_per_batch=scorer.batcher.tokens_per_batch, rows_per_shard=256,
        items={}, runs=0, shards=len(shards), memory=(), device_memory=0,
    )  # fmt: skip
    meter = Meter(study="bench", stage="score", model="m")
    context = plan.context(spec, Verbalizer().words())
    method = SoftPrompt(prompt_length=PROMPT)
    logging.getLogger("ray").setLevel(logging.ERROR)

    def stream() -> None:
        list(score_shards("bench", shards, plan, store, max_failures=0, meter=meter))

    with connected():
        for turn in range(rounds):
            bare = workload.timed(lambda: bare_loop(store, scorer, shards), "cpu")
            held = scorers("bench", plan, context, [method], out=store.uri, meter=meter)
            start = workload.timed(held.__enter__, "cpu")
            ours = workload.timed(stream, "cpu")
            held.__exit__(None, None, None)
            # What is there is not scored again.
            store.delete_folder("predictions")
            print(f"round {turn}: {bare:.1f} s, {ours:.1f} s, start {start:.1f} s", file=sys.stderr)
            yield bare, ours, start
    shutil.rmtree(place)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare Ray Data and Serve with a loop in one process, on this machine's CPUs."""
    items, runs = max(256, 2 * size.items), 3
    found = rounds_of(
        shape=size.shape, dtype="float32", rounds=size.rounds, items=items, runs=runs,
        threads=size.threads,
    )  # fmt: skip
    ratios = tuple(bare / ours for bare, ours, _ in found)
    yield Comparison(
        f"{items} items read by {runs} runs on Ray", f"ours, {size.threads} Serve replicas",
        f"a bare loop, {size.threads} threads", CLOCK, ratios,
    )  # fmt: skip


def main(
    *,
    shape: workload.ShapeOption = "125m",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    rounds: Annotated[int, typer.Option(help="Of both sides in turn.")] = 3,
    items: Annotated[int, typer.Option(help="Items of the probe.")] = 1800,
    runs: Annotated[int, typer.Option(help="Adapters that read it.")] = 5,
    threads: workload.ThreadsOption = 2,
    out: workload.OutOption = None,
) -> None:
    """Time the bare loop and the pipeline in turn."""
    found = rounds_of(
        shape=shape, dtype=dtype, rounds=rounds, items=items, runs=runs, threads=threads
    )
    bare, ours, starts = zip(*found, strict=True)
    rows = items * runs
    loop, stream_s = statistics.median(bare), statistics.median(ours)
    workload.publish(
        f"Ray Data + Serve against a bare loop, OPT-{shape} shape, {dtype}, {rounds} rounds",
        [
            workload.markdown(
                [
                    ("bare loop", f"1 process, {threads} threads", loop, rows / loop, 1.0),
                    ("Data + Serve", f"{threads} replicas", stream_s, rows / stream_s,
                     loop / stream_s),
                ],
                ("side", "on", "s", "rows/s", "x bare loop"),
            ),
            f"Starting the replicas took {statistics.median(starts):.1f} s, not counted above.",
        ],
        device="cpu", peer="ray", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
