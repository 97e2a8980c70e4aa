"""Label logits of probe items: ours against batched Hugging Face and lm-eval's HFLM.

All sides get the same tokens in the same requests (`--items` neighbouring items, as one shard of
a study holds) and give three label scores an item. Hugging Face: the whole request sorted by
length, padded batches of 16 and 32, whole logits, the last position's label columns. HFLM: three
`loglikelihood` requests an item, text + " negative", " neutral", " positive", at batch 32; it
computes an item's context once for its three one-token continuations.

    python -m benchmarks --only scoring --rounds 3 --items 512
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import labelling
import torch
from harness import Comparison, Part, Size, measured
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from workload import CONTEXT, items, saved

from raybias.engine.adapters.vectors import SoftPromptTrainer
from raybias.schema import LABELS

Sides = dict[str, Callable[[int], torch.Tensor]]


def hugging_face(
    model: Any, requests: Sequence[Sequence[Sequence[int]]], ids: list[int], batch: int, turn: int
) -> torch.Tensor:
    """Label logits [N, 3] from padded batches, longest first."""
    rows = requests[turn]
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


def harness_model(peer: Any, tokenizer: Any, **options: Any) -> Any:
    """Give lm-eval the peer's model, as it is run at batch 32."""
    return HFLM(pretrained=peer, tokenizer=tokenizer, batch_size=32, max_length=CONTEXT, **options)


def log_likelihoods(lm: Any, asked: Sequence[tuple[str, str]]) -> torch.Tensor:
    """Log-likelihoods [N] of continuations behind texts, by lm-eval."""
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=each, idx=n)
        for n, each in enumerate(asked)
    ]
    return torch.tensor([value for value, _ in lm.loglikelihood(requests, disable_tqdm=True)])


def label_likelihoods(lm: Any, texts: Sequence[str]) -> torch.Tensor:
    """Log-likelihoods [N, 3] of the three label words after each text."""
    asked = [(text, f" {label}") for text in texts for label in LABELS]
    return log_likelihoods(lm, asked).view(len(texts), len(LABELS))


def same(ours_NL: torch.Tensor, theirs_NL: torch.Tensor) -> str:
    """How far two sides' label probabilities differ."""
    gap_NL = ours_NL.softmax(-1) - theirs_NL.softmax(-1)
    agree = (ours_NL.argmax(-1) == theirs_NL.argmax(-1)).double().mean()
    return f"{float(gap_NL.abs().max()):.1e}, {float(agree):.1%}"


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare label scores of probe items with the better of two batch sizes, and with HFLM."""
    models = saved(size)
    lm = harness_model(models.peer, models.first.tokenizer, add_bos_token=True)
    texts = items(size.folder("amazon"), 10**6)
    step = max(1, (len(texts) - size.items) // max(1, size.rounds))
    requests = [texts[n * step : n * step + size.items] for n in range(size.rounds + 1)]
    rows = [models.first.encoder.encode(each) for each in requests]
    plain: Sides = {
        f"Hugging Face {size.dtypes[0]}, batch {batch}": partial(
            hugging_face, models.peer, rows, [*models.ids], batch
        )
        for batch in (16, 32)
    }
    by_harness = f"HFLM {size.dtypes[0]}, batch 32"

    def score(trainer: SoftPromptTrainer, turn: int) -> torch.Tensor:
        return labelling.label_logits(trainer, rows[turn])

    ours: Sides = {
        f"ours {name}": partial(score, labelling.labeller(each, models.ids))
        for name, each in models.ours.items()
    }
    theirs_NL = label_likelihoods(lm, requests[0])
    part = Part(
        title=f"label scores, {size.items} items",
        sides={**plain, by_harness: lambda turn: label_likelihoods(lm, requests[turn]), **ours},
        peers=dict.fromkeys(ours, (tuple(plain), (by_harness,))),
        alike={name: same(work(0), theirs_NL) for name, work in ours.items()},
    )
    yield from measured(part, size)
