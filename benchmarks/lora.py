"""Packed LoRA against PEFT runs one by one, on the same work.

A step of every seed: forward, backward and AdamW on each seed's own batch of eight, rank 8
on all linear layers of an OPT with a classification head. PEFT trains as its users do: one
run, batches padded to their longest row, the model in train mode. Needed are the frozen blocks
alone, forward and the gradient of activations; the factors come on top.

    python -m benchmarks --only lora --data DIR
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import workload
from comparison import Comparison, Size
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification
from tuning import stepping

from raybias.config import Backbone
from raybias.engine.adapters.options import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import EarlyStop, Lora
from raybias.schema import LABELS

RATE = 1e-4


def packed(
    folder: Path,
    rows: TokenSet,
    seeds: int,
    *,
    dtype: str,
    device: str,
    dropout: float = 0.1,
    deterministic: bool = False,
) -> PackedTuner:
    """Our side: the seeds as one pack, one step between evaluations on a single row."""
    method = Lora(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1,
        early_stop=EarlyStop(after_step=10**6), max_steps=10**6, dropout=dropout,
    )  # fmt: skip
    spec = Backbone.model_validate({"id": str(folder), "dtype": dtype})
    execution = Execution(device=device, deterministic=deterministic)
    trainer = method.trainer(ModelContext(spec, LABELS, execution))
    units = [Trial(f"s{seed}", seed, RATE, "final", 1e-4, 5) for seed in method.seeds]
    one = TokenSet((min(rows.rows, key=len),), (0,))
    return PackedTuner(trainer, method.recipe, units, train=rows, validation=one)


def peft_step(
    folder: Path, rows: TokenSet, tuner: PackedTuner, *, dtype: str, device: str
) -> Callable[[int, int], None]:
    """PEFT's side: a function that takes one step of a seed."""
    method = Lora(keep=1)
    trainer: Any = tuner.trainer
    base = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, dtype=getattr(torch, dtype), pad_token_id=1
    )
    config = LoraConfig(
        task_type="SEQ_CLS", r=method.rank, lora_alpha=int(method.alpha),
        lora_dropout=method.dropout, target_modules=list(trainer.widths),
    )  # fmt: skip
    model: Any = get_peft_model(base.to(device), config).train()

    def logits(tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens_BT, attention_mask=mask_BT).logits
        return found

    return stepping(model, rows, logits, rate=RATE, device=device)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's, in one precision."""
    sst5, merges, device, dtype = size.folder("sst5"), size.merges, size.device, size.dtypes[0]
    torch.set_num_threads(size.threads)
    workload.need_tokenizer(merges, sst5)
    # A third of soft prompts' seeds: a step of LoRA costs more.
    seeds = max(2, size.seeds // 3)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=size.shape, dtype=dtype, device=device, merges=merges
        )
        texts, labels = workload.sentences(sst5, 4000)
        encoded = workload.load(folder, dtype=dtype, device="cpu").encoder.encode(texts)
        rows = TokenSet(tuple(map(tuple, encoded)), tuple(labels))
        together = packed(folder, rows, seeds, dtype=dtype, device=device)
        step = peft_step(folder, rows, together, dtype=dtype, device=device)
    lengths = [
        len(rows.rows[n])
        for seed in range(seeds) for turn in range(size.rounds + 1)
        for n in batch_of_step(seed, turn, rows=len(rows.rows), batch_size=8)
    ]  # fmt: skip
    trainer: Any = together.trainer
    tokens = sum(lengths) / (size.rounds + 1)
    peer, ours = f"PEFT {dtype}, one by one", f"ours {dtype}, packed"
    part = workload.Part(
        title=f"LoRA, {seeds} seeds",
        sides={
            peer: lambda turn: [step(seed, turn) for seed in range(seeds)],
            ours: workload.every_turn(together.advance),
        },
        peers={ours: ((peer,),)},
        flops={ours: workload.model_flops(trainer.classifier.model, tokens, backward=True)},
    )
    yield from workload.measured(part, size)
