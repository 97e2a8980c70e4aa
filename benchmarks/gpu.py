"""The engine on one GPU, part by part: time, FLOP/s against the peak, memory against the plan.

Each part is a process of its own with a limit, so that a part that fails or hangs leaves the others
their time; all of it ends after --seconds. Parts: machine, zero (ZeRO-3 on one GPU and on all),
tune, lora, shard, repeat (the price of bits that repeat). Prompts are compared by
`python -m benchmarks --only prompting --device cuda`.

    python benchmarks/gpu.py --out gpu.md
    python benchmarks/gpu.py --part lora --shape 1.3b
    python benchmarks/gpu.py --device cpu --tiny       # whether the script itself runs
"""

from __future__ import annotations

import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import harness
import labelling
import lora
import torch
import torch.distributed as dist
import tuning
import typer
import workload
from harness import DTYPES, DeviceOption, OutOption, ShapeOption, timed
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile

from raybias.config import Backbone
from raybias.engine.adapters.tuning import TokenSet
from raybias.engine.backbone import LoadedBackbone, ModelContext, empty_model, shape_of
from raybias.engine.context import Execution
from raybias.engine.encoder import load_tokenizer, verbalizer_ids
from raybias.engine.keyed_draws import kept, keys
from raybias.engine.memory import total
from raybias.methods import Lora, SoftPrompt
from raybias.methods.base import Inputs
from raybias.methods.work import TokenCounts
from raybias.schema import LABELS

#: A part, its shape, and its share of the seconds.
PLAN = (
    ("machine", "125m", 1), ("zero", "125m", 2), ("tune", "125m", 2), ("lora", "125m", 2),
    ("shard", "1.3b", 2), ("repeat", "1.3b", 3), ("tune", "1.3b", 3), ("lora", "1.3b", 3),
    ("shard", "7b_grouped", 3), ("tune", "13b", 4), ("lora", "13b", 4),
)  # fmt: skip
Fact = dict[str, Any]


class Bench:
    """One part on one shape."""

    def __init__(self, shape: str, device: str, folder: Path) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        self.dtype = "bfloat16" if self.cuda else "float32"
        self.small = shape == "tiny"
        self.folder = workload.save_model(folder, shape, dtype=self.dtype, device=device)
        self.how: dict[str, Any] = {"dtype": self.dtype, "device": device}
        self.spec = workload.spec_of(folder, self.dtype)
        self.peak = peak_tflops(self.dtype, device)

    def measured(self, what: str, work: Callable[[], object], flops: float = 0.0) -> Fact:
        """Time a call: median seconds, reached FLOP/s, share of time with the GPU busy, memory."""
        work()
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        spent = sorted(timed(work, self.device) for _ in range(3))[1]
        fact: Fact = {"what": what, "ms": 1e3 * spent}
        if flops:
            reached = flops / spent / 1e12
            fact |= {"TFLOP/s": reached, "of peak": reached / self.peak}
        if self.cuda:
            fact["GiB"] = torch.cuda.max_memory_allocated() / 2**30
            with profile(activities=[ProfilerActivity.CUDA]) as record:
                seen = timed(work, self.device)
            busy = sum(event.self_device_time_total for event in record.key_averages())
            fact["GPU busy"] = busy / 1e6 / seen
        return fact

    def planned(self, method: Any, pack: int) -> Fact:
        """Return the GiB that a plan reckons with."""
        nothing = Inputs(
            backbone=self.spec, tokens=TokenCounts(load_tokenizer(self.spec)), words=LABELS,
            items={}, sentences={},
        )  # fmt: skip
        terms = method.work(nothing).tuning_memory(
            shape_of(empty_model(self.spec), self.spec), pack=pack, tokens=4096,
            device="gpu" if self.cuda else "cpu",
        )  # fmt: skip
        return {"planned GiB": total(terms) / 2**30}

    def loaded(self) -> tuple[LoadedBackbone, TokenSet, tuple[int, ...]]:
        """Load ours; the sentences to tune on, and the label words' tokens."""
        backbone = workload.load(self.folder, **self.how)
        rows = workload.rows_of(backbone, None, 256 if self.small else 2000)
        return backbone, rows, verbalizer_ids(backbone.tokenizer, LABELS)

    def machine(self) -> Iterator[Fact]:
        """Peaks by precision, a launch, and a layer's dropout masks."""
        for dtype in DTYPES if self.cuda else (self.dtype,):
            reached = peak_tflops(dtype, self.device)
            yield {"what": f"matrix product, {dtype}", "TFLOP/s": reached}
        one = torch.zeros(8, device=self.device)
        yield self.measured("1,000 launches", lambda: [one.add_(1) for _ in range(1000)])
        count = 120 if self.cuda else 4
        keys_N2 = keys(list(range(count)), torch.device(self.device))
        masks = partial(kept, keys_N2, (32, 5120), 0.1)
        yield self.measured(f"dropout masks, {count} x 32 x 5,120", masks)

    def zero(self) -> Iterator[Fact]:
        """Take a step of soft prompts on a backbone that one rank shards, and that several share.

        On a CPU two processes are the several.
        """
        several = torch.cuda.device_count() if self.cuda else 2
        for world in sorted({1, several}):
            with tempfile.NamedTemporaryFile("r", suffix=".json") as said, socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = int(free.getsockname()[1])
                free.close()
                given = (world, port, str(self.folder), self.dtype, self.device, said.name)
                spawn(zero_rank, args=given, nprocs=world)  # type: ignore[no-untyped-call]
                yield {"what": f"ZeRO-3, {world} ranks, 4 seeds", **json.load(said)}

    def tune(self) -> Iterator[Fact]:
        """Take a step of soft prompts of 1, 4 and 15 seeds, and PEFT's of one."""
        backbone, rows, ids = self.loaded()
        for seeds in (1, 4, 15):
            tuner = tuning.packed(backbone, rows, seeds)
            # Forward and the gradient of activations, of eight rows and prompts a seed.
            tokens = 8 * seeds * (statistics.mean(map(len, rows.rows)) + 8)
            flops = 4 * weights(backbone.model) * tokens
            fact = self.measured(f"soft prompts, {seeds} seeds", tuner.advance, flops)
            yield {**fact, **self.planned(SoftPrompt(), seeds)}
        peer = workload.load_peer(self.folder, **self.how)
        step = tuning.peft_step(peer, rows, ids, self.device)
        yield self.measured("PEFT, 1 seed", lambda: step(0, 1))

    def lora(self) -> Iterator[Fact]:
        """Take a step of LoRA with and without dropout, and PEFT's of one seed."""
        _, rows, _ = self.loaded()
        for dropout, seeds in ((0.1, 1), (0.1, 5), (0.0, 1), (0.0, 5)):
            tuner = lora.packed(self.folder, rows, seeds, **self.how, dropout=dropout)
            fact = self.measured(f"LoRA, {seeds} seeds, dropout {dropout}", tuner.advance)
            yield {**fact, **self.planned(Lora(dropout=dropout), seeds)}
        step = lora.peft_step(self.folder, rows, tuner, **self.how)
        yield self.measured("PEFT, 1 seed, dropout 0.1", lambda: step(0, 1))

    def scored(self, backbone: LoadedBackbone, how: str = "") -> Fact:
        """Read the label logits of 2,048 items."""
        rows = backbone.encoder.encode(workload.items(None, 64 if self.small else 2048))
        labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
        flops = 2 * weights(backbone.model) * sum(map(len, rows))
        score = partial(labelling.label_logits, labeller, rows)
        return self.measured(f"{len(rows)} rows scored{how}", score, flops)

    def shard(self) -> Iterator[Fact]:
        """Label logits of 2,048 items."""
        yield self.scored(workload.load(self.folder, **self.how))

    def repeat(self) -> Iterator[Fact]:
        """Take steps of 4 seeds and read 2,048 items, with and without `deterministic`.

        Both have the workspace that cuBLAS repeats itself with, which a process chooses once.
        """
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        _, rows, _ = self.loaded()
        for deterministic in (False, True):
            Execution(deterministic=deterministic).set_torch()
            given = {**self.how, "deterministic": deterministic}
            how = f", bits that {'repeat' if deterministic else 'may vary'}"
            backbone = workload.load(self.folder, **given)
            for name, tuner in (
                ("soft prompts", tuning.packed(backbone, rows, 4)),
                ("LoRA, dropout 0.1", lora.packed(self.folder, rows, 4, **given)),
            ):
                yield self.measured(f"{name}, 4 seeds{how}", tuner.advance)
            yield self.scored(backbone, how)


def peak_tflops(dtype: str, device: str) -> float:
    """Measure what a large matrix product reaches here and now, in TFLOP/s."""
    size = 8192 if device.startswith("cuda") else 2048
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[dtype]) for _ in range(2))
    return 2 * size**3 / sorted(timed(lambda: a @ b, device) for _ in range(8))[4] / 1e12


def weights(model: Any) -> int:
    """Count the weights of the blocks, each of which takes two operations a token and pass."""
    linear = (each for each in model.base_model.modules() if isinstance(each, torch.nn.Linear))
    return sum(each.weight.numel() for each in linear)


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

    execution = Execution(device=device, sharding=Zero3(dtype, device))
    method = SoftPrompt(seeds=(0, 1, 2, 3), keep=1, eval_every=1, learning_rates=(1e-3,))
    spec = Backbone.model_validate({"id": folder, "dtype": dtype})
    trainer = method.trainer(ModelContext(spec, LABELS, execution))
    texts, labels = workload.sentences(None, 64)
    rows = TokenSet(tuple(map(tuple, method.encode(trainer.encoder, texts))), tuple(labels))
    tuner = tuning.pack_of(trainer, method, rows)
    tuner.advance()
    fact: Fact = {"ms": 1e3 * sorted(timed(tuner.advance, kind) for _ in range(3))[1]}
    if device.type == "cuda":
        fact["GiB"] = torch.cuda.max_memory_allocated() / 2**30
    if rank == 0:
        Path(out).write_text(json.dumps(fact))
    dist.barrier()
    dist.destroy_process_group()


def facts(part: str, shape: str, device: str, seconds: float) -> list[Fact]:
    """Run a part in a process of its own; what it printed before its limit counts."""
    words = [sys.executable, __file__, "--part", part, "--shape", shape, "--device", device]
    wrong = ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        said = done.stdout
        if done.returncode:
            wrong = done.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired as error:
        said, wrong = (error.stdout or b"").decode(), f"cut off after {seconds:.0f} s"
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return found + ([{"part": part, "shape": shape, "what": wrong}] if wrong else [])


def main(
    device: DeviceOption = "cuda",
    part: Annotated[str | None, typer.Option(help="This part alone, without a page.")] = None,
    shape: ShapeOption = "125m",
    tiny: Annotated[bool, typer.Option(help="The smallest shape everywhere.")] = False,
    seconds: Annotated[float, typer.Option(help="Limit on all parts together.")] = 540,
    out: OutOption = None,
) -> None:
    """Run the parts and publish a page."""
    if part is not None:
        with tempfile.TemporaryDirectory() as folder:
            for fact in getattr(Bench(shape, device, Path(folder)), part)():
                print(json.dumps({"part": part, "shape": shape, **fact}), flush=True)
        return
    plan = [*dict.fromkeys((name, "tiny", 1) for name, *_ in PLAN)] if tiny else PLAN
    end, shares = time.monotonic() + seconds, sum(share for *_, share in plan)
    rows: list[Fact] = []
    for name, own, share in plan:
        left = end - time.monotonic()
        if left > 1:
            rows += facts(name, own, device, min(left, max(30.0, 2 * seconds * share / shares)))
            print(rows[-1] if rows else name, file=sys.stderr, flush=True)
    headers = (
        "part", "shape", "what", "ms", "TFLOP/s", "of peak", "GPU busy", "GiB", "planned GiB",
    )  # fmt: skip
    table = [tuple(row.get(name, "") for name in headers) for row in rows]
    harness.publish(
        f"The engine on {device}", [harness.markdown(table, headers)], device=device, out=out
    )


if __name__ == "__main__":
    typer.run(main)
