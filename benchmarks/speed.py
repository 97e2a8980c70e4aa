"""The constants of the cost curve, measured on the machine at hand.

raybias's own `PackedTuner` takes steps of packs of several sizes on two random OPTs: one so small
that a step is all launches and bookkeeping, with few and with many layers, and one large enough
that products take its time. Least squares give what `planning/machine.py` calls `launch`, `step`,
`run` and the peak times the share reached; a copy gives the bandwidth.

    python benchmarks/speed.py --rounds 5
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
import workload
from harness import DeviceOption, OutOption, markdown, publish, timed
from tuning import packed

from raybias.methods.work import Widths
from raybias.planning.workload import _BOTH_WAYS as BOTH_WAYS

PACKS = (1, 2, 4, 8)
#: Hidden width, layers and heads of the shapes.
SHAPES = {"shallow": (32, 2, 1), "deep": (32, 24, 1), "wide": (768, 4, 12)}


def main(
    rounds: Annotated[int, typer.Option(help="Steps of each pack; the fastest counts.")] = 5,
    device: DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    out: OutOption = None,
) -> None:
    """Print the constants, and the steps that they come from."""
    torch.set_num_threads(1)
    # Of one thread on a CPU, whatever else it does meanwhile.
    clock = time.thread_time if device == "cpu" else time.perf_counter
    names, lines, seconds = [], [], []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = workload.save_model(Path(temporary), shape, dtype=dtype)
            backbone = workload.load(folder, dtype=dtype, device=device)
            rows = workload.rows_of(backbone, None, 400)
            weights = sum(p.numel() for p in backbone.model.model.decoder.layers.parameters())
            # Of one run's step, with its eight prompts of eight vectors.
            tokens = 8 * (statistics.mean(map(len, rows.rows)) + 8)
            for runs in PACKS:
                tuner = packed(backbone, rows, runs)
                tuner.advance()
                best = min(timed(tuner.advance, device, clock) for _ in range(rounds))
                passes = Widths.packed(tokens / 8).batches(8 * runs)
                names.append((name, runs))
                lines.append(
                    [4.0 * weights * tokens * runs, BOTH_WAYS * shape[1] * passes, 1, runs]
                )
                seconds.append(best)
    # Relative errors count alike, small steps and large.
    scale = np.array(seconds)
    constants, *_ = np.linalg.lstsq(np.array(lines) / scale[:, None], np.ones(len(scale)))
    per_flop, *launch_step_run = constants
    steps = np.stack([scale, np.array(lines) @ constants], axis=1) * 1e3
    source = torch.zeros(2**26, device=device)
    target = torch.empty_like(source)
    copied = min(timed(lambda: target.copy_(source), device) for _ in range(5))
    found = [
        ("peak x reached, GFLOP/s", 1e-9 / per_flop),
        ("bandwidth, GB/s", 2 * source.numel() * source.element_size() / copied / 1e9),
        *((f"{what}, ms", 1e3 * each)
          for what, each in zip(("launch", "step", "run"), launch_step_run, strict=True)),
    ]  # fmt: skip
    publish(
        f"Constants of the cost curve, {device}, {dtype}, one thread",
        [
            markdown(found, ("constant", "measured")),
            markdown([(*name, *step) for name, step in zip(names, steps, strict=True)],
                     ("model", "runs of a pack", "step, ms", "by the curve, ms")),
        ],
        device=device, out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
