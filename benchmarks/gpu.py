"""The engine on one GPU, part by part: time, FLOP/s against the peak, memory against the plan.

Each part is a process of its own with a limit, so that a part that fails or hangs leaves the others
their time; all of it ends after --seconds. Parts: machine, attention, widths, zero (ZeRO-3
on one GPU and on all), tune, lora, shard, repeat (the price of bits that repeat), prompts, load.

    python benchmarks/gpu.py --out gpu.md
    python benchmarks/gpu.py --part lora --shape 1.3b
    python benchmarks/gpu.py --device cpu --tiny       # whether the script itself runs
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import labelling
import lora
import torch
import torch.distributed as dist
import tuning
import typer
import workload
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.profiler import ProfilerActivity, profile
from transformers.integrations.sdpa_attention import repeat_kv
from workload import DTYPES, plain

from raybias.config import Backbone
from raybias.engine import context, packing
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.answering import EngineAnswers
from raybias.engine.attention import takes_groups
from raybias.engine.backbone import ModelContext, empty_model, shape_of
from raybias.engine.context import Execution
from raybias.engine.encoder import load_tokenizer, verbalizer_ids
from raybias.engine.keyed_draws import Sampling, kept, keys
from raybias.engine.memory import total
from raybias.methods import FewShot, Lora, SoftPrompt
from raybias.methods.base import Inputs
from raybias.methods.work import TokenCounts
from raybias.schema import LABELS

#: A part, its shape, and its share of the seconds.
PLAN = (
    ("machine", "125m", 1), ("attention", "125m", 1), ("widths", "125m", 1), ("zero", "125m", 2),
    ("tune", "125m", 2), ("lora", "125m", 2), ("shard", "1.3b", 2), ("widths", "1.3b", 1),
    ("repeat", "1.3b", 3), ("tune", "1.3b", 3), ("lora", "1.3b", 3), ("prompts", "1.3b", 4),
    ("load", "7b_grouped", 3), ("shard", "7b_grouped", 3), ("tune", "13b", 4), ("lora", "13b", 4),
)  # fmt: skip
Fact = dict[str, Any]


class Bench:
    """One part on one shape."""

    def __init__(self, shape: str, device: str, folder: Path) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        self.dtype = "bfloat16" if self.cuda else "float32"
        self.small = shape == "tiny"
        self.folder = workload.save_model(
            folder, shape=shape, dtype=self.dtype, device=device, merges=None
        )
        self.spec = Backbone.model_validate({"id": str(self.folder), "dtype": self.dtype})
        self.peak = workload.peak_tflops(self.dtype, device)

    def measured(self, what: str, work: Callable[[], object], flops: float = 0.0) -> Fact:
        """Time a call: median seconds, reached FLOP/s, share of time with the GPU busy, memory."""
        work()
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        spent = sorted(workload.timed(work, self.device) for _ in range(3))[1]
        fact: Fact = {"what": what, "ms": 1e3 * spent}
        if flops:
            fact["TFLOP/s"] = flops / spent / 1e12
            fact["of peak"] = flops / spent / 1e12 / self.peak
        if self.cuda:
            fact["GiB"] = torch.cuda.max_memory_allocated() / 2**30
            with profile(activities=[ProfilerActivity.CUDA]) as record:
                seen = workload.timed(work, self.device)
            busy = sum(event.self_device_time_total for event in record.key_averages())
            fact["GPU busy"] = busy / 1e6 / seen
        return fact

    def planned(self, method: Any, pack: int, tokens: int) -> float:
        """Return the GiB that a plan reckons with."""
        shape = shape_of(empty_model(self.spec), self.spec)
        device = "gpu" if self.cuda else "cpu"
        nothing = Inputs(
            backbone=self.spec,
            tokens=TokenCounts(load_tokenizer(self.spec)),
            words=LABELS,
            items={},
            sentences={},
        )
        terms = method.work(nothing).tuning_memory(shape, pack=pack, tokens=tokens, device=device)
        return total(terms) / 2**30

    def rows(self) -> TokenSet:
        """Tokenise sentences to tune on."""
        texts, labels = workload.sentences(None, 256 if self.small else 2000)
        encoded = workload.load(self.folder, dtype=self.dtype, device="cpu").encoder.encode(texts)
        return TokenSet(tuple(map(tuple, encoded)), tuple(labels))

    def machine(self) -> Iterator[Fact]:
        """Peaks by precision, a launch, and a layer's dropout masks."""
        for dtype in workload.DTYPES if self.cuda else (self.dtype,):
            reached = workload.peak_tflops(dtype, self.device)
            yield {"what": f"matrix product, {dtype}", "TFLOP/s": reached}
        one = torch.zeros(8, device=self.device)
        yield self.measured("1,000 launches", lambda: [one.add_(1) for _ in range(1000)])
        count = 120 if self.cuda else 4
        keys_N2 = keys(list(range(count)), torch.device(self.device))
        yield self.measured(
            f"dropout masks, {count} x 32 x 5,120", lambda: kept(keys_N2, (32, 5120), 0.1)
        )

    def attention(self) -> Iterator[Fact]:
        """Attend under a mask with four query heads to each of keys: repeated, and as they are."""
        rows, length, width = (2, 64, 16) if self.small else (16, 256, 128)
        query, key, value = (
            torch.randn(rows, heads, length, width, device=self.device, dtype=DTYPES[self.dtype])
            for heads in (32, 8, 8)
        )
        mask = torch.ones(rows, 1, length, length, dtype=torch.bool, device=self.device).tril()
        flops = 4.0 * rows * 32 * length * length * width
        taken = "a fused kernel" if takes_groups(query, key, value, mask) else "no fused kernel"
        ways = {
            "keys repeated": lambda: attend(query, repeat_kv(key, 4), repeat_kv(value, 4), mask),
            f"enable_gqa ({taken} takes it)": lambda: attend(
                query, key, value, mask, enable_gqa=True
            ),
        }
        for name, work in ways.items():
            yield self.measured(f"{rows} x {length} tokens, {name}", work, flops)

    def widths(self) -> Iterator[Fact]:
        """Take a step of 4 seeds in passes of one width each, as on a CPU, and in full passes."""
        rows = self.rows()
        ids = verbalizer_ids(
            workload.load(self.folder, dtype=self.dtype, device="cpu").tokenizer, LABELS
        )
        longest = max(map(len, rows.rows)) + SoftPrompt().prompt_length
        own = packing.shared_width
        for name, width in (("by width", own), ("in full", lambda _: longest)):
            vars(context)["shared_width"] = width
            tuner = tuning.packed(
                self.folder, tuning.Data(rows, ids), 4, dtype=self.dtype, device=self.device
            )
            yield self.measured(f"soft prompts, 4 seeds, passes {name}", tuner.advance)
        vars(context)["shared_width"] = own

    def zero(self) -> Iterator[Fact]:
        """Take a step of soft prompts on a backbone that one rank shards, and that several share.

        On a CPU two processes are the several.
        """
        several = torch.cuda.device_count() if self.cuda else 2
        for world in sorted({1, several}):
            with tempfile.NamedTemporaryFile("r", suffix=".json") as said:
                given = (world, free_port(), str(self.folder), self.dtype, self.device, said.name)
                spawn(zero_rank, args=given, nprocs=world)  # type: ignore[no-untyped-call]
                yield {"what": f"ZeRO-3, {world} ranks, 4 seeds", **json.load(said)}

    def load(self) -> Iterator[Fact]:
        """From the files (in the page cache) to the device."""
        for name, load in (
            ("load_backbone", workload.load), ("from_pretrained", workload.load_peer)
        ):  # fmt: skip
            given: Any = {"dtype": self.dtype, "device": self.device}
            yield self.measured(name, partial(load, self.folder, **given))

    def tune(self) -> Iterator[Fact]:
        """Take a step of soft prompts of 1, 4 and 15 seeds, and PEFT's of one."""
        rows = self.rows()
        ids = verbalizer_ids(
            workload.load(self.folder, dtype=self.dtype, device="cpu").tokenizer, LABELS
        )
        data = tuning.Data(rows, ids)
        for seeds in (1, 4, 15):
            tuner = tuning.packed(self.folder, data, seeds, dtype=self.dtype, device=self.device)
            model = tuner.trainer.backbone.model  # type: ignore[attr-defined]
            tokens = seeds * tuning.needed_tokens(data, seeds, range(3))
            flops = workload.model_flops(model, tokens, backward=True)
            fact = self.measured(f"soft prompts, {seeds} seeds", tuner.advance, flops)
            yield {**fact, "planned GiB": self.planned(SoftPrompt(), seeds, 4096)}
        step = tuning.peft_step(self.folder, data, dtype=self.dtype, device=self.device)
        yield self.measured("PEFT, 1 seed", lambda: step(0, 1))

    def lora(self) -> Iterator[Fact]:
        """Take a step of LoRA with and without dropout, and PEFT's of one seed."""
        rows, tuner = self.rows(), None
        for dropout in (0.1, 0.0):
            for seeds in (1, 5):
                tuner = lora.packed(
                    self.folder, rows, seeds, dtype=self.dtype, device=self.device, dropout=dropout
                )
                fact = self.measured(f"LoRA, {seeds} seeds, dropout {dropout}", tuner.advance)
                yield {**fact, "planned GiB": self.planned(Lora(dropout=dropout), seeds, 4096)}
        if tuner is not None:
            step = lora.peft_step(self.folder, rows, tuner, dtype=self.dtype, device=self.device)
            yield self.measured("PEFT, 1 seed, dropout 0.1", lambda: step(0, 1))

    def shard(self) -> Iterator[Fact]:
        """Label logits of 2,048 items."""
        backbone = workload.load(self.folder, dtype=self.dtype, device=self.device)
        rows = backbone.encoder.encode(workload.items(None, 64 if self.small else 2048))
        labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
        distinct = workload.distinct_tokens(rows)
        flops = workload.model_flops(backbone.model, distinct, backward=False)
        score = partial(labelling.label_logits, labeller, rows)
        yield self.measured(f"{len(rows)} rows scored", score, flops)

    def repeat(self) -> Iterator[Fact]:
        """Take steps of 4 seeds and read 2,048 items, with and without `deterministic`.

        Both have the workspace that cuBLAS repeats itself with, which a process chooses once.
        """
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        rows = self.rows()
        encoder = workload.load(self.folder, dtype=self.dtype, device="cpu").encoder
        ids = verbalizer_ids(encoder.tokenizer, LABELS)
        texts = encoder.encode(workload.items(None, 64 if self.small else 2048))
        for deterministic in (False, True):
            Execution(deterministic=deterministic).set_torch()
            given: Any = {
                "dtype": self.dtype, "device": self.device, "deterministic": deterministic
            }  # fmt: skip
            how = "bits that repeat" if deterministic else "bits that may vary"
            for name, tuner in (
                ("soft prompts", tuning.packed(self.folder, tuning.Data(rows, ids), 4, **given)),
                ("LoRA, dropout 0.1", lora.packed(self.folder, rows, 4, **given)),
            ):
                yield self.measured(f"{name}, 4 seeds, {how}", tuner.advance)
            labeller = labelling.labeller(workload.load(self.folder, **given), ids)
            score = partial(labelling.label_logits, labeller, texts)
            yield self.measured(f"{len(texts)} rows scored, {how}", score)

    def prompts(self) -> Iterator[Fact]:
        """Nine shots and 3 tokens, and 64 tokens, beside transformers' generate at batch 16."""
        backbone = workload.load(self.folder, dtype=self.dtype, device=self.device)
        generator, texts = EngineAnswers(backbone), workload.items(None, 8 if self.small else 64)
        shown = [(text, n % 3) for n, text in enumerate(workload.sentences(None, 9)[0])]
        drawn = Sampling(0.8, 50, 1.0, 0.0, 1.0, ())
        for what, new, written in (
            (
                "9 shots, 3 new tokens",
                3,
                [plain(FewShot()).first(text, LABELS, shown) for text in texts],
            ),
            ("64 new tokens", 64, texts),
        ):
            ours = partial(
                generator.generate, backbone.encoder.encode(written),
                [(1, n) for n in range(len(texts))],
                sampling=drawn, max_new_tokens=new,
            )  # fmt: skip
            yield self.measured(what, ours)
            peer = partial(self._generate, backbone, written, new)
            yield self.measured(f"{what}, generate", peer)

    def _generate(self, backbone: Any, texts: list[str], new: int) -> None:
        backbone.tokenizer.padding_side = "left"
        for first in range(0, len(texts), 16):
            batch = backbone.tokenizer(texts[first : first + 16], return_tensors="pt", padding=True)
            backbone.model.generate(
                input_ids=batch["input_ids"].to(self.device), do_sample=True, temperature=0.8,
                attention_mask=batch["attention_mask"].to(self.device), min_new_tokens=new,
                max_new_tokens=new, pad_token_id=1,
            )  # fmt: skip


def free_port() -> int:
    """Find a port for the ranks of a group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def zero_rank(
    rank: int, world: int, port: int, folder: str, dtype: str, kind: str, out: str
) -> None:
    """Tune on one rank of a group that shards a backbone; the first writes down what it took."""
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if kind == "cpu" else "nccl", rank=rank, world_size=world)
    from raybias.runtime.worker_group import Zero3

    sharding = Zero3(dtype, device)
    spec = Backbone.model_validate({"id": folder, "dtype": dtype})
    method = SoftPrompt(seeds=(0, 1, 2, 3), keep=1, eval_every=1, learning_rates=(1e-3,))
    trainer = method.trainer(
        ModelContext(spec, LABELS, Execution(device=device, sharding=sharding))
    )
    texts, labels = workload.sentences(None, 64)
    rows = TokenSet(tuple(map(tuple, method.encode(trainer.encoder, texts))), tuple(labels))
    one = TokenSet(rows.rows[:1], rows.labels[:1])
    trials = [Trial(f"s{seed}", seed, 1e-3, "final", 1e-2, 5) for seed in method.seeds]
    tuner = PackedTuner(trainer, method.recipe, trials, train=rows, validation=one)
    tuner.advance()
    spent = sorted(workload.timed(tuner.advance, kind) for _ in range(3))[1]
    fact: Fact = {"ms": 1e3 * spent}
    if device.type == "cuda":
        fact["GiB"] = torch.cuda.max_memory_allocated() / 2**30
    if rank == 0:
        Path(out).write_text(json.dumps(fact))
    dist.barrier()
    dist.destroy_process_group()


def run_part(part: str, shape: str, device: str) -> None:
    """Print a part's facts, a line of JSON each."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(shape, device, Path(folder))
        for fact in getattr(bench, part)():
            print(json.dumps({"part": part, "shape": shape, **fact}), flush=True)


def facts(part: str, shape: str, device: str, seconds: float) -> list[Fact]:
    """Run a part in a process of its own; what it printed before its limit counts."""
    words = [sys.executable, __file__, "--part", part, "--shape", shape, "--device", device]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        said, wrong = (
            done.stdout,
            done.stderr.strip().rpartition("\n")[2] if done.returncode else "",
        )
    except subprocess.TimeoutExpired as error:
        said, wrong = (error.stdout or b"").decode(), f"cut off after {seconds:.0f} s"
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return found + ([{"part": part, "shape": shape, "what": wrong}] if wrong else [])


def main(
    device: workload.DeviceOption = "cuda",
    part: Annotated[str | None, typer.Option(help="This part alone, without a page.")] = None,
    shape: workload.ShapeOption = "125m",
    tiny: Annotated[bool, typer.Option(help="The smallest shape everywhere.")] = False,
    seconds: Annotated[float, typer.Option(help="Limit on all parts together.")] = 540,
    out: workload.OutOption = None,
) -> None:
    """Run the parts and publish a page."""
    if part is not None:
        run_part(part, shape, device)
        return
    end, shares = time.monotonic() + seconds, sum(share for *_, share in PLAN)
    rows: list[Fact] = []
    for name, own, share in PLAN:
        if tiny and own != "125m" and (name, "tiny") in {(r["part"], r["shape"]) for r in rows}:
            continue
        left = end - time.monotonic()
        if left > 1:
            limit = min(left, max(30.0, 2 * seconds * share / shares))
            rows += facts(name, "tiny" if tiny else own, device, limit)
            print(rows[-1] if rows else name, file=sys.stderr, flush=True)
    headers = (
        "part",
        "shape",
        "what",
        "ms",
        "TFLOP/s",
        "of peak",
        "GPU busy",
        "GiB",
        "planned GiB",
    )
    table = [tuple(row.get(name, "") for name in headers) for row in rows]
    workload.publish(
        f"The engine on {device}", [workload.markdown(table, headers)],
        device=device, peer="peft", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
