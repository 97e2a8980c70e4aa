"""What both sides of a speed comparison share: a random-weight model, texts, timing, a table.

The model has the shape of a published OPT and is saved once as safetensors; both sides load
those files. Texts are the published ones where a folder is given, else words drawn with the
lengths and the shared openings of SST-5 and of the Amazon probe. It knows no peer.
"""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from comparison import CLOCK, PROCESSOR, Comparison, Size, processor
from tabulate import tabulate
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.profiler import ProfilerActivity, profile

from raybias.config import Backbone, Probe, TrainingSet
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.context import Execution
from raybias.methods.prompted import Asking, Prompted
from raybias.probes import probe_items, training_sentences
from raybias.schema import LABELS

#: Hidden width, layers, heads; feed-forward is four times as wide (OPT's published shapes).
SHAPES = {
    "tiny": (64, 2, 4), "small": (256, 6, 4), "125m": (768, 12, 12), "1.3b": (2048, 24, 32),
    "13b": (5120, 40, 40), "7b_grouped": (4096, 32, 32),
}  # fmt: skip
#: Query heads to each head of keys and values, where the shape is a Llama's.
GROUPS = {"7b_grouped": 4}
VOCABULARY = 50272
CONTEXT = 2048

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ShapeOption = Annotated[str, typer.Option(help="small, 125m, 1.3b, 13b or 7b_grouped.")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of either side.")]
OutOption = Annotated[Path | None, typer.Option(help="Also write the report to this file.")]


def save_model(folder: Path, *, shape: str, dtype: str, device: str, merges: Path | None) -> Path:
    """Save an OPT of random weights and its tokenizer; gives back the folder."""
    hidden, layers, heads = SHAPES[shape]
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    config: transformers.PreTrainedConfig = transformers.OPTConfig(
        **sizes, word_embed_proj_dim=hidden, ffn_dim=4 * hidden
    )
    if shape in GROUPS:
        config = transformers.LlamaConfig(
            **sizes, num_key_value_heads=heads // GROUPS[shape], intermediate_size=11008,
            pad_token_id=1, bos_token_id=2, eos_token_id=2,
        )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    model.save_pretrained(folder)
    tokenizer(merges).save_pretrained(folder)
    return folder


def load(folder: Path, *, dtype: str, device: str, deterministic: bool = False) -> LoadedBackbone:
    """Our side's frozen model."""
    spec = Backbone.model_validate({"id": str(folder), "dtype": dtype})
    return load_backbone(spec, Execution(device=device, deterministic=deterministic))


def load_peer(folder: Path, *, dtype: str, device: str) -> Any:
    """Load a peer's frozen model, as a user of transformers does."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
    return model.eval().to(device)


def tokenizer(merges: Path | None) -> transformers.PreTrainedTokenizerFast:
    """OPT's own tokenizer from its published files, or a word list of the same size."""
    if merges is None:
        words = ["<s>", "<pad>", "</s>", *LABELS]
        words += [f"w{n}" for n in range(VOCABULARY - len(words))]
        core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<pad>"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        files = str(merges / "vocab.json"), str(merges / "merges.txt")
        core = Tokenizer(models.BPE.from_file(*files))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.TemplateProcessing("</s> $A", special_tokens=[("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="</s>", eos_token="</s>", pad_token="<pad>",
        model_max_length=CONTEXT,
    )  # fmt: skip


def need_tokenizer(merges: Path | None, *real: Path | None) -> None:
    """Refuse real texts without the tokenizer that knows their words.

    The word list would read every word as one and the same token.
    """
    if merges is None and any(folder is not None for folder in real):
        raise typer.BadParameter("real texts need --tokenizer, OPT's vocab.json and merges.txt")


def sentences(folder: Path | None, count: int) -> tuple[list[str], list[int]]:
    """SST-5 training sentences with labels, or random ones of like lengths (19 words, sd 9)."""
    random = np.random.default_rng(0)
    if folder is not None:
        frame = training_sentences(TrainingSet(source="sst5", data=str(folder)))["train"]
        frame = frame.sample(min(count, frame.height), seed=0)
        return frame["text"].to_list(), frame["label"].to_list()
    # A token a word: lengths of SST-5 in OPT's tokens less BOS are about this normal, cut.
    lengths = np.clip(random.normal(22, 11, count).round(), 2, 61).astype(int)
    return [_words(random, n) for n in lengths], random.integers(0, 3, count).tolist()


def items(
    folder: Path | None, count: int, *, attributes: tuple[str, ...] = ("age", "sexuality")
) -> list[str]:
    """Probe items of the Amazon templates in their published order, or synthetic ones."""
    if folder is not None:
        probe = Probe(source="amazon", data=str(folder), attributes=attributes)
        return list(probe_items(probe)["text"].to_list()[:count])
    # As published: 60 templates, a term somewhere in each, about 10 tokens.
    random = np.random.default_rng(0)
    terms = [_words(random, int(n)) for n in random.integers(1, 4, 30)]
    made = []
    for _ in range(60):
        before, after = random.integers(0, 6), random.integers(2, 8)
        opening, rest = _words(random, int(before)), _words(random, int(after))
        made += [f"{opening} {term} {rest}".strip() for term in terms]
    return made[:count]


def _words(random: np.random.Generator, count: int) -> str:
    return " ".join(f"w{n}" for n in random.integers(0, VOCABULARY - 6, count))


@dataclass(frozen=True)
class Timings:
    """Wall and processor seconds of each contender, one entry a round.

    Processor seconds change less on a busy machine; on a GPU only wall seconds mean anything.
    """

    wall: dict[str, list[float]]
    processor: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return the contender's median wall seconds."""
        return statistics.median(self.wall[name])

    def busy(self, name: str) -> float:
        """Return the contender's median processor seconds."""
        return statistics.median(self.processor[name])

    def effective(self, name: str, device: str) -> float:
        """Median seconds with the device to itself: a CPU's other users are taken out."""
        return self.median(name) if _is_cuda(device) else self.busy(name) / torch.get_num_threads()

    def ratio(self, slow: str, fast: str) -> float:
        """How many times faster `fast` is, by medians of wall seconds."""
        return self.median(slow) / self.median(fast)


def every_turn(work: Callable[..., Any], *args: Any, **options: Any) -> Callable[[int], Any]:
    """Return a contender that does the same work in every round."""
    return lambda _turn: work(*args, **options)


def interleave(
    contenders: Mapping[str, Callable[[int], object]],
    *,
    rounds: int,
    device: str,
    scale: Mapping[str, float] | None = None,
    quiet: bool = False,
) -> Timings:
    """Time every contender in turn, round after round; round 0 only warms up.

    `scale` multiplies the times of contenders that do only a part of the work.
    """
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            factor = (scale or {}).get(name, 1.0)
            busy = time.process_time()
            spent = timed(partial(work, turn), device)
            busy = time.process_time() - busy
            if turn:
                wall[name].append(spent * factor)
                processor[name].append(busy * factor)
            if not quiet:
                print(f"round {turn} {name}: {spent:.2f} s, {busy:.2f} s busy", file=sys.stderr)
    return Timings(wall, processor)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of work that ours and peers do.

    Attributes
    ----------
    sides: contenders, each a function of the round; ours name their precision.
    peers: for each of ours, groups of contenders, of each of which the cheapest is its peer.
    flops: what a round of each of ours cannot do without; empty where it is not counted.
    alike: how near the results of each of ours are to a peer's; empty where it is not compared.
    scale: of contenders that do a part of the work.
    """

    title: str
    sides: Mapping[str, Callable[[int], object]]
    peers: Mapping[str, Sequence[Sequence[str]]]
    flops: Mapping[str, float] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)


def measured(part: Part, size: Size) -> Iterator[Comparison]:
    """Time the sides of a part in turn, and compare each of ours with its peer."""
    timings = interleave(part.sides, rounds=size.rounds, device=size.device, scale=part.scale)
    cuda = _is_cuda(size.device)
    cost, seconds = (CLOCK, timings.wall) if cuda else (PROCESSOR, timings.processor)
    for ours, groups in part.peers.items():
        share = None
        if ours in part.flops:
            reached = part.flops[ours] / timings.effective(ours, size.device) / 1e12
            precision = next(word for word in DTYPES if word in ours)
            share = reached / peak_tflops(precision, size.device)
        for names in groups:
            peer = min(names, key=lambda name: statistics.median(seconds[name]))
            pairs = zip(seconds[peer], seconds[ours], strict=True)
            ratios = tuple(theirs / own for theirs, own in pairs)
            alike = part.alike.get(ours, "")
            yield Comparison(part.title, ours, peer, cost, ratios, share, alike)
    if size.profile and part.flops:
        print(between({name: partial(part.sides[name], 0) for name in part.peers}, part.flops,
                      size.device), file=sys.stderr)  # fmt: skip


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds of `work`, its kernels included."""
    _synchronize(device)
    begun = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - begun


def _synchronize(device: str) -> None:
    if _is_cuda(device):
        torch.cuda.synchronize()


def _is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def model_flops(model: Any, tokens: float, *, backward: bool) -> float:
    """Floating-point operations of the transformer blocks for `tokens` tokens.

    Two per weight and token forward, and two more for the gradient of the activations (the
    weights are frozen). Embeddings, attention products and the LM head are left out.
    """
    weights = sum(
        module.weight.numel()
        for name, module in model.base_model.named_modules()
        if isinstance(module, torch.nn.Linear)
    )
    return 2.0 * weights * tokens * (2 if backward else 1)


def distinct_tokens(rows: Iterable[Sequence[int]]) -> int:
    """Tokens that no other row shares with everything before them."""
    numbers: dict[tuple[int, int], int] = {}
    for row in rows:
        node = 0
        for token in row:
            node = numbers.setdefault((node, token), len(numbers) + 1)
    return len(numbers)


def peak_tflops(dtype: str, device: str, rows: int | None = None) -> float:
    """Measure what a large matrix product reaches here and now, in TFLOP/s.

    Parameters
    ----------
    rows: of the left factor; as many as the other has by default. Few of them read the other
        factor from memory for little arithmetic.
    """
    size = 8192 if _is_cuda(device) else 2048 if rows is None else 4096
    a = torch.randn(rows or size, size, device=device, dtype=DTYPES[dtype])
    b = torch.randn(size, size, device=device, dtype=DTYPES[dtype])
    product = {"a @ b": lambda _turn: a @ b}
    seconds = interleave(product, rounds=7, device=device, quiet=True).effective("a @ b", device)
    return 2 * len(a) * size**2 / seconds / 1e12


#: Which operators a line stands for.
KINDS = {
    "attention": ("scaled_dot_product", "bmm", "softmax"),
    "linear": ("mm", "linear"),
    "copies": ("copy_", "cat", "fill_", "index", "where", "zero"),
    "norm and activation": ("layer_norm", "clamp_min", "threshold", "relu", "add", "mul"),
}


def where_time_goes(
    work: Callable[[], object], device: str
) -> tuple[dict[str, float], float, float]:
    """Profile a pass: percent of time by `KINDS`, operations of linear layers, and TFLOP/s of them.

    The profiler knows wall time; on a CPU that other work shares, all of it is reduced by the part
    in which this process did not run.
    """
    cuda = _is_cuda(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, record_shapes=True, with_flops=True) as record:
        begun, busy = time.perf_counter(), time.process_time()
        work()
        wall, busy = time.perf_counter() - begun, time.process_time() - busy
    ran = 1.0 if cuda else min(1.0, busy / torch.get_num_threads() / wall)
    spent, flops = dict.fromkeys([*KINDS, "other"], 0.0), 0.0
    for event in record.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((k for k, parts in KINDS.items() if _belongs(name, parts)), "other")
        spent[kind] += event.self_device_time_total if cuda else event.self_cpu_time_total
        flops += event.flops if kind == "linear" else 0
    whole = sum(spent.values())
    percent = {kind: 100 * part / whole for kind, part in spent.items()}
    seconds = spent["linear"] * ran / 1e6
    return percent, flops, flops / seconds / 1e12 if seconds else 0.0


def between(
    sides: Mapping[str, Callable[[], object]], needed: Mapping[str, float], device: str
) -> str:
    """Make the Markdown table of what stands between sides and the limit that bare products set.

    The share of a limit that is reached is a product of three: the part of the time that goes to
    matrix products, their rate against that of one large product, and the part of their operations
    that no method can leave out (`needed`).
    """
    rows = []
    for name, work in sides.items():
        percent, flops, tflops = where_time_goes(work, device)
        rate = tflops / peak_tflops(next(word for word in DTYPES if word in name), device)
        useful = f"{needed[name] / flops:.0%}" if flops else ""
        rows.append((name, *(f"{part:.0f}%" for part in percent.values()), f"{rate:.0%}", useful))
    headers = ("time goes to", *KINDS, "other", "linear, of the peak", "of that needed")
    return markdown(rows, headers)


def _belongs(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts) and "Backward" not in name


def environment(device: str, packages: tuple[str, ...]) -> str:
    """Hardware, load and versions, in two lines."""
    if _is_cuda(device):
        hardware = torch.cuda.get_device_name()
    else:
        hardware = f"{processor()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{hardware}, load {os.getloadavg()[0]:.1f}\nPython {platform.python_version()}, {versions}"
    )


def markdown(rows: Sequence[tuple[object, ...]], headers: tuple[str, ...]) -> str:
    """Format a Markdown table."""
    return tabulate(rows, headers=headers, tablefmt="github", floatfmt=".2f")


def publish(title: str, parts: list[str], *, device: str, peer: str, out: Path | None) -> None:
    """Print a report of Markdown parts with its command and environment; write it to `out`."""
    packages = ("torch", "transformers", peer)
    # Folders by their own names: where they lie differs from machine to machine.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    command = f"python {shlex.join(words)}"
    head = [f"# {title}", f"    {command}", environment(device, packages).replace("\n", "  \n")]
    text = "\n\n".join([*head, *parts]) + "\n"
    print(text)
    if out is not None:
        out.write_text(text, "utf-8")


def plain(method: Prompted) -> Asking:
    """Return what writes a method's prompts as plain text, for any tokenizer."""
    nothing: Any = None
    return Asking(method.model_copy(update={"prompt_format": "raw"}), nothing)
