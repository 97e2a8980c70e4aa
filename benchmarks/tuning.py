"""Prompt tuning: 15 seeds in one pack against 15 PEFT runs, one after another.

Both sides take the same optimizer steps on the same rows: batch 8 a seed, 8 prompt vectors,
AdamW, label logits read at each row's last token, cross-entropy over the three labels. PEFT does
what a user of it writes: the tokenizer pads to the longest row of the batch, `PeftModel` gives
logits [batch, tokens, vocabulary], and the label columns at the last position are kept. A round
times one step of all seeds of ours and three sequential steps of PEFT's (no dropout), scaled to all
seeds. Our side is the real `PackedTuner`, an evaluation on one short row included. Needed are
distinct text and one prompt a seed and step, blocks only, forward and the gradient of activations.

    python -m benchmarks --only tuning --seeds 15 --rounds 5
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import workload
from comparison import Comparison, Size
from peft import PromptTuningConfig, get_peft_model
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.base import SoftPromptTrainer
from raybias.engine.adapters.options import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.encoder import verbalizer_ids
from raybias.engine.packing import pack
from raybias.methods import SoftPrompt
from raybias.schema import LABELS

RATE = 1e-3


@dataclass(frozen=True)
class Data:
    """Token rows and labels, and the label ids."""

    rows: TokenSet
    label_ids: tuple[int, ...]


def packed(
    folder: Path, data: Data, seeds: int, *, dtype: str, device: str, deterministic: bool = False
) -> PackedTuner:
    """Our side: the seeds as one pack, one step between evaluations on a single row."""
    backbone = workload.load(folder, dtype=dtype, device=device, deterministic=deterministic)
    method = SoftPrompt(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1
    )
    units = [Trial(f"s{seed}", seed, RATE, "final", 1e-2, 5) for seed in method.seeds]
    shortest = min(data.rows.rows, key=len)
    one = TokenSet((shortest,), (0,))
    trainer = SoftPromptTrainer(backbone, data.label_ids, method)
    return PackedTuner(trainer, method.recipe, units, train=data.rows, validation=one)


def peft_step(folder: Path, data: Data, *, dtype: str, device: str) -> Callable[[int, int], None]:
    """PEFT's side: a function that takes one step of a seed."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    model: Any = get_peft_model(workload.load_peer(folder, dtype=dtype, device=device), config)
    ids = list(data.label_ids)

    def logits(tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        found_BTV = model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits
        last_B = mask_BT.sum(dim=1) + 7
        label_BL: torch.Tensor = found_BTV[torch.arange(len(last_B), device=device), last_B][:, ids]
        return label_BL

    return stepping(model, data.rows, logits, rate=RATE, device=device)


def stepping(
    model: Any, rows: TokenSet, logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *,
    rate: float, device: str,
) -> Callable[[int, int], None]:  # fmt: skip
    """Return what takes a step of a seed on a padded batch; `logits` is given tokens and mask."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)

    def step(seed: int, number: int) -> None:
        batch = batch_of_step(seed, number, rows=len(rows.rows), batch_size=8)
        tokens = [torch.tensor(rows.rows[n]) for n in batch]
        tokens_BT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=1)
        ones = [torch.ones_like(row) for row in tokens]
        mask_BT = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
        target_B = torch.tensor([rows.labels[n] for n in batch], device=device)
        label_BL = logits(tokens_BT.to(device), mask_BT.to(device))
        loss: Any = cross_entropy(label_BL.float(), target_B)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's, in each precision."""
    sst5, merges, seeds, device = size.folder("sst5"), size.merges, size.seeds, size.device
    torch.set_num_threads(size.threads)
    workload.need_tokenizer(merges, sst5)
    first = size.dtypes[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=size.shape, dtype=first, device=device, merges=merges
        )
        texts, labels = workload.sentences(sst5, 4000)
        backbone = workload.load(folder, dtype=first, device=device)
        rows = tuple(map(tuple, backbone.encoder.encode(texts)))
        data = Data(TokenSet(rows, tuple(labels)), verbalizer_ids(backbone.tokenizer, LABELS))
        tuners = {
            f"ours {name}, packed": packed(folder, data, seeds, dtype=name, device=device)
            for name in size.dtypes
        }
        step = peft_step(folder, data, dtype=first, device=device)
    peer, peer_seeds = f"PEFT {first}, one by one", min(3, seeds)
    tokens = seeds * needed_tokens(data, seeds, range(size.rounds + 1))
    part = workload.Part(
        title=f"prompt tuning, {seeds} seeds",
        sides={
            peer: lambda turn: [step(seed, turn) for seed in range(peer_seeds)],
            **{name: workload.every_turn(tuner.advance) for name, tuner in tuners.items()},
        },
        peers=dict.fromkeys(tuners, ((peer,),)),
        flops=dict.fromkeys(tuners, workload.model_flops(backbone.model, tokens, backward=True)),
        scale={peer: seeds / peer_seeds},
    )
    yield from workload.measured(part, size)


def needed_tokens(data: Data, seeds: int, steps: range) -> float:
    """Mean tokens of a seed's step that no method can leave out: distinct text, one prompt."""
    rows = data.rows.rows
    batches = [
        batch_of_step(seed, step, rows=len(rows), batch_size=8)
        for seed in range(seeds) for step in steps
    ]  # fmt: skip
    found = [pack([rows[n] for n in batch], max_tokens=10**6) for batch in batches]
    return 8 + sum(len(sequence.tokens) for (sequence,) in found) / len(found)
