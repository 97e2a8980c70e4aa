"""Prompted answers: ours against transformers' text-generation pipeline.

Both sides start from the same prompt texts and end with answer texts, tokenisation included, and
sample at temperature 0.8 with the model's other values (top_k 50). The pipeline runs at batch 16
with left padding, as its users run it. Parts:

- few_shot: nine demonstrations and a race item, 3 new tokens. Every round is a run of its own with
  other demonstrations, so that nothing is left over from the round before.
- coreference: WinoBias sentences in six prompts each, 32 new tokens, greedy.
- cot: 64 tokens of reasoning, then 3 of answer behind the prompt that holds its text.

Random weights would write parts of words, which become more tokens when read again, so both sides'
embeddings are zero for all tokens but whole words.

    python -m benchmarks --only prompting --rounds 3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from harness import Comparison, Part, Size, measured
from tokenizers.decoders import ByteLevel
from workload import Models, items, plain, saved, sentences

from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.keyed_draws import Sampling
from raybias.methods import ChainOfThought, FewShot
from raybias.probes.published.winobias import coreference_prompts
from raybias.probes.published.winobias import winobias as read_winobias
from raybias.schema import LABELS

TEMPERATURE = 0.8
ANSWER, REASONING, COREFERENCE = 3, 64, 32
#: Of the pipeline.
BATCH = 16
COT = plain(ChainOfThought())

#: Returns what a side writes after each prompt, so many tokens long.
Writer = Callable[[Sequence[str], int], list[str]]
#: What a side does in a round.
Work = Callable[[Writer, int], object]


def ours(backbone: LoadedBackbone, temperature: float) -> Writer:
    """Our side as a writer, each text under its own key."""
    generator, tokenizer = EngineAnswers(backbone), backbone.tokenizer
    sampling = Sampling.of(backbone.model, temperature=temperature)

    def write(prompts: Sequence[str], new: int) -> list[str]:
        found = generator.generate(
            backbone.encoder.encode(prompts),
            [(2024, "bench", n, new) for n in range(len(prompts))],
            sampling=sampling,
            max_new_tokens=new,
        )
        tokens = [each.tokens for each in found]
        return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))

    return write


def pipeline(model: Any, tokenizer: Any, **options: Any) -> Writer:
    """Return transformers' text-generation pipeline as a writer."""
    run = transformers.pipeline(
        "text-generation", model=model, tokenizer=tokenizer, batch_size=BATCH
    )

    def write(prompts: Sequence[str], new: int) -> list[str]:
        found = run(list(prompts), max_new_tokens=new, return_full_text=False, **options)
        return [each[0]["generated_text"] for each in found]

    return write


def reasoned(texts: Sequence[str], write: Writer, _turn: int) -> list[str]:
    """Have a side answer after a reasoning of its own."""
    said = write([COT.first(text, LABELS) for text in texts], REASONING)
    both = zip(texts, said, strict=True)
    return write([COT.last(text, LABELS, reasoning=each) for text, each in both], ANSWER)


def shots(sst5: Path | None, turn: int) -> list[tuple[str, int]]:
    """Nine sentences, three a label, other ones each turn."""
    texts, labels = sentences(sst5, 4000)
    by_label = [[t for t, y in zip(texts, labels, strict=True) if y == k] for k in range(3)]
    return [(text, k) for k in range(3) for text in by_label[k][3 * turn : 3 * turn + 3]]


def asked(winobias: Path | None, count: int) -> list[str]:
    """Return six prompts of each of `count` sentences, evenly drawn where WinoBias is given."""
    if winobias is None:
        rows = [(text, "he") for text in sentences(None, count)[0]]
    else:
        every = read_winobias(str(winobias))
        drawn = every.gather_every(max(1, every.height // count)).head(count)
        rows = drawn.select("text", "pronoun").rows()
    return ["".join(each) for row in rows for each in coreference_prompts(*row).values()]


def write_words(models: Models, peer_tokenizer: Any) -> None:
    """Have models of random weights write whole words, which are read again as they were written.

    A token whose embedding is zero has the logit zero, far below the most likely ones. A word list
    has nothing but words.
    """
    tokens = peer_tokenizer.convert_ids_to_tokens(range(len(peer_tokenizer)))
    words = [n for n, token in enumerate(tokens) if re.fullmatch("Ġ[A-Za-z]+", token)]
    if not words:
        return
    for tokenizer in (peer_tokenizer, *(each.tokenizer for each in models.ours.values())):
        tokenizer.backend_tokenizer.decoder = ByteLevel()
    for model in (models.peer, *(each.model for each in models.ours.values())):
        weight_VD = model.get_output_embeddings().weight
        with torch.no_grad():
            kept_WD = weight_VD[words].clone()
            weight_VD.zero_()[words] = kept_WD


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare answers to prompts, part by part; the peer has the first precision."""
    sst5, texts = size.folder("sst5"), items(size.folder("amazon"), size.items // 4, ("race",))
    models = saved(size)
    tokenizer = transformers.AutoTokenizer.from_pretrained(models.folder)
    write_words(models, tokenizer)
    peer = f"pipeline {size.dtypes[0]}, batch {BATCH}"
    sampled = {peer: pipeline(models.peer, tokenizer, do_sample=True, temperature=TEMPERATURE)}
    greedy = {peer: pipeline(models.peer, tokenizer, do_sample=False)}
    for writers, temperature in ((sampled, TEMPERATURE), (greedy, 0.0)):
        writers |= {f"ours {name}": ours(each, temperature) for name, each in models.ours.items()}
    count = max(1, size.items // 16)
    fewer = texts[:: max(1, len(texts) // count)][:count]

    def few_shot(turn: int) -> list[str]:
        shown = shots(sst5, turn)
        return [plain(FewShot()).first(text, LABELS, shown) for text in texts]

    named = asked(size.folder("winobias"), size.items // 32)
    parts: tuple[tuple[str, dict[str, Writer], Work, list[str], int], ...] = (
        (f"9-shot, {len(texts)} items", sampled,
         lambda write, turn: write(few_shot(turn), ANSWER), few_shot(0), ANSWER),
        (f"coreference, {size.items // 32} sentences in six prompts, greedy", greedy,
         lambda write, _turn: write(named, COREFERENCE), named, COREFERENCE),
        (f"chain of thought, {count} items, and {ANSWER} of answer", sampled,
         partial(reasoned, fewer), [COT.first(text, LABELS) for text in fewer], REASONING),
    )  # fmt: skip
    for title, writers, work, prompts, new in parts:
        theirs, own = (greedy[name](prompts[:16], new) for name in (*greedy,)[:2])
        alike = sum(a == b for a, b in zip(own, theirs, strict=True))
        others = [name for name in writers if name != peer]
        part = Part(
            title=f"{title}, {new} new tokens",
            sides={name: partial(work, write) for name, write in writers.items()},
            peers=dict.fromkeys(others, ((peer,),)),
            alike=dict.fromkeys(others, f"{alike} of {len(own)} greedy texts"),
        )
        yield from measured(part, size)
