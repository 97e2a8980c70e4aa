"""Label logits of probe items: ours against batched Hugging Face and lm-eval's HFLM.

All sides get the same tokens in the same requests (`--items` neighbouring items, as one shard of
a study holds) and give three label scores an item. Hugging Face: the whole request sorted by
length, padded batches of 16 and 32, whole logits, the last position's label columns. HFLM: three
`loglikelihood` requests an item, text + " negative", " neutral", " positive", at batch 32; it
computes an item's context once for its three one-token continuations. Needed are the blocks alone,
every token of every item counted, so shared openings may carry ours past the peak.

    python -m benchmarks --only scoring --rounds 3 --items 512
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import labelling
import torch
import workload
from comparison import Comparison, Size
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from raybias.engine.adapters.base import SoftPromptTrainer
from raybias.engine.encoder import verbalizer_ids
from raybias.schema import LABELS


def hugging_face(
    model: Any, rows: Sequence[Sequence[int]], ids: list[int], *, batch: int
) -> torch.Tensor:
    """Label logits [N, 3] from padded batches, longest first."""
    order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))
    found_NL = torch.zeros(len(rows), len(ids))
    with torch.inference_mode():
        for first in range(0, len(rows), batch):
            numbers = order[first : first + batch]
            tokens = [torch.tensor(rows[n]) for n in numbers]
            tokens_BT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=1)
            last_B = torch.tensor([len(row) - 1 for row in tokens], device=model.device)
            mask_BT = torch.arange(tokens_BT.shape[1], device=model.device) <= last_B[:, None]
            logits_BTV = model(
                input_ids=tokens_BT.to(model.device), attention_mask=mask_BT.long(), use_cache=False
            ).logits
            at_B = torch.arange(len(numbers), device=model.device)
            found_NL[numbers] = logits_BTV[at_B, last_B][:, ids].float().cpu()
    return found_NL


def harness_model(model: Any, tokenizer: Any, **options: Any) -> HFLM:
    """Give lm-eval a model, as it is run at batch 32."""
    return HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=32, max_length=workload.CONTEXT,
        **options,
    )  # fmt: skip


def log_likelihoods(lm: Any, asked: Sequence[tuple[str, str]]) -> torch.Tensor:
    """Log-likelihoods [N] of continuations behind texts, by lm-eval."""
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=each, idx=n)
        for n, each in enumerate(asked)
    ]
    return torch.tensor([value for value, _ in lm.loglikelihood(requests, disable_tqdm=True)])


def harness(lm: Any, texts: Sequence[str]) -> torch.Tensor:
    """Log-likelihoods [N, 3] of the three label words after each text."""
    asked = [(text, f" {label}") for text in texts for label in LABELS]
    return log_likelihoods(lm, asked).view(len(texts), len(LABELS))


def same(ours_NL: torch.Tensor, theirs_NL: torch.Tensor) -> str:
    """How far two sides' label probabilities differ."""
    gap_NL = ours_NL.softmax(-1) - theirs_NL.softmax(-1)
    agree = (ours_NL.argmax(-1) == theirs_NL.argmax(-1)).double().mean()
    return f"{float(gap_NL.abs().max()):.1e}, {float(agree):.1%}"


def shards(texts: Sequence[str], size: int, count: int) -> list[list[str]]:
    """`count` runs of `size` neighbouring texts, spread over all of them."""
    step = max(1, (len(texts) - size) // max(1, count - 1))
    return [list(texts[n * step : n * step + size]) for n in range(count)]


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare label scores of probe items with the better of two batch sizes, and with HFLM."""
    amazon, merges, device, first = (
        size.folder("amazon"), size.merges, size.device, size.dtypes[0]
    )  # fmt: skip
    torch.set_num_threads(size.threads)
    workload.need_tokenizer(merges, amazon)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=size.shape, dtype=first, device=device, merges=merges
        )
        backbones = {name: workload.load(folder, dtype=name, device=device) for name in size.dtypes}
        model = workload.load_peer(folder, dtype=first, device=device)
    backbone = backbones[first]
    ids = verbalizer_ids(backbone.tokenizer, LABELS)
    requests = shards(workload.items(amazon, 10**6), size.items, size.rounds + 1)
    rows = [backbone.encoder.encode(texts) for texts in requests]
    lm = harness_model(model, backbone.tokenizer, add_bos_token=True)
    plain = {
        f"Hugging Face {first}, batch {batch}": partial(_hugging_face, model, rows, [*ids], batch)
        for batch in (16, 32)
    }
    by_harness = f"HFLM {first}, batch 32"
    ours = {
        f"ours {name}": partial(_ours, labelling.labeller(each, ids), rows)
        for name, each in backbones.items()
    }
    theirs_NL = harness(lm, requests[0])
    tokens = sum(len(row) for shard in rows[1:] for row in shard) // size.rounds
    flops = workload.model_flops(backbone.model, tokens, backward=False)
    part = workload.Part(
        title=f"label scores, {size.items} items",
        sides={**plain, by_harness: lambda turn: harness(lm, requests[turn]), **ours},
        peers=dict.fromkeys(ours, (tuple(plain), (by_harness,))),
        flops=dict.fromkeys(ours, flops),
        alike={name: same(work(0), theirs_NL) for name, work in ours.items()},
    )
    yield from workload.measured(part, size)


def _hugging_face(
    model: Any, rows: list[list[list[int]]], ids: list[int], batch: int, turn: int
) -> torch.Tensor:
    return hugging_face(model, rows[turn], ids, batch=batch)


def _ours(labeller: SoftPromptTrainer, rows: list[list[list[int]]], turn: int) -> torch.Tensor:
    return labelling.label_logits(labeller, rows[turn])
