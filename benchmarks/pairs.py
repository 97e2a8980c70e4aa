"""Scores of sentence pairs: ours against nyu-mll's way, minicons and lm-eval's HFLM.

All sides start from the same texts and end with scores, tokenisation included. Parts:

- masked: a random-weight RoBERTa of base shape. nyu-mll's way masks every shared token of a pair
  and reads each copy by itself; it does a part of the pairs, and its time is scaled by copies.
  minicons scores all tokens of a sentence, so ours does that too beside it; it is called with 4
  and with 8 neighbouring sentences of like length, and more do not pay.
- causal: all nine styles at once under a random-weight OPT, log-likelihoods after BOS, HFLM at
  batch 32. The two styles that a model writes are stood in for by other letter cases, which
  share no opening with the rest.

    python -m benchmarks --only pairs --rounds 3
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
import workload
from harness import DTYPES, Comparison, MissingError, Part, Size, measured
from minicons.scorer import MaskedLMScorer
from scoring import harness_model, log_likelihoods
from tokenizers import processors

from raybias.engine.context import Execution
from raybias.engine.masked_scores import MaskedScorer, load_masked
from raybias.engine.sentence_scores import PairScorer, align
from raybias.probes.published.crows_pairs import SIDES, crows_pairs
from raybias.probes.registries import styles
from raybias.probes.styles.rules import styled

Pair = tuple[str, str]
Side = Callable[[int], list[float]]
#: nyu-mll's way does one pair in so many.
SHARE = 4


def in_styles(pairs: pl.DataFrame) -> list[Pair]:
    """All pairs in nine styles."""
    made = [styled(pairs, style) for style in styles if styles[style].rule]
    found: list[Pair] = [pair for frame in made for pair in frame.select(SIDES).rows()]
    for change in (str.title, str.lower):
        found += [(change(more), change(less)) for more, less in pairs.select(SIDES).rows()]
    return found


def save_roberta(folder: Path, *, dtype: str, merges: Path | None) -> Any:
    """Save a RoBERTa of base shape with random weights and its tokenizer, which comes back."""
    tokenizer = workload.tokenizer(merges)
    tokenizer.add_special_tokens({"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=514, type_vocab_size=1, pad_token_id=1
    )
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config, dtype=DTYPES[dtype]).save_pretrained(
        folder
    )
    return transformers.AutoTokenizer.from_pretrained(folder)


def one_copy(model: Any, tokenizer: Any, pairs: Sequence[Pair], _turn: int) -> list[float]:
    """Both sides' sums of shared tokens, each masked copy in a forward pass of its own."""
    found = []
    for row, places in shared_places(tokenizer, pairs):
        total = 0.0
        for place in places:
            copy_1T = torch.tensor([row], device=model.device)
            copy_1T[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits_V = model(copy_1T).logits[0, place]
            total += float(logits_V.log_softmax(-1)[row[place]])
        found.append(total)
    return found


def shared_places(tokenizer: Any, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield each sentence's tokens with the places of those that a pair shares."""
    for pair in pairs:
        rows = [tokenizer.encode(text) for text in pair]
        for row, places in zip(rows, zip(*align(*rows)[1:-1], strict=True), strict=True):
            yield row, [*places]


def whole_sentences(scorer: MaskedScorer, texts: Sequence[str], _turn: int) -> list[float]:
    """Sum over all tokens of each sentence, ours."""
    rows = scorer.backbone.tokenizer(list(texts))["input_ids"]
    asked = [[(row, place) for place in range(1, len(row) - 1)] for row in rows]
    return [float(values.sum(dtype=float)) for values in scorer.prepare(asked)()]


def by_minicons(scorer: Any, texts: Sequence[str], batch: int, _turn: int) -> list[float]:
    """Compute the same by minicons, sentences of like length together."""
    order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
    found = [0.0] * len(texts)
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        sums = scorer.sequence_score(
            [texts[n] for n in numbers], reduction=lambda x: x.sum().item()
        )
        for n, value in zip(numbers, sums, strict=True):
            found[n] = value
    return found


def by_ours(scorer: Any, pairs: Sequence[Pair], _turn: int) -> list[float]:
    """Both scores of each pair, one after the other."""
    (found,) = scorer.prepare(pairs)().values()
    return [side for pair in found for side in (pair.more, pair.less)]


def gap(values: Sequence[float], ours: Sequence[float]) -> str:
    """Return the largest relative distance and the share of equal decisions between neighbours."""
    one, two = (np.array(each).reshape(-1, 2) for each in (values, ours))
    same = np.sign(one[:, 0] - one[:, 1]) == np.sign(two[:, 0] - two[:, 1])
    far = np.abs(one - two) / np.maximum(np.abs(two), 1.0)
    return f"{far.max():.1e}, {same.mean():.1%}"


def masked_part(folder: Path, pairs: Sequence[Pair], size: Size) -> Part:
    """Pseudo-log-likelihoods."""
    dtype, device = size.dtypes[0], size.device
    tokenizer = save_roberta(folder, dtype=dtype, merges=size.merges)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=DTYPES[dtype])
    model.eval().to(device)
    # minicons calls it by the name that transformers 5 dropped.
    tokenizer.batch_encode_plus = tokenizer.__call__
    minicons = MaskedLMScorer(model, device, tokenizer=tokenizer)
    few, texts = pairs[::SHARE], [text for pair in pairs for text in pair]
    one = f"one copy at a time {dtype}"
    several: dict[str, Side] = {
        f"minicons {dtype}, {batch} sentences": partial(by_minicons, minicons, texts, batch)
        for batch in (4, 8)
    }
    sides: dict[str, Side] = {one: partial(one_copy, model, tokenizer, few), **several}
    theirs, all_theirs = sides[one](0), next(iter(several.values()))(0)
    copies, of_few = (
        sum(len(places) for _, places in shared_places(tokenizer, some)) for some in (pairs, few)
    )
    peers: dict[str, tuple[tuple[str, ...], ...]] = {}
    alike: dict[str, str] = {}
    for name in size.dtypes:
        backbone = load_masked(workload.spec_of(folder, name), Execution(device=device))
        scorer = PairScorer(backbone, ("masked",))
        near, far = f"ours {name}, shared tokens", f"ours {name}, all tokens"
        sides[near] = partial(by_ours, scorer, pairs)
        sides[far] = partial(whole_sentences, scorer.scorer, texts)
        peers |= {near: ((one,),), far: (tuple(several),)}
        found = np.array(sides[near](0)).reshape(-1, 2)[::SHARE].ravel()
        alike |= {near: gap(found.tolist(), theirs), far: gap(sides[far](0), all_theirs)}
    return Part(
        title=f"masked, RoBERTa-base shape, {len(pairs)} pairs, {copies} masked copies",
        sides=sides, peers=peers, alike=alike, scale={one: copies / of_few},
    )  # fmt: skip


def causal_part(pairs: Sequence[Pair], size: Size) -> Part:
    """Log-likelihoods of all styles."""
    models = workload.saved(size)
    lm = harness_model(models.peer, models.first.tokenizer)
    asked = [("", text) for pair in pairs for text in pair]
    peer = f"HFLM {size.dtypes[0]}, batch 32"

    def by_harness(_turn: int) -> list[float]:
        return [float(value) for value in log_likelihoods(lm, asked)]

    theirs = by_harness(0)
    ours: dict[str, Side] = {
        f"ours {name}": partial(by_ours, PairScorer(each, ("sum",)), pairs)
        for name, each in models.ours.items()
    }
    return Part(
        title=f"causal, OPT shape, {len(pairs)} pairs in all styles",
        sides={peer: by_harness, **ours},
        peers=dict.fromkeys(ours, ((peer,),)),
        alike={name: gap(work(0), theirs) for name, work in ours.items()},
    )


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare scores of pairs under a masked and a causal model."""
    crows = size.folder("crows_pairs")
    if crows is None:
        raise MissingError("needs crows_pairs in --data (`raybias data download crows_pairs`)")
    items = max(4, size.items // 16)
    frame = crows_pairs(str(crows)).gather_every(1508 // items).head(items)
    with tempfile.TemporaryDirectory() as folder:
        yield from measured(masked_part(Path(folder), frame.select(SIDES).rows(), size), size)
    yield from measured(causal_part(in_styles(frame), size), size)
