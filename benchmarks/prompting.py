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

    python benchmarks/prompting.py --rounds 3
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
import transformers
import typer
import workload
from comparison import Comparison, Size
from lm_eval.models.huggingface import HFLM
from scoring import harness, same
from tokenizers.decoders import ByteLevel
from where import between
from workload import plain

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.generation.decode_loop import Continuation
from raybias.engine.generation.generator import TextGenerator
from raybias.engine.generation.sampling import Sampling
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods import ChainOfThought, FewShot, ZeroShot
from raybias.probes.published.winobias import coreference_prompts
from raybias.probes.published.winobias import winobias as read_winobias
from raybias.schema import LABELS

TEMPERATURE = 0.8
ANSWER = 3
REASONING = 64
COREFERENCE = 32
COT = ChainOfThought()


class Writer(Protocol):
    """A side that writes texts."""

    def __call__(self, prompts: Sequence[str], new: int) -> list[str]:
        """Return what follows each prompt, `new` tokens long."""

    def reason(self, texts: Sequence[str]) -> list[str]:
        """Return the answer to each text after a reasoning."""


class Ours:
    """Our side as a writer."""

    def __init__(self, backbone: LoadedBackbone, temperature: float = TEMPERATURE) -> None:
        self.backbone = backbone
        self.generator = TextGenerator(backbone)
        self.sampling = Sampling.of(backbone.model, temperature=temperature)

    def __call__(self, prompts: Sequence[str], new: int) -> list[str]:
        """Texts after `prompts`, each under its own key."""
        found = self.generator.generate(
            self.backbone.encode(prompts),
            _keys(prompts, new),
            sampling=self.sampling,
            max_new_tokens=new,
        )
        return self._texts([each.tokens for each in found])

    def reason(self, texts: Sequence[str]) -> list[str]:
        """Answers after reasonings."""
        prompts = [plain(COT).first(text, LABELS) for text in texts]

        def conclusions(numbers: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[list[int]]:
            pairs = zip(numbers, self._texts(tokens), strict=True)
            return self.backbone.encode([_concluding(texts[n], said) for n, said in pairs])

        _, found = self.generator.generate_twice(
            self.backbone.encode(prompts),
            _keys(prompts, REASONING),
            then=Continuation(conclusions, _keys(prompts, ANSWER), ANSWER),
            sampling=self.sampling,
            max_new_tokens=REASONING,
        )
        return self._texts([each.tokens for each in found])

    def _texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        return list(self.backbone.tokenizer.batch_decode(tokens, skip_special_tokens=True))


def _concluding(text: str, reasoning: str) -> str:
    return plain(COT).last(text, LABELS, reasoning=reasoning)


def _keys(prompts: Sequence[str], new: int) -> list[tuple[str | int, ...]]:
    return [(2024, "bench", n, new) for n in range(len(prompts))]


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

    def reason(self, texts: Sequence[str]) -> list[str]:
        """Answers after reasonings."""
        said = self([plain(COT).first(text, LABELS) for text in texts], REASONING)
        second = [_concluding(text, each) for text, each in zip(texts, said, strict=True)]
        return self(second, ANSWER)


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes
    ----------
    sides: contenders, the last peer of them the one that ratios are taken of.
    alike: how near each contender's results are to ours.
    flops: what one round cannot do without.
    rows: of the products of a decoding step; 0 where nothing is decoded.
    """

    title: str
    sides: dict[str, Callable[[int], object]]
    peer: str
    alike: dict[str, str]
    flops: float
    note: str
    rows: int


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
) -> Part:  # fmt: skip
    """Nine demonstrations, 3 new tokens."""

    def prompts(turn: int) -> list[str]:
        shown = demonstrations(turn)
        return [plain(FewShot()).first(text, LABELS, shown) for text in texts]

    def work(write: Writer) -> Callable[[int], object]:
        return lambda turn: write(prompts(turn), ANSWER)

    rows = backbone.encode(prompts(1))
    return Part(
        f"9-shot, {len(texts)} items, {ANSWER} new tokens",
        {name: work(write) for name, write in writers.items()},
        peer=next(iter(writers)),
        alike=dict.fromkeys(writers, agreement(checks, prompts(0)[:16], ANSWER)),
        flops=needed_flops(backbone.model, rows, ANSWER),
        note=f"{_mean(rows):.0f} tokens a prompt.",
        rows=len(rows),
    )


def cot(
    writers: dict[str, Writer], checks: list[Writer], backbone: LoadedBackbone, texts: list[str]
) -> Part:
    """64 tokens of reasoning, then 3 of answer."""
    prompts = [plain(COT).first(text, LABELS) for text in texts]

    def work(write: Writer) -> Callable[[int], object]:
        return lambda _turn: write.reason(texts)

    rows = backbone.encode(prompts)
    asked = len(backbone.encode([_concluding(texts[0], "")])[0]) - len(rows[0])
    head: int = 2 * backbone.model.get_output_embeddings().weight.numel() * ANSWER * len(rows)
    later = len(rows) * (asked + ANSWER)
    return Part(
        f"Chain of thought, {len(texts)} items, {REASONING} + {ANSWER} new tokens",
        {name: work(write) for name, write in writers.items()},
        peer=next(iter(writers)),
        alike=dict.fromkeys(writers, agreement(checks, prompts[:16], REASONING)),
        flops=needed_flops(backbone.model, rows, REASONING)
        + workload.model_flops(backbone.model, later, backward=False)
        + head,
        note=f"{_mean(rows):.0f} tokens a first prompt, {asked} more before the answer.",
        rows=len(rows),
    )


def coreference(
    writers: dict[str, Writer],
    checks: list[Writer],
    backbone: LoadedBackbone,
    sentences: list[list[str]],
) -> Part:
    """Six prompts a sentence, greedy."""
    prompts = [prompt for each in sentences for prompt in each]

    def work(write: Writer) -> Callable[[int], object]:
        return lambda _turn: write(prompts, COREFERENCE)

    rows = backbone.encode(prompts)
    return Part(
        f"Coreference, {len(sentences)} sentences in six prompts, {COREFERENCE} new tokens, greedy",
        {name: work(write) for name, write in writers.items()},
        peer=next(iter(writers)),
        alike=dict.fromkeys(writers, agreement(checks, prompts[:16], COREFERENCE)),
        flops=needed_flops(backbone.model, rows, COREFERENCE),
        note=f"{_mean(rows):.0f} tokens a prompt.",
        rows=len(rows),
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
    lm: Any, peer: str, scorers: dict[str, LabelScorer], backbone: LoadedBackbone, texts: list[str]
) -> Part:
    """Three label words after each zero-shot prompt."""
    prompts = [plain(ZeroShot()).first(text, LABELS) for text in texts]

    def score(scorer: LabelScorer) -> Callable[[int], torch.Tensor]:
        return lambda _turn: scorer.score(backbone.encode(prompts))

    sides: dict[str, Callable[[int], torch.Tensor]] = {peer: lambda _turn: harness(lm, prompts)}
    sides |= {name: score(scorer) for name, scorer in scorers.items()}
    expected_NL = next(score(scorer) for scorer in scorers.values())(0)
    return Part(
        f"Zero-shot likelihood, {len(texts)} items",
        dict(sides),
        peer=peer,
        alike={name: same(work(0), expected_NL) for name, work in sides.items()},
        flops=needed_flops(backbone.model, backbone.encode(prompts), 1),
        note="Last column: probability gap to our first side, same label.",
        rows=0,
    )


def _mean(rows: Sequence[Sequence[int]]) -> float:
    return sum(map(len, rows)) / len(rows)


def agreement(checks: list[Writer], prompts: list[str], new: int) -> str:
    """How many texts both sides write alike without sampling."""
    ours, theirs = (write(prompts, new) for write in checks)
    alike = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{alike} of {len(prompts)} greedy texts"


def report(part: Part, *, rounds: int, device: str, peak: float | None) -> str:
    """Time a part; a Markdown table."""
    timings = workload.interleave(part.sides, rounds=rounds, device=device)
    table = []
    for name in timings.wall:
        precision = next(word for word in workload.DTYPES if word in name)
        limit = part.flops / (peak or workload.peak_tflops(precision, device)) / 1e12
        table.append(
            (name, timings.median(name), timings.busy(name), timings.ratio(part.peer, name),
             timings.busy_ratio(part.peer, name), limit,
             timings.effective(name, device) / limit, part.alike[name])
        )  # fmt: skip
    headers = (
        "side", "s", "processor s", "x peer", "x peer, processor", "limit s", "x limit", "alike",
    )  # fmt: skip
    note = (
        f"{part.note} Limit: matrix products of the blocks for every token that no other prompt "
        "shares at its opening, and of the head for new tokens, at the peak measured here."
    )
    if part.rows:
        precision = next(word for word in workload.DTYPES if word in part.peer)
        large = workload.peak_tflops(precision, device)
        share = workload.peak_tflops(precision, device, part.rows) / large
        note += f" A bare product of {part.rows} rows reaches {share:.0%} of that peak."
    ours = {name: partial(part.sides[name], 0) for name in part.sides if name.startswith("ours")}
    goes = between(ours, dict.fromkeys(ours, part.flops), device)
    return f"## {part.title}\n\n{workload.markdown(table, headers)}\n\n{note}\n\n{goes}"


def parts_of(
    wanted: Sequence[str], *, items: int, reasoned: int, referring: int, batch: int, shape: str,
    device: str, dtypes: list[str], amazon: Path | None = None, sst5: Path | None = None,
    winobias: Path | None = None, merges: Path | None = None,
) -> Iterator[Part]:  # fmt: skip
    """Make the parts that are wanted; peers have the first precision.

    A part is made when it is its turn: the chain of thought's changes the models' embeddings.
    """
    workload.need_tokenizer(merges, amazon, sst5, winobias)
    dtype = dtypes[0]
    texts = workload.items(amazon, items, attributes=("race",))
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=dtype, device=device, merges=merges
        )
        ours = {f"ours {name}": workload.load(folder, dtype=name, device=device) for name in dtypes}
        model = workload.load_peer(folder, dtype=dtype, device=device)
        backbone = next(iter(ours.values()))
        peer = Pipeline(model, folder, batch)
        greedy_peer = Pipeline(model, folder, batch, do_sample=False)
    checks: list[Writer] = [Ours(backbone, 0.0), greedy_peer]
    writers: dict[str, Writer] = {f"pipeline {dtype}, batch {batch}": peer}
    writers |= {name: Ours(each) for name, each in ours.items()}
    if "few_shot" in wanted:
        yield few_shot(writers, checks, backbone, texts, lambda turn: shots(sst5, turn))
    if "coreference" in wanted:
        greedy: dict[str, Writer] = {f"pipeline {dtype}, batch {batch}": greedy_peer}
        greedy |= {name: Ours(each, 0.0) for name, each in ours.items()}
        yield coreference(greedy, checks, backbone, asked(winobias, referring))
    if "cot" in wanted:
        fewer = texts[:: max(1, len(texts) // reasoned)][:reasoned]
        sides = [model, *(each.model for each in ours.values())]
        tokenizers = [each.run.tokenizer for each in (peer, greedy_peer)]
        write_words(sides, [*tokenizers, *(each.tokenizer for each in ours.values())])
        yield cot(writers, checks, backbone, fewer)
    if "likelihood" in wanted:
        lm = HFLM(
            pretrained=model, tokenizer=backbone.tokenizer, batch_size=32,
            max_length=workload.CONTEXT, add_bos_token=True,
        )  # fmt: skip
        ids = verbalizer_ids(backbone.tokenizer, LABELS)
        scorers = {name: LabelScorer(each, ids) for name, each in ours.items()}
        yield likelihood(lm, f"HFLM {dtype}, batch 32", scorers, backbone, texts)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare answers and likelihoods of prompts, part by part."""
    torch.set_num_threads(size.threads)
    for part in parts_of(
        ("few_shot", "coreference", "cot", "likelihood"), items=size.items // 4,
        reasoned=size.items // 16, referring=size.items // 32, batch=16, shape=size.shape,
        device=size.device, dtypes=["float32", "bfloat16"], amazon=size.folder("amazon"),
        sst5=size.folder("sst5"), winobias=size.folder("winobias"),
        merges=size.merges,
    ):  # fmt: skip
        timings = workload.interleave(part.sides, rounds=size.rounds, device=size.device)
        for name in part.sides:
            if name != part.peer:
                yield timings.compared(part.title, ours=name, peer=part.peer, device=size.device)


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 3,
    items: Annotated[int, typer.Option(help="Race items.")] = 660,
    reasoned: Annotated[int, typer.Option(help="Items of the chain of thought.")] = 128,
    referring: Annotated[int, typer.Option(help="Sentences of the coreference part.")] = 64,
    part: Annotated[
        str, typer.Option(help="few_shot, cot, coreference, likelihood or all.")
    ] = "all",
    batch: Annotated[int, typer.Option(help="The pipeline's batch size.")] = 16,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="Of all sides.")] = "float32",
    extra: Annotated[str | None, typer.Option(help="Ours also in this dtype.")] = None,
    amazon: Annotated[Path | None, typer.Option(help="Folder with the Amazon templates.")] = None,
    sst5: Annotated[Path | None, typer.Option(help="Folder with SST-5's files.")] = None,
    winobias: Annotated[Path | None, typer.Option(help="Folder with WinoBias.")] = None,
    tokenizer: workload.TokenizerOption = None,
    threads: workload.ThreadsOption = 2,
    peak: workload.PeakOption = None,
    out: workload.OutOption = None,
) -> None:
    """Time prompted answers."""
    torch.set_num_threads(threads)
    parts = parts_of(
        ("few_shot", "coreference", "cot", "likelihood") if part == "all" else (part,),
        items=items, reasoned=reasoned, referring=referring, batch=batch, shape=shape,
        device=device, dtypes=list(dict.fromkeys([dtype, extra or dtype])), amazon=amazon,
        sst5=sst5, winobias=winobias, merges=tokenizer,
    )  # fmt: skip
    workload.publish(
        f"Prompting, OPT-{shape} shape, {rounds} rounds",
        [report(each, rounds=rounds, device=device, peak=peak) for each in parts],
        device=device, peer="lm_eval", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
