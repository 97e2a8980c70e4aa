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
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import transformers
import workload
from comparison import Comparison, Size
from minicons.scorer import MaskedLMScorer
from scoring import harness_model, log_likelihoods
from tokenizers import processors

from raybias.config import Backbone
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.context import Execution
from raybias.engine.sentence_scores import PairScorer, align
from raybias.engine.token_scores import MaskedScorer, load_masked
from raybias.probes.published.crows_pairs import SIDES, crows_pairs
from raybias.probes.registries import styles
from raybias.probes.styles.rules import styled

Pair = tuple[str, str]


def pair_texts(crows: Path | None, items: int) -> pl.DataFrame:
    """CrowS-Pairs evenly drawn, or random sentences of like lengths with another word."""
    if crows is not None:
        return crows_pairs(str(crows)).gather_every(max(1, 1508 // items)).head(items)
    texts, _ = workload.sentences(None, items)
    random = np.random.default_rng(1)
    others = []
    for text in texts:
        words = text.split()
        words[int(random.integers(len(words)))] = f"w{random.integers(40000)}"
        others.append(" ".join(words))
    names = [f"p{n}" for n in range(len(texts))]
    return pl.DataFrame({"pair_id": names, "sent_more": texts, "sent_less": others})


def in_styles(pairs: pl.DataFrame, *, words: bool) -> list[Pair]:
    """All pairs in nine styles; `words` that are random have one case only."""
    made = [styled(pairs, style) for style in styles if styles[style].rule]
    found: list[Pair] = [pair for frame in made for pair in frame.select(SIDES).rows()]
    for change in (str.title, str.lower):
        opening = f"w{len(found)} " if words else ""
        found += [
            (opening + change(more), opening + change(less))
            for more, less in pairs.select(SIDES).rows()
        ]
    return found


def save_roberta(folder: Path, *, dtype: str, merges: Path | None) -> Path:
    """Save a RoBERTa of base shape with random weights and its tokenizer."""
    tokenizer = workload.tokenizer(merges)
    specials = {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    tokenizer.add_special_tokens(specials)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=514, type_vocab_size=1, pad_token_id=1
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(config, dtype=workload.DTYPES[dtype])
    model.save_pretrained(folder)
    return folder


def one_copy(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> list[float]:
    """Both sides' sums of shared tokens, each masked copy in a forward pass of its own."""
    found = []
    with torch.no_grad():
        for pair in pairs:
            rows = [tokenizer.encode(text) for text in pair]
            for row, places in zip(rows, zip(*align(*rows)[1:-1], strict=True), strict=True):
                total = 0.0
                for place in places:
                    copy_1T = torch.tensor([row], device=model.device)
                    copy_1T[0, place] = tokenizer.mask_token_id
                    logits_V = model(copy_1T).logits[0, place]
                    total += float(logits_V.log_softmax(-1)[row[place]])
                found.append(total)
    return found


def whole_sentences(scorer: MaskedScorer, texts: Sequence[str]) -> list[float]:
    """Sum over all tokens of each sentence, ours."""
    rows = scorer.backbone.tokenizer(list(texts))["input_ids"]
    asked = [[(row, place) for place in range(1, len(row) - 1)] for row in rows]
    return [float(values.sum(dtype=float)) for values in scorer.prepare(asked)()]


def by_minicons(scorer: Any, texts: Sequence[str], *, batch: int) -> list[float]:
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


def by_harness(lm: Any, texts: Sequence[str]) -> list[float]:
    """Log-likelihoods of whole sentences by lm-eval."""
    return [float(value) for value in log_likelihoods(lm, [("", text) for text in texts])]


def sides_of(found: Sequence[Any]) -> list[float]:
    """Both scores of each pair, one after the other."""
    return [side for pair in found for side in (pair.more, pair.less)]


def gap(values: Sequence[float], ours: Sequence[float]) -> str:
    """Return the largest relative distance and the share of equal decisions between neighbours."""
    one, two = (np.array(each).reshape(-1, 2) for each in (values, ours))
    same = np.sign(one[:, 0] - one[:, 1]) == np.sign(two[:, 0] - two[:, 1])
    far = np.abs(one - two) / np.maximum(np.abs(two), 1.0)
    return f"{far.max():.1e}, {same.mean():.1%}"


def masked_part(
    folder: Path, pairs: Sequence[Pair], *, dtypes: Sequence[str], device: str, share: int
) -> workload.Part:
    """Pseudo-log-likelihoods; nyu-mll's way does one pair in `share`."""
    dtype = dtypes[0]
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=workload.DTYPES[dtype])
    model.eval().to(device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # minicons calls it by the name that transformers 5 dropped.
    tokenizer.batch_encode_plus = tokenizer.__call__
    minicons = MaskedLMScorer(model, device, tokenizer=tokenizer)
    few = pairs[::share]
    texts = [text for pair in pairs for text in pair]
    one = f"one copy at a time {dtype}"
    several = {f"minicons {dtype}, {batch} sentences": batch for batch in (4, 8)}
    sides: dict[str, Callable[[int], list[float]]] = {
        one: workload.every_turn(one_copy, model, tokenizer, few)
    }
    sides |= {
        name: workload.every_turn(by_minicons, minicons, texts, batch=batch)
        for name, batch in several.items()
    }
    shared, whole = (_copies(tokenizer, pairs, kind) for kind in ("shared", "whole"))
    flops: dict[str, float] = {}
    peers: dict[str, tuple[tuple[str, ...], ...]] = {}
    for name in dtypes:
        backbone = load_masked(_spec(folder, name), Execution(device=device))
        scorer = PairScorer(backbone, ("masked",))
        sides[f"ours {name}, shared tokens"] = workload.every_turn(_pll, scorer, pairs)
        sides[f"ours {name}, all tokens"] = workload.every_turn(
            whole_sentences, scorer.scorer, texts
        )
        for what, copies in (("shared", shared), ("all", whole)):
            flops[f"ours {name}, {what} tokens"] = _masked_flops(backbone, copies)
        peers[f"ours {name}, shared tokens"] = ((one,),)
        peers[f"ours {name}, all tokens"] = (tuple(several),)
    drawn = [n for pair in range(0, len(pairs), share) for n in (2 * pair, 2 * pair + 1)]
    first_few, all_tokens = sides[one](0), sides[next(iter(several))](0)
    alike = {}
    for name in peers:
        found = sides[name](0)
        near = "shared" in name
        alike[name] = gap([found[n] for n in drawn] if near else found,
                          first_few if near else all_tokens)  # fmt: skip
    copies_of_few = len(_copies(tokenizer, few, "shared"))
    return workload.Part(
        title=f"masked, RoBERTa-base shape, {len(pairs)} pairs, {len(shared)} masked copies of"
        f" shared tokens, {len(whole)} of all tokens",
        sides=sides, peers=peers, flops=flops, alike=alike,
        scale={one: len(shared) / copies_of_few},
    )  # fmt: skip


def causal_part(
    folder: Path, pairs: Sequence[Pair], *, dtypes: Sequence[str], device: str
) -> workload.Part:
    """Log-likelihoods of all styles."""
    dtype = dtypes[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = workload.load_peer(folder, dtype=dtype, device=device)
    lm = harness_model(model, tokenizer)
    texts = [text for pair in pairs for text in pair]
    peer = f"HFLM {dtype}, batch 32"
    sides: dict[str, Callable[[int], list[float]]] = {
        peer: workload.every_turn(by_harness, lm, texts)
    }
    flops: dict[str, float] = {}
    peers: dict[str, tuple[tuple[str, ...], ...]] = {}
    for name in dtypes:
        backbone = workload.load(folder, dtype=name, device=device)
        sides[f"ours {name}"] = workload.every_turn(_pll, PairScorer(backbone, ("sum",)), pairs)
        rows = backbone.tokenizer(texts)["input_ids"]
        total = sum(len(row) - 1 for row in rows)
        distinct = workload.distinct_tokens(row[:-1] for row in rows)
        head = 2 * backbone.model.get_output_embeddings().weight.numel() * distinct
        flops[f"ours {name}"] = head + workload.model_flops(
            backbone.model, distinct, backward=False
        )
        peers[f"ours {name}"] = ((peer,),)
    theirs = sides[peer](0)
    return workload.Part(
        title=f"causal, OPT shape, {len(pairs)} pairs in all styles, {distinct / total:.0%} of"
        " tokens distinct openings",
        sides=sides, peers=peers, flops=flops,
        alike={name: gap(sides[name](0), theirs) for name in peers},
    )  # fmt: skip


def _pll(scorer: PairScorer, pairs: Sequence[Pair]) -> list[float]:
    (found,) = scorer.prepare(pairs)().values()
    return sides_of(found)


def _spec(folder: Path, dtype: str) -> Backbone:
    return Backbone.model_validate({"id": str(folder), "dtype": dtype})


def _copies(tokenizer: Any, pairs: Sequence[Pair], kind: str) -> list[list[int]]:
    """Every masked copy."""
    found = []
    for pair in pairs:
        rows = [tokenizer.encode(text) for text in pair]
        shared = zip(*align(*rows)[1:-1], strict=True)
        whole = (range(1, len(row) - 1) for row in rows)
        for row, places in zip(rows, shared if kind == "shared" else whole, strict=True):
            found += [[*row[:p], tokenizer.mask_token_id, *row[p + 1 :]] for p in places]
    return found


def _masked_flops(backbone: LoadedBackbone, copies: Sequence[Sequence[int]]) -> float:
    """Blocks for every token of every distinct copy, and the head for one token of each."""
    distinct = {*map(tuple, copies)}
    head = sum(
        module.weight.numel()
        for name, module in backbone.model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith("lm_head")
    )
    tokens = sum(map(len, distinct))
    blocks = workload.model_flops(backbone.model, tokens, backward=False)
    return blocks + 2.0 * head * len(distinct)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare scores of pairs under a masked and a causal model."""
    crows, merges, dtypes, device = (
        size.folder("crows_pairs"),
        size.merges,
        size.dtypes,
        size.device,
    )
    torch.set_num_threads(size.threads)
    workload.need_tokenizer(merges, crows)
    frame = pair_texts(crows, max(4, size.items // 16))
    with tempfile.TemporaryDirectory() as temporary:
        own = frame.select(SIDES).rows()
        folder = save_roberta(Path(temporary) / "roberta", dtype=dtypes[0], merges=merges)
        part = masked_part(folder, own, dtypes=dtypes, device=device, share=4)
        yield from workload.measured(part, size)
        folder = workload.save_model(
            Path(temporary) / "opt", shape=size.shape, dtype=dtypes[0], device=device, merges=merges
        )
        pairs = in_styles(frame, words=crows is None)
        part = causal_part(folder, pairs, dtypes=dtypes, device=device)
        yield from workload.measured(part, size)
