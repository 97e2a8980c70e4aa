"""Waiting rows that take the places of ended ones, against one batch after another.

Both sides are ours: the same rows and keys, and the same texts unless rounding moves a draw.
Any token of a random share of the vocabulary ends a row, so lengths are geometric, which is how
short answers of an instructed model end; with `--ends 0` all rows have the same length.

    python benchmarks/refilling.py --shape small --items 128 --threads 1
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import torch
import typer
import workload
from workload import plain

from raybias.engine.generation.decode_loop import WaitingRows
from raybias.engine.generation.generator import TextGenerator
from raybias.engine.generation.sampling import Sampling
from raybias.methods import ChainOfThought
from raybias.schema import LABELS

PEER, OURS = "batch after batch", "refilled"


def passes(model: Any, work: Callable[[], object]) -> int:
    """Count the passes that write tokens."""
    with mock.patch.object(model, "forward", wraps=model.forward) as forward:
        work()
    return forward.call_count


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 3,
    items: Annotated[int, typer.Option(help="Prompts.")] = 192,
    new: Annotated[int, typer.Option(help="Most new tokens of a row.")] = 64,
    ends: Annotated[float, typer.Option(help="Share of the tokens that end a row.")] = 0.05,
    budget: Annotated[int, typer.Option(help="Tokens of a pass over prompts.")] = 2048,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="Of both sides.")] = "float32",
    threads: workload.ThreadsOption = 2,
    out: workload.OutOption = None,
) -> None:
    """Time both sides."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=dtype, device=device, merges=None
        )
        backbone = workload.load(folder, dtype=dtype, device=device)
    texts = workload.items(None, items, attributes=("race",))
    rows = backbone.encode([plain(ChainOfThought()).first(text, LABELS) for text in texts])
    keys = [(2024, "bench", n) for n in range(len(rows))]
    drawn_V = np.random.default_rng(1).random(workload.VOCABULARY)
    sampling = replace(
        Sampling.of(backbone.model, temperature=0.8),
        eos_ids=tuple(np.flatnonzero(drawn_V < ends).tolist()),
    )
    generator = TextGenerator(backbone)
    generator.batcher.tokens_per_batch = budget

    def refilled(_turn: int = 0) -> list[Any]:
        return generator.generate(rows, keys, sampling=sampling, max_new_tokens=new)

    def batched(_turn: int = 0) -> list[Any]:
        with mock.patch.object(WaitingRows, "__len__", return_value=0):
            return refilled()

    sides = {PEER: batched, OURS: refilled}
    pairs = zip(batched(), refilled(), strict=True)
    alike = sum(one.tokens == other.tokens for one, other in pairs)
    written = [len(each.tokens) for each in refilled()]
    timings = workload.interleave(sides, rounds=rounds, device=device)
    table = [
        (name, timings.median(name), timings.busy(name), timings.ratio(PEER, name),
         timings.busy_ratio(PEER, name), passes(backbone.model, work))
        for name, work in sides.items()
    ]  # fmt: skip
    headers = ("side", "s", "processor s", "x peer", "x peer, processor", "passes")
    lengths = np.percentile(written, (10, 50, 90))
    note = (
        f"{len(rows)} rows of {statistics.mean(map(len, rows)):.0f} tokens, at most {new} new"
        f" ones; {statistics.mean(written):.1f} written on average, deciles {lengths[0]:.0f},"
        f" {lengths[1]:.0f} and {lengths[2]:.0f} (first, fifth, ninth). {alike} texts are alike."
    )
    workload.publish(
        f"Refilled batches, OPT-{shape} shape, {rounds} rounds",
        [f"{workload.markdown(table, headers)}\n\n{note}"],
        device=device, peer="tokenizers", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
