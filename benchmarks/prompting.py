"""Prompted answers: ours against transformers' text-generation pipeline and lm-eval's HFLM.

Both sides start from the same prompt texts and end with answer texts, tokenisation included, and
sample at temperature 0.8 with the model's other values (top_k 50). The pipeline runs at batch 16
with left padding, as its users run it. Parts:

- few_shot: nine demonstrations and a race item, 3 new tokens. Every round is a run of its own with
  other demonstrations, so that nothing is left over from the round before.
- cot: 64 tokens of reasoning, then 3 of answer behind the prompt that holds its text. Random
  weights would write parts of words, which become more tokens when read again, so both sides'
  embeddings are zero for all tokens but whole words.
- coreference: WinoBias sentences in six prompts each, 32 new tokens, greedy.
- likelihood: three label words after each zero-shot prompt, as `scoring.py` measures them.

    python -m benchmarks --only prompting --rounds 3
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import labelling
import torch
import transformers
import workload
from comparison import Comparison, Size
from scoring import harness, harness_model, same
from tokenizers.decoders import ByteLevel
from workload import plain

from raybias.engine.adapters.base import SoftPromptTrainer
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.encoder import verbalizer_ids
from raybias.engine.keyed_draws import Sampling
from raybias.methods import ChainOfThought, FewShot, ZeroShot
from raybias.probes.published.winobias import coreference_prompts
from raybias.probes.published.winobias import winobias as read_winobias
from raybias.schema import LABELS

TEMPERATURE = 0.8
ANSWER = 3
REASONING = 64
COREFERENCE = 32
#: Of the pipeline.
BATCH = 16
COT = ChainOfThought()


#: Returns what a side writes after each prompt, so many tokens long.
Writer = Callable[[Sequence[str], int], list[str]]


class Ours:
    """Our side as a writer."""

    def __init__(self, backbone: LoadedBackbone, temperature: float = TEMPERATURE) -> None:
        self.backbone = backbone
        self.generator = EngineAnswers(backbone)
        self.sampling = Sampling.of(backbone.model, temperature=temperature)

    def __call__(self, prompts: Sequence[str], new: int) -> list[str]:
        """Texts after `prompts`, each under its own key."""
        found = self.generator.generate(
            self.backbone.encoder.encode(prompts),
            [(2024, "bench", n, new) for n in range(len(prompts))],
            sampling=self.sampling,
            max_new_tokens=new,
        )
        tokens = [each.tokens for each in found]
        return list(self.backbone.tokenizer.batch_decode(tokens, skip_special_tokens=True))


def _concluding(text: str, reasoning: str) -> str:
    return plain(COT).last(text, LABELS, reasoning=reasoning)


class Pipeline:
    """transformers' text-generation pipeline as a writer."""

    def __init__(self, model: Any, folder: Path, batch: int, **options: Any) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.run = transformers.pipeline(
            "text-generation", model=model, tokenizer=tokenizer, batch_size=batch
        )
        self.options = options or {"do_sample": True, "temperature": TEMPERATURE}

    def __call__(self, prompts: Sequence[str], new: int) -> list[str]:
        """Texts after `prompts`."""
        found = self.run(list(prompts), max_new_tokens=new, return_full_text=False, **self.options)
        return [each[0]["generated_text"] for each in found]


def reasoned(write: Writer, texts: Sequence[str]) -> list[str]:
    """Have a side answer after a reasoning of its own."""
    said = write([plain(COT).first(text, LABELS) for text in texts], REASONING)
    return write([_concluding(text, each) for text, each in zip(texts, said, strict=True)], ANSWER)


def shots(sst5: Path | None, turn: int) -> list[tuple[str, int]]:
    """Nine sentences, three a label, other ones each turn."""
    texts, labels = workload.sentences(sst5, 4000)
    by_label = [[t for t, y in zip(texts, labels, strict=True) if y == k] for k in range(3)]
    return [(text, k) for k in range(3) for text in by_label[k][3 * turn : 3 * turn + 3]]


def needed_flops(model: Any, rows: Sequence[Sequence[int]], new: int) -> float:
    """Blocks once for every token behind a different opening, and the head for new tokens."""
    tokens = workload.distinct_tokens(rows) + (new - 1) * len(rows)
    head: int = 2 * model.get_output_embeddings().weight.numel() * new * len(rows)
    return workload.model_flops(model, tokens, backward=False) + head


def few_shot(
    writers: dict[str, Writer], checks: list[Writer], backbone: LoadedBackbone, texts: list[str],
    demonstrations: Callable[[int], list[tuple[str, int]]],
) -> workload.Part:  # fmt: skip
    """Nine demonstrations, 3 new tokens."""

    def prompts(turn: int) -> list[str]:
        shown = demonstrations(turn)
        return [plain(FewShot()).first(text, LABELS, shown) for text in texts]

    rows = backbone.encoder.encode(prompts(1))
    return part_of(
        f"9-shot, {len(texts)} items, {ANSWER} new tokens",
        writers,
        lambda write, turn: write(prompts(turn), ANSWER),
        alike=agreement(checks, prompts(0)[:16], ANSWER),
        flops=needed_flops(backbone.model, rows, ANSWER),
    )


def cot(
    writers: dict[str, Writer], checks: list[Writer], backbone: LoadedBackbone, texts: list[str]
) -> workload.Part:
    """64 tokens of reasoning, then 3 of answer."""
    prompts = [plain(COT).first(text, LABELS) for text in texts]
    rows = backbone.encoder.encode(prompts)
    asked = len(backbone.encoder.encode([_concluding(texts[0], "")])[0]) - len(rows[0])
    head: int = 2 * backbone.model.get_output_embeddings().weight.numel() * ANSWER * len(rows)
    later = len(rows) * (asked + ANSWER)
    return part_of(
        f"chain of thought, {len(texts)} items, {REASONING} + {ANSWER} new tokens",
        writers,
        lambda write, _turn: reasoned(write, texts),
        alike=agreement(checks, prompts[:16], REASONING),
        flops=needed_flops(backbone.model, rows, REASONING)
        + workload.model_flops(backbone.model, later, backward=False)
        + head,
    )


def coreference(
    writers: dict[str, Writer],
    checks: list[Writer],
    backbone: LoadedBackbone,
    sentences: list[list[str]],
) -> workload.Part:
    """Six prompts a sentence, greedy."""
    prompts = [prompt for each in sentences for prompt in each]
    rows = backbone.encoder.encode(prompts)
    return part_of(
        f"coreference, {len(sentences)} sentences in six prompts, {COREFERENCE} new tokens, greedy",
        writers,
        lambda write, _turn: write(prompts, COREFERENCE),
        alike=agreement(checks, prompts[:16], COREFERENCE),
        flops=needed_flops(backbone.model, rows, COREFERENCE),
    )


def asked(winobias: Path | None, count: int) -> list[list[str]]:
    """Return six prompts of each of `count` sentences, evenly drawn where WinoBias is given."""
    if winobias is None:
        texts, _ = workload.sentences(None, count)
        return [
            ["".join(each) for each in coreference_prompts(text, "he").values()] for text in texts
        ]
    items = read_winobias(str(winobias))
    drawn = items.gather_every(max(1, items.height // count)).head(count)
    rows = drawn.select("text", "pronoun").rows()
    return [
        ["".join(e) for e in coreference_prompts(text, pronoun).values()] for text, pronoun in rows
    ]


def write_words(models: Sequence[Any], tokenizers: Sequence[Any]) -> None:
    """Have models of random weights write whole words, which are read again as they were written.

    A token whose embedding is zero has the logit zero, far below the most likely ones. A word list
    has nothing but words.
    """
    tokens = tokenizers[0].convert_ids_to_tokens(range(len(tokenizers[0])))
    words = [n for n, token in enumerate(tokens) if re.fullmatch("Ġ[A-Za-z]+", token)]
    if not words:
        return
    for tokenizer in tokenizers:
        tokenizer.backend_tokenizer.decoder = ByteLevel()
    for model in models:
        weight_VD = model.get_output_embeddings().weight
        with torch.no_grad():
            kept_WD = weight_VD[words].clone()
            weight_VD.zero_()[words] = kept_WD


def likelihood(
    lm: Any,
    peer: str,
    scorers: dict[str, SoftPromptTrainer],
    backbone: LoadedBackbone,
    texts: list[str],
) -> workload.Part:
    """Three label words after each zero-shot prompt."""
    prompts = [plain(ZeroShot()).first(text, LABELS) for text in texts]

    def score(scorer: SoftPromptTrainer) -> Callable[[int], torch.Tensor]:
        return lambda _turn: labelling.label_logits(scorer, backbone.encoder.encode(prompts))

    sides: dict[str, Callable[[int], torch.Tensor]] = {peer: lambda _turn: harness(lm, prompts)}
    sides |= {name: score(scorer) for name, scorer in scorers.items()}
    theirs_NL = harness(lm, prompts)
    return workload.Part(
        title=f"zero-shot likelihood, {len(texts)} items",
        sides=sides,
        peers=dict.fromkeys(scorers, ((peer,),)),
        alike={name: same(sides[name](0), theirs_NL) for name in scorers},
        flops=dict.fromkeys(
            scorers, needed_flops(backbone.model, backbone.encoder.encode(prompts), 1)
        ),
    )


def part_of(
    title: str, writers: dict[str, Writer], work: Callable[[Writer, int], object], *,
    alike: str, flops: float,
) -> workload.Part:  # fmt: skip
    """Make the part of written answers, of which the first side is the peer."""
    peer, *ours = writers
    return workload.Part(
        title=title,
        sides={name: partial(work, write) for name, write in writers.items()},
        peers=dict.fromkeys(ours, ((peer,),)),
        alike=dict.fromkeys(ours, alike),
        flops=dict.fromkeys(ours, flops),
    )


def agreement(checks: list[Writer], prompts: list[str], new: int) -> str:
    """How many texts both sides write alike without sampling."""
    ours, theirs = (write(prompts, new) for write in checks)
    alike = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{alike} of {len(prompts)} greedy texts"


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare answers and likelihoods of prompts, part by part; peers have the first precision.

    The chain of thought's part changes the models' embeddings, so it comes late.
    """
    amazon, sst5, winobias = (size.folder(name) for name in ("amazon", "sst5", "winobias"))
    torch.set_num_threads(size.threads)
    workload.need_tokenizer(size.merges, amazon, sst5, winobias)
    dtype, device = size.dtypes[0], size.device
    texts = workload.items(amazon, size.items // 4, attributes=("race",))
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=size.shape, dtype=dtype, device=device, merges=size.merges
        )
        ours = {
            f"ours {name}": workload.load(folder, dtype=name, device=device) for name in size.dtypes
        }
        model = workload.load_peer(folder, dtype=dtype, device=device)
        backbone = next(iter(ours.values()))
        peer = Pipeline(model, folder, BATCH)
        greedy_peer = Pipeline(model, folder, BATCH, do_sample=False)
    checks: list[Writer] = [Ours(backbone, 0.0), greedy_peer]
    named = f"pipeline {dtype}, batch {BATCH}"
    writers: dict[str, Writer] = {named: peer}
    writers |= {name: Ours(each) for name, each in ours.items()}
    greedy: dict[str, Writer] = {named: greedy_peer}
    greedy |= {name: Ours(each, 0.0) for name, each in ours.items()}
    few = few_shot(writers, checks, backbone, texts, lambda turn: shots(sst5, turn))
    yield from workload.measured(few, size)
    sentences = asked(winobias, size.items // 32)
    yield from workload.measured(coreference(greedy, checks, backbone, sentences), size)
    reasoned = max(1, size.items // 16)
    fewer = texts[:: max(1, len(texts) // reasoned)][:reasoned]
    sides = [model, *(each.model for each in ours.values())]
    tokenizers = [each.run.tokenizer for each in (peer, greedy_peer)]
    write_words(sides, [*tokenizers, *(each.tokenizer for each in ours.values())])
    yield from workload.measured(cot(writers, checks, backbone, fewer), size)
    lm = harness_model(model, backbone.tokenizer, add_bos_token=True)
    ids = verbalizer_ids(backbone.tokenizer, LABELS)
    scorers = {name: labelling.labeller(each, ids) for name, each in ours.items()}
    part = likelihood(lm, f"HFLM {dtype}, batch 32", scorers, backbone, texts)
    yield from workload.measured(part, size)
