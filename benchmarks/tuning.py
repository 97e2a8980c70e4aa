"""Prompt tuning: 15 seeds in one pack against 15 PEFT runs, one after another.

Both sides take the same optimizer steps on the same rows: batch 8 a seed, 8 prompt vectors,
AdamW, label logits read at each row's last token, cross-entropy over the three labels. PEFT does
what a user of it writes: the tokenizer pads to the longest row of the batch, `PeftModel` gives
logits [batch, tokens, vocabulary], and the label columns at the last position are kept. A round
times one step of all seeds of ours and three sequential steps of PEFT's (no dropout), scaled to all
seeds. Our side is the real `PackedTuner`, an evaluation on one short row included.

    python -m benchmarks --only tuning --seeds 15 --rounds 5
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from harness import Comparison, Part, Size, measured
from peft import PromptTuningConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from workload import rows_of, saved

from raybias.engine.adapters.options import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.adapters.vectors import SoftPromptTrainer
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.encoder import verbalizer_ids
from raybias.methods import SoftPrompt, Tuned
from raybias.schema import LABELS

RATE = 1e-3


def packed(backbone: LoadedBackbone, rows: TokenSet, seeds: int) -> PackedTuner:
    """Our side: the seeds as one pack."""
    method = SoftPrompt(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1
    )
    ids = verbalizer_ids(backbone.tokenizer, LABELS)
    return pack_of(SoftPromptTrainer(backbone, ids, method), method, rows)


def pack_of(trainer: Any, method: Tuned, rows: TokenSet) -> PackedTuner:
    """Make a method's seeds one pack, one step between evaluations on a single row."""
    (rate,) = method.learning_rates
    trials = [Trial(f"s{seed}", seed, rate, "final", 1e-2, 5) for seed in method.seeds]
    one = TokenSet((min(rows.rows, key=len),), (0,))
    return PackedTuner(trainer, method.recipe, trials, train=rows, validation=one)


def peft_step(
    peer: Any, rows: TokenSet, ids: Sequence[int], device: str, start_PD: Tensor | None = None
) -> Callable[[int, int], Tensor]:
    """PEFT's side: a function that takes one step of a seed and gives its loss."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    model: Any = get_peft_model(peer, config)
    if start_PD is not None:
        model.prompt_encoder.default.embedding.weight.data = start_PD.clone()

    def logits(tokens_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        found_BTV = model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits
        last_B = mask_BT.sum(dim=1) + 7
        label_BV: torch.Tensor = found_BTV[torch.arange(len(last_B), device=device), last_B]
        return label_BV[:, list(ids)]

    return stepping(model, rows, logits, rate=RATE, device=device)


def stepping(
    model: Any, rows: TokenSet, logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *,
    rate: float, device: str,
) -> Callable[[int, int], Tensor]:  # fmt: skip
    """Return what takes a step of a seed on a padded batch; `logits` is given tokens and mask."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)

    def step(seed: int, number: int) -> Tensor:
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
        return loss.detach()  # type: ignore[no-any-return]

    return step


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's, in each precision."""
    seeds = size.seeds
    models = saved(size)
    rows = rows_of(models.first, size.folder("sst5"), 4000)
    tuners = {f"ours {name}, packed": packed(each, rows, seeds)
              for name, each in models.ours.items()}  # fmt: skip
    step = peft_step(models.peer, rows, models.ids, size.device)

    def advance(tuner: PackedTuner, _turn: int) -> None:
        tuner.advance()

    peer, peer_seeds = f"PEFT {size.dtypes[0]}, one by one", min(3, seeds)
    part = Part(
        title=f"prompt tuning, {seeds} seeds",
        sides={
            peer: lambda turn: [step(seed, turn) for seed in range(peer_seeds)],
            **{name: partial(advance, tuner) for name, tuner in tuners.items()},
        },
        peers=dict.fromkeys(tuners, ((peer,),)),
        scale={peer: seeds / peer_seeds},
    )
    yield from measured(part, size)
