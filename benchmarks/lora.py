"""Packed LoRA against PEFT runs one by one, on the same work.

A step of every seed: forward, backward and AdamW on each seed's own batch of eight, rank 8
on all linear layers of an OPT with a classification head. PEFT trains as its users do: one
run, batches padded to their longest row, the model in train mode.

    python -m benchmarks --only lora --data DIR
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from harness import DTYPES, Comparison, Part, Size, measured
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from tuning import pack_of, stepping
from workload import rows_of, saved, spec_of

from raybias.engine.adapters.tuning import PackedTuner, TokenSet
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import EarlyStop, Lora
from raybias.schema import LABELS

RATE = 1e-4


def packed(
    folder: Path, rows: TokenSet, seeds: int, *, dtype: str, device: str, dropout: float = 0.1
) -> PackedTuner:
    """Our side: the seeds as one pack."""
    method = Lora(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1,
        early_stop=EarlyStop(after_step=10**6), max_steps=10**6, dropout=dropout,
    )  # fmt: skip
    context = ModelContext(spec_of(folder, dtype), LABELS, Execution(device=device))
    trainer = method.trainer(context)
    return pack_of(trainer, method, rows)


def peft_step(
    folder: Path, rows: TokenSet, tuner: PackedTuner, *, dtype: str, device: str,
    start: Mapping[str, Tensor] = MappingProxyType({}),
) -> Callable[[int, int], Tensor]:  # fmt: skip
    """PEFT's side: a function that takes one step of a seed and gives its loss."""
    trainer: Any = tuner.trainer
    method = trainer.lora
    base = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, dtype=DTYPES[dtype], pad_token_id=1
    )
    config = LoraConfig(
        task_type="SEQ_CLS", r=method.rank, lora_alpha=int(method.alpha),
        lora_dropout=method.dropout, target_modules=list(trainer.widths),
    )  # fmt: skip
    # As users train it; a comparison of losses has no dropout, which the backbone has too.
    model: Any = get_peft_model(base.to(device), config).train(not start)
    for name, weight in model.named_parameters():
        if start and weight.requires_grad:
            plain = name.removeprefix("base_model.model.").replace(".default", "")
            plain = plain.replace(".modules_to_save", "")
            plain = plain if plain in start else plain.removesuffix(".weight")
            weight.data.copy_(start[plain])

    def logits(tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens_BT, attention_mask=mask_BT).logits
        return found

    return stepping(model, rows, logits, rate=RATE, device=device)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's, in one precision."""
    how: Any = {"dtype": size.dtypes[0], "device": size.device}
    # A third of soft prompts' seeds: a step of LoRA costs more.
    seeds = max(2, size.seeds // 3)
    models = saved(size)
    rows = rows_of(models.first, size.folder("sst5"), 4000)
    together = packed(models.folder, rows, seeds, **how)
    step = peft_step(models.folder, rows, together, **how)
    peer, ours = f"PEFT {size.dtypes[0]}, one by one", f"ours {size.dtypes[0]}, packed"
    part = Part(
        title=f"LoRA, {seeds} seeds",
        sides={
            peer: lambda turn: [step(seed, turn) for seed in range(seeds)],
            ours: lambda _: together.advance(),
        },
        peers={ours: ((peer,),)},
    )
    yield from measured(part, size)
