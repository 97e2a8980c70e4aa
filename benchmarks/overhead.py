"""What the host does beside torch: in a step of a pack, and for a shard of predictions.

A step is the real `PackedTuner`'s on a random OPT so small that little but bookkeeping is left. The
share of its time in which torch's profiler sees no operator, forward or backward, is the host's at
most, since the profiler's own work counts there. A shard is what a replica does for one beside the
model: rows to texts, rows of predictions, and the file. Tokenising and packing it come before its
turn on the device, once for all runs that read it. What is left in the turn, cutting and stacking
batches and making rows of predictions, is measured on a trainer whose forward pass is left out.
Times are of this process's processor.

    python benchmarks/overhead.py --rounds 5 [--tokenizer FOLDER --amazon FOLDER]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count, cycle, islice
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

from raybias.engine.adapters.base import Training, Weights
from raybias.engine.adapters.soft_prompt import PromptOptions, SoftPromptTrainer
from raybias.engine.adapters.tuning import TokenSet
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.packing import Batch
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods import SoftPrompt
from raybias.methods.base import Answered, Compute, Reader, Shard, predictions, shard_of
from raybias.methods.tuned import AdapterReader, options_for
from raybias.runtime.progress import Done, Pace
from raybias.schema import LABELS, PREDICTIONS
from raybias.storage import Store

PACKS = (1, 5, 15)
STEP_HEADS = ("runs", "step, ms", "beside operators at most, ms", "a run, ms")
ROWS = (128, 512, 2048, 8192)
SHARD_HEADS = (
    "rows", "shard, ms", "a row, us", "tokenising a row, us", "packing a row, us",
    "for another run, us", "in the turn, us",
)  # fmt: skip
#: Shards a second that a driver is told of.
RATES = (10, 46, 200)
#: Steps, or shards, of one measurement.
_EACH = 5


def save_model(folder: Path, merges: Path | None) -> None:
    """Save a random OPT of width 32 with two layers."""
    config = OPTConfig(
        vocab_size=workload.VOCABULARY, hidden_size=32, word_embed_proj_dim=32, ffn_dim=128,
        num_hidden_layers=2, num_attention_heads=1, max_position_embeddings=workload.CONTEXT,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    workload.tokenizer(merges).save_pretrained(folder)


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


class Constant(Reader):
    """A reader without a model."""

    def prepare(self, run: None, items: pa.Table) -> Compute:
        """Return what gives the same label to all."""
        count = len(items)
        scores = np.zeros((count, 3), np.float32)
        return lambda: Answered(predictions(items, scores=scores, labels=[0] * count), count)


def items_of(amazon: Path | None, rows: int) -> pa.Table:
    """So many items; those that the Amazon templates do not have end in a number."""
    texts = workload.items(amazon, rows)
    numbered = islice(enumerate(cycle(texts)), rows)
    return pa.table(
        {
            "item_id": [f"amazon-{n:06d}" for n in range(rows)],
            "text": [text if n < len(texts) else f"{text} {n}" for n, text in numbered],
            "label": [n % 3 for n in range(rows)],
            "attribute": ["age"] * rows,
            "group": [f"group {n % 20}" for n in range(rows)],
            "template_id": [f"template {n // 20}" for n in range(rows)],
            "term": [f"term {n % 40}" for n in range(rows)],
        }
    )


def whole(items: pa.Table, run: str) -> Shard:
    """Return the shard of all items."""
    return Shard("amazon", run, "opt", "soft_prompt", "sst5", 0, len(items), "predictions")


def shard(store: Store, items: pa.Table) -> float:
    """Milliseconds of processor time of a shard of all items."""
    begun = time.process_time()
    for n in range(_EACH):
        wanted = whole(items, f"run{n}")
        compute = shard_of(Constant(), None, wanted, items, PREDICTIONS)
        store.write_table(wanted.file, compute().table)
    return 1e3 * (time.process_time() - begun) / _EACH


class _Unread(SoftPromptTrainer):
    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros(len(batch.rows), len(LABELS))


def without_model(backbone: LoadedBackbone) -> SoftPromptTrainer:
    """Return a trainer whose forward pass is left out."""
    scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
    return _Unread(scorer, options_for(PromptOptions, SoftPrompt()))


def parts(trainer: SoftPromptTrainer, items: pa.Table) -> list[float]:
    """Microseconds of processor time a row: tokenising, packing, both again, and in the turn."""
    times = []

    def timed(work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        times.append(1e6 * (time.process_time() - begun) / len(items))
        return result

    texts = items["text"].to_pylist()
    rows = timed(lambda: trainer.encode(texts))
    timed(lambda: trainer.prepare(rows))
    method, run = SoftPrompt(), trainer.init_weights(0)
    reader = AdapterReader(method, trainer, Store("none"))
    reader.prepare(run, items)
    compute = timed(lambda: reader.prepare(run, items))
    timed(compute)
    return times


def shard_table(
    place: Path, backbone: LoadedBackbone, amazon: Path | None, rounds: int
) -> list[tuple[str, ...]]:
    """Rows of `SHARD_HEADS`."""
    store, trainer = Store(place / "out"), without_model(backbone)
    table = []
    for rows in (16, *ROWS):
        items = items_of(amazon, rows)
        whole = statistics.median(shard(store, items) for _ in range(rounds))
        measured = zip(*(parts(trainer, items) for _ in range(rounds)), strict=True)
        each = [f"{statistics.median(times):.1f}" for times in measured]
        table.append((str(rows), f"{whole:.2f}", f"{1e3 * whole / rows:.1f}", *each))
    # What is loaded and built at first use is in the first row's times.
    return table[1:]


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
    amazon: Annotated[Path | None, typer.Option(help="Folder with the Amazon templates.")] = None,
    tokenizer: workload.TokenizerOption = None,
    out: workload.OutOption = None,
) -> None:
    """Print the tables."""
    workload.need_tokenizer(tokenizer, amazon)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        save_model(place, tokenizer)
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
        shards = shard_table(place, backbone, amazon, rounds)
    workload.publish(
        "Host beside torch",
        [
            "Processor time of a step with its evaluation on one row:",
            workload.markdown(steps, STEP_HEADS),
            "Processor time of a replica for a shard, the model aside:",
            workload.markdown(shards, SHARD_HEADS),
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
