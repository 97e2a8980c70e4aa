"""Prompt tuning: 15 seeds in one pack against 15 PEFT runs, one after another.

Both sides take the same optimizer steps on the same rows: batch 8 a seed, 8 prompt vectors,
AdamW, label logits read at each row's last token, cross-entropy over the three labels. PEFT does
what a user of it writes: the tokenizer pads to the longest row of the batch, `PeftModel` gives
logits [batch, tokens, vocabulary], and the label columns at the last position are kept. A round
times one step of all seeds of ours and `--peer-seeds` sequential steps of PEFT's, scaled to all
seeds. Texts are embedded, packed, stepped and evaluated by the real `PackedTuner`.

    python benchmarks/tuning.py --rounds 5
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import workload
from peft import PromptTuningConfig, get_peft_model
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from raybias.config import SoftPrompt
from raybias.engine.scoring import LabelScorer
from raybias.engine.tuning import PackedTuner, TokenSet, Unit, batch_of_step
from raybias.engine.verbalizer import verbalizer_ids
from raybias.schema import LABELS

RATE = 1e-3
#: Which operators a profile's lines stand for.
KINDS = {
    "linear": ("mm", "addmm", "linear", "bmm"),
    "attention": ("scaled_dot_product",),
    "copies": ("copy_", "cat", "fill_", "index", "where", "zero"),
    "norm and activation": ("layer_norm", "clamp_min", "threshold", "relu", "add", "mul"),
}


@dataclass(frozen=True)
class Data:
    """Token rows and labels, and the label ids."""

    rows: TokenSet
    label_ids: tuple[int, ...]


def packed(folder: Path, data: Data, seeds: int, *, dtype: str, device: str) -> PackedTuner:
    """Our side: the seeds as one pack, one step between evaluations on a single row."""
    backbone = workload.load(folder, dtype=dtype, device=device)
    method = SoftPrompt(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1
    )
    units = [Unit(f"s{seed}", seed, RATE, "final") for seed in method.seeds]
    one = TokenSet(data.rows.rows[:1], data.rows.labels[:1])
    scorer = LabelScorer(backbone, data.label_ids)
    return PackedTuner(scorer, method, units, train=data.rows, validation=one)


def peft_step(folder: Path, data: Data, *, device: str) -> Callable[[int, int], None]:
    """PEFT's side in float32: a function that takes one step of a seed."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    model: Any = get_peft_model(workload.load_peer(folder, dtype="float32", device=device), config)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)
    ids = list(data.label_ids)

    def step(seed: int, number: int) -> None:
        batch = batch_of_step(seed, number, rows=len(data.rows.rows), batch_size=8)
        rows = [torch.tensor(data.rows.rows[n]) for n in batch]
        tokens_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
        mask_BT = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in rows], batch_first=True
        )
        logits_BTV = model(
            input_ids=tokens_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False
        ).logits
        last_B = torch.tensor([len(row) + 7 for row in rows], device=device)
        label_BL = logits_BTV[torch.arange(len(rows), device=device), last_B][:, ids]
        target_B = torch.tensor([data.rows.labels[n] for n in batch], device=device)
        cross_entropy(label_BL, target_B).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def where_time_goes(work: Callable[[], object], device: str) -> list[tuple[object, ...]]:
    """Shares of a step by kind of operator."""
    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as record:
        work()
    spent = dict.fromkeys([*KINDS, "other"], 0.0)
    for event in record.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((k for k, parts in KINDS.items() if _belongs(name, parts)), "other")
        spent[kind] += event.self_device_time_total if cuda else event.self_cpu_time_total
    whole = sum(spent.values())
    return [(kind, 100 * part / whole) for kind, part in spent.items()]


def _belongs(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts) and "Backward" not in name


