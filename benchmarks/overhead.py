"""What the host does beside torch: in a step of a pack, and for a shard of predictions.

A step is the real `PackedTuner`'s on a random OPT so small that little but bookkeeping is left. The
share of its time in which torch's profiler sees no operator, forward or backward, is the host's at
most, since the profiler's own work counts there. A shard is what a replica does for one beside the
model: rows to texts, rows of predictions, and the file. Times are of this process's processor.

    python benchmarks/overhead.py --rounds 5
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import torch
import tuning
import typer
import workload
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, OPTConfig

from raybias.engine.adapters.tuning import TokenSet
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods.prediction import Labelling, Shard, label_shard
from raybias.runtime.progress import Done, Pace
from raybias.schema import LABELS
from raybias.storage import Store

PACKS = (1, 5, 15)
STEP_HEADS = ("runs", "step, ms", "beside operators at most, ms", "a run, ms")
ROWS = (128, 512, 2048, 8192)
#: Shards a second that a driver is told of.
RATES = (10, 46, 200)
#: Steps, or shards, of one measurement.
_EACH = 5


def save_model(folder: Path) -> None:
    """Save a random OPT of width 32 with two layers."""
    config = OPTConfig(
        vocab_size=workload.VOCABULARY, hidden_size=32, word_embed_proj_dim=32, ffn_dim=128,
        num_hidden_layers=2, num_attention_heads=1, max_position_embeddings=workload.CONTEXT,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    workload.tokenizer(None).save_pretrained(folder)


def step(tuner: Any) -> tuple[float, float]:
    """Milliseconds of processor time of a step, and those beside operators."""
    tuner.advance()
    begun = time.process_time()
    for _ in range(_EACH):
        tuner.advance()
    whole = time.process_time() - begun
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        begun = time.perf_counter()
        for _ in range(_EACH):
            tuner.advance()
        watching = time.perf_counter() - begun
    inside = sum(each.self_cpu_time_total for each in watched.key_averages()) / 1e6
    return 1e3 * whole / _EACH, 1e3 * whole * max(0.0, 1 - inside / watching) / _EACH


class Constant:
    """A predictor without a model."""

    def label(self, run: None, item_ids: list[str], texts: list[str]) -> Labelling:
        """Return the same label for all."""
        count = len(texts)
        return Labelling(
            logits=np.zeros((count, 3), np.float32), labels=[0] * count, parsed=[True] * count,
            texts=[None] * count, tokens=count,
        )  # fmt: skip


def shard(store: Store, rows: int) -> float:
    """Milliseconds of processor time of a shard of so many rows."""
    items = pa.table(
        {
            "item_id": [f"amazon-{n:06d}" for n in range(rows)],
            "text": [f"the service was fine and number {n} too" for n in range(rows)],
            "label": [n % 3 for n in range(rows)],
            "attribute": ["age"] * rows,
            "group": [f"group {n % 20}" for n in range(rows)],
            "template_id": [f"template {n // 20}" for n in range(rows)],
            "term": [f"term {n % 40}" for n in range(rows)],
        }
    )
    begun = time.process_time()
    for n in range(_EACH):
        wanted = Shard("amazon", f"run{n}", "opt", "soft_prompt", "sst5", 0, rows, "predictions")
        predictor: Any = Constant()
        store.write_table(wanted.file, label_shard(predictor, None, wanted, items).table)
    return 1e3 * (time.process_time() - begun) / _EACH


def shown(rate: int) -> float:
    """Milliseconds to show one more shard in the live view, after a minute of so many a second."""
    pace = Pace(count(0.0, 1 / rate).__next__)
    for _ in range(60 * rate):
        pace.add(Done(rows=1, tokens=1))
    begun = time.process_time()
    for _ in range(_EACH):
        pace.add(Done(rows=1, tokens=1))
        str(pace)
    return 1e3 * (time.process_time() - begun) / _EACH


def main(
    rounds: Annotated[int, typer.Option(help="Measurements, of which the median counts.")] = 5,
    out: workload.OutOption = None,
) -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        save_model(place)
        backbone = workload.load(place, dtype="float32", device="cpu")
        texts, labels = workload.sentences(None, 400)
        found = TokenSet(tuple(map(tuple, backbone.encode(texts))), tuple(labels))
        data = tuning.Data(found, verbalizer_ids(backbone.tokenizer, LABELS))
        steps = []
        for runs in PACKS:
            tuner = tuning.packed(place, data, runs, dtype="float32", device="cpu")
            times = [step(tuner) for _ in range(rounds)]
            whole, beside = (statistics.median(each) for each in zip(*times, strict=True))
            steps.append((runs, f"{whole:.2f}", f"{beside:.2f}", f"{beside / runs:.2f}"))
        store = Store(place / "out")
        shard(store, 16)
        shards = [
            (rows, f"{each:.2f}", f"{1e3 * each / rows:.1f}")
            for rows in ROWS
            for each in [statistics.median(shard(store, rows) for _ in range(rounds))]
        ]
    workload.publish(
        "Host beside torch",
        [
            "Processor time of a step with its evaluation on one row:",
            workload.markdown(steps, STEP_HEADS),
            "Processor time of a replica for a shard, the model aside:",
            workload.markdown(shards, ("rows", "shard, ms", "a row, us")),
            "Processor time of the driver to show a shard:",
            workload.markdown(
                [(rate, f"{shown(rate):.3f}") for rate in RATES], ("shards a second", "shard, ms")
            ),
        ],
        device="cpu",
        peer="ray",
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
