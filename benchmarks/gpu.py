"""The engine on one GPU: packs against PEFT run by run, scoring against HFLM, and its own limits.

Each part is a process of its own with a limit, so that a part that fails or hangs leaves the others
their time; all of it ends after --seconds. Parts: race (fifteen runs of prompts and of LoRA),
curves (their losses beside PEFT's, in float32), score.
`benchmarks/speed.py --device cuda` has the constants of the cost curve.

    python benchmarks/gpu.py --out gpu.md
    python benchmarks/gpu.py --part race --shape 1.3b
    python benchmarks/gpu.py --device cpu --tiny       # whether the script itself runs
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import harness
import labelling
import lora
import polars as pl
import torch
import tuning
import typer
import workload
from harness import DTYPES, DeviceOption, OutOption, ShapeOption, timed
from torch import Tensor

from raybias.engine.adapters.base import TrainingBatch
from raybias.engine.adapters.tuning import PackedTuner, TokenSet
from raybias.engine.backbone import LoadedBackbone, empty_model
from raybias.engine.context import Execution
from raybias.engine.encoder import load_tokenizer, verbalizer_ids
from raybias.engine.memory import total
from raybias.engine.model_shape import shape_of
from raybias.methods import Lora, SoftPrompt
from raybias.methods.base import Inputs
from raybias.methods.work import TokenCounts
from raybias.planning.machine import CPU, GPUS, Layout
from raybias.planning.workload import Passes, TuningWork
from raybias.schema import LABELS

#: A part, its shape, and its share of the seconds; what matters most comes first.
PLAN = (
    ("race", "1.3b", 4), ("race", "6.7b", 6), ("curves", "1.3b", 3), ("score", "1.3b", 3),
    ("score", "6.7b", 4), ("race", "13b", 6),
)  # fmt: skip
#: Runs of a pack, those of them that PEFT takes a step of in a round, and rounds.
RUNS, ALONE, ROUNDS = 15, 3, 5
#: Tokens of a pass.
BUDGET = Execution().tokens_per_batch
#: Seconds over which NVML is asked how busy the GPU is.
WATCHED = 2.0
Fact = dict[str, Any]


class Bench:
    """One part on one shape."""

    def __init__(self, shape: str, device: str, folder: Path, *, exact: bool = False) -> None:
        self.device, self.cuda = device, device.startswith("cuda")
        self.dtype = "bfloat16" if self.cuda and not exact else "float32"
        self.small = shape == "tiny"
        self.folder = workload.save_model(folder, shape, dtype=self.dtype, device=device)
        self.how: dict[str, Any] = {"dtype": self.dtype, "device": device}
        self.spec = workload.spec_of(folder, self.dtype)
        self.peak = peak_tflops(self.dtype, device)

    def measured(self, what: str, work: Callable[[], object], flops: float = 0.0) -> Fact:
        """Time a call: median seconds, FLOP/s, memory, and how busy NVML says the GPU is."""
        work()
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        spent = sorted(timed(work, self.device) for _ in range(ROUNDS))[ROUNDS // 2]
        fact: Fact = {"what": what, "ms": 1e3 * spent}
        if flops:
            fact |= self.reached(flops, spent)
        if self.cuda:
            fact["GiB"] = torch.cuda.max_memory_allocated() / 2**30
            fact["busy"] = busy(work)
        return fact

    def reached(self, flops: float, seconds: float) -> Fact:
        """Return FLOP/s, and their share of a large matrix product's."""
        return {"TFLOP/s": (rate := flops / seconds / 1e12), "of peak": rate / self.peak}

    def planned(self, method: Any, rows: TokenSet) -> Fact:
        """Return the milliseconds of a step and the GiB that a plan reckons with."""
        frame = pl.DataFrame({"text": workload.sentences(None, len(rows.rows))[0]})
        inputs = Inputs(
            backbone=self.spec, tokens=TokenCounts(load_tokenizer(self.spec)),
            labels=LABELS, words=LABELS,
            items={}, sentences={"sst5": {"train": frame, "validation": frame}},
        )  # fmt: skip
        shape, work = shape_of(empty_model(self.spec), self.spec), method.work(inputs)
        on = "gpu" if self.cuda else "cpu"
        terms = work.tuning_memory(shape, pack=RUNS, tokens=BUDGET, device=on)
        passes = Passes(shape, work.weight_bytes(shape), shape.block_parameters)
        kind = torch.cuda.get_device_name() if self.cuda else ""
        speed = next((speed for name, speed in GPUS.items() if name in kind), CPU)
        own = TuningWork(**vars(work.tuning["sst5"]), passes=passes)
        step = own.step_seconds(speed, Layout(BUDGET), RUNS)
        return {"planned ms": 1e3 * step, "planned GiB": total(terms) / 2**30}

    def loaded(self) -> tuple[LoadedBackbone, TokenSet, tuple[int, ...]]:
        """Load ours; the sentences to tune on, and the label words' tokens."""
        backbone = workload.load(self.folder, **self.how)
        rows = workload.rows_of(backbone, None, 256 if self.small else 2000)
        return backbone, rows, verbalizer_ids(backbone.tokenizer, LABELS)

    def race(self) -> Iterator[Fact]:
        """Take a step of fifteen runs of prompts and of LoRA, and PEFT's of as many, in turn."""
        backbone, rows, ids = self.loaded()
        # Forward and the gradient of activations, of eight rows a run.
        flops = 4 * weights(backbone.model) * 8 * RUNS * statistics.mean(map(len, rows.rows))
        tuner = tuning.packed(backbone, rows, RUNS)
        fact = self.measured(f"soft prompts, {RUNS} runs", tuner.advance)
        step = tuning.peft_step(workload.load_peer(self.folder, **self.how), rows, ids, self.device)
        yield fact | self.raced(SoftPrompt(), tuner, step, flops)
        # Two models of this size at a time are enough.
        del backbone, tuner, step
        for dropout in (0.1, 0.0):
            gc.collect()
            tuner = lora.packed(self.folder, rows, RUNS, **self.how, dropout=dropout)
            fact = self.measured(f"LoRA, dropout {dropout}, {RUNS} runs", tuner.advance)
            step = lora.peft_step(self.folder, rows, tuner, **self.how)
            yield fact | self.raced(Lora(dropout=dropout), tuner, step, flops)
            del tuner, step

    def raced(
        self, method: Any, tuner: PackedTuner, step: Callable[[int, int], Tensor], flops: float
    ) -> Fact:
        """Time a pack's step, and in turn with it a peer's steps of its runs, one by one."""
        sides = {
            "ours": lambda _: tuner.advance(),
            "PEFT": lambda turn: [step(seed, turn) for seed in range(ALONE)],
        }
        spent = harness.interleave(sides, rounds=ROUNDS, device=self.device)
        ours, theirs = (statistics.median(spent[name]) for name in sides)
        return {
            "ms": 1e3 * ours, "PEFT ms": 1e3 * theirs * RUNS / ALONE,
            "ratio": theirs * RUNS / ALONE / ours,
            **self.reached(flops, ours), **self.planned(method, tuner.train),
        }  # fmt: skip

    def curves(self) -> Iterator[Fact]:
        """Compare training losses of ten steps in float32: a pack's runs, and PEFT's from there."""
        backbone, rows, ids = self.loaded()
        peer = workload.load_peer(self.folder, **self.how)
        prompts = tuning.packed(backbone, rows, RUNS)
        trainer: Any = prompts.trainer

        def prompt_step(seed: int) -> Callable[[int, int], Tensor]:
            start_PD = trainer.prompt(trainer.init_weights(seed))
            return tuning.peft_step(peer, rows, ids, self.device, start_PD)

        yield curve("soft prompts", prompts, prompt_step)
        tuner = lora.packed(self.folder, rows, RUNS, **self.how, dropout=0.0)
        yield curve("LoRA", tuner, lambda seed: lora.peft_step(
            self.folder, rows, tuner, **self.how, start=tuner.trainer.init_weights(seed)
        ))  # fmt: skip

    def score(self) -> Iterator[Fact]:
        """Read the label logits of 2,048 items; HFLM's log-likelihoods of the three labels."""
        texts = workload.items(None, 64 if self.small else 2048)
        backbone = workload.load(self.folder, **self.how)
        rows = backbone.encoder.encode(texts)
        labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
        tokens = sum(map(len, rows))
        fact = self.measured(
            f"{len(rows)} rows scored", partial(labelling.label_logits, labeller, rows),
            2 * weights(backbone.model) * tokens,
        )  # fmt: skip
        yield {**fact, "tokens/s": 1e3 * tokens / fact["ms"]}
        import scoring

        peer = workload.load_peer(self.folder, **self.how)
        lm = scoring.harness_model(peer, backbone.tokenizer, add_bos_token=True)
        fact = self.measured("HFLM, batch 32", lambda: scoring.label_likelihoods(lm, texts))
        yield {**fact, "tokens/s": 1e3 * tokens / fact["ms"]}


def busy(work: Callable[[], object]) -> float:
    """Repeat a call for some seconds; the mean share of the time that NVML says kernels ran."""
    seen: list[int] = []
    end = time.monotonic() + WATCHED
    while time.monotonic() < end:
        work()
        torch.cuda.synchronize()
        seen.append(torch.cuda.utilization())
    # What NVML says first is of what was before.
    return statistics.mean(seen[len(seen) // 4 :]) / 100


def curve(
    what: str, tuner: PackedTuner, peer: Callable[[int], Callable[[int, int], Tensor]]
) -> Fact:
    """Take ten steps of a pack, and of two of its runs alone with PEFT; how far losses differ."""
    trainer, losses = tuner.trainer, list[list[float]]()
    gradients = trainer.gradients

    def recorded(batches: Sequence[TrainingBatch]) -> Any:
        found = gradients(batches)
        losses.append(found[1].tolist())
        return found

    trainer.gradients = recorded  # type: ignore[method-assign]
    for _ in range(10):
        tuner.advance()
    gaps = []
    for seed in (0, RUNS - 1):
        step = peer(seed)
        gaps += [abs(float(step(seed, n)) - losses[n][seed]) for n in range(10)]
    moved = statistics.mean(abs(a - b) for a, b in zip(losses[-1], losses[0], strict=True))
    return {"what": f"{what}: losses of 10 steps differ by at most {max(gaps):.1e},"
            f" and moved by {moved:.1e}"}  # fmt: skip


def peak_tflops(dtype: str, device: str) -> float:
    """Measure what a large matrix product reaches here and now, in TFLOP/s."""
    size = 8192 if device.startswith("cuda") else 2048
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[dtype]) for _ in range(2))
    return 2 * size**3 / sorted(timed(lambda: a @ b, device) for _ in range(8))[4] / 1e12


def weights(model: Any) -> int:
    """Count the weights of the blocks, each of which takes two operations a token and pass."""
    linear = (each for each in model.base_model.modules() if isinstance(each, torch.nn.Linear))
    return sum(each.weight.numel() for each in linear)


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
            for fact in getattr(Bench(shape, device, Path(folder), exact=part == "curves"), part)():
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
        "part", "shape", "what", "ms", "PEFT ms", "ratio", "planned ms", "tokens/s", "TFLOP/s",
        "of peak", "busy", "GiB", "planned GiB",
    )  # fmt: skip
    table = [tuple(row.get(name, "") for name in headers) for row in rows]
    harness.publish(
        f"The engine on {device}", [harness.markdown(table, headers)], device=device, out=out
    )


if __name__ == "__main__":
    typer.run(main)
