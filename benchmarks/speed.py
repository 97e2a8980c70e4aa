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
import tuning
import typer
import workload
from transformers import AutoModelForCausalLM, OPTConfig

from raybias.engine.adapters.tuning import PackedTuner, TokenSet
from raybias.engine.encoder import verbalizer_ids
from raybias.methods.work import Widths
from raybias.planning.workload import _BOTH_WAYS as BOTH_WAYS
from raybias.schema import LABELS

PACKS = (1, 2, 4, 8)
#: Hidden width and layers of the shapes.
SHAPES = {"shallow": (32, 2), "deep": (32, 24), "wide": (768, 4)}


def step_seconds(
    place: Path, width: int, layers: int, *, rounds: int, dtype: str, device: str
) -> tuple[dict[int, float], float, int]:
    """Seconds of a step by the size of its pack; tokens of one run's step, and block weights."""
    config = OPTConfig(
        vocab_size=workload.VOCABULARY, hidden_size=width,
        word_embed_proj_dim=width, ffn_dim=4 * width, num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64), max_position_embeddings=workload.CONTEXT,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=workload.DTYPES[dtype])
    model.save_pretrained(place)
    workload.tokenizer(None).save_pretrained(place)
    backbone = workload.load(place, dtype=dtype, device=device)
    texts, labels = workload.sentences(None, 400)
    rows = TokenSet(tuple(map(tuple, backbone.encoder.encode(texts))), tuple(labels))
    data = tuning.Data(rows, verbalizer_ids(backbone.tokenizer, LABELS))
    tuners = {n: tuning.packed(place, data, n, dtype=dtype, device=device) for n in PACKS}
    times = {
        n: [_timed(tuner, device) for _ in range(rounds + 1)][1:] for n, tuner in tuners.items()
    }
    weights = sum(p.numel() for p in model.model.decoder.layers.parameters())
    tokens = 8 * (statistics.mean(map(len, rows.rows)) + 8)
    return {n: min(each) for n, each in times.items()}, tokens, weights


def _timed(tuner: PackedTuner, device: str) -> float:
    """Seconds of a step; of one thread on a CPU, whatever else it does meanwhile."""
    if device == "cpu":
        begun = time.thread_time()
        tuner.advance()
        return time.thread_time() - begun
    torch.cuda.synchronize()
    begun = time.perf_counter()
    tuner.advance()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def bandwidth(device: str) -> float:
    """Bytes/s read and written by a large copy."""
    source = torch.zeros(2**26, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return 2 * source.numel() * source.element_size() / best


def main(
    rounds: Annotated[int, typer.Option(help="Steps of each pack; the fastest counts.")] = 5,
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    out: workload.OutOption = None,
) -> None:
    """Print the constants, and the steps that they come from."""
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, (width, layers) in SHAPES.items():
            found[name] = step_seconds(
                Path(temporary) / name, width, layers, rounds=rounds, dtype=dtype, device=device
            )
    lines, seconds = [], []
    for name, (times, tokens, weights) in found.items():
        for runs, each in times.items():
            passes = Widths.packed(tokens / 8).batches(8 * runs)
            lines.append(
                [4.0 * weights * tokens * runs, BOTH_WAYS * SHAPES[name][1] * passes, 1.0, runs]
            )
            seconds.append(each)
    # Relative errors count alike, small steps and large.
    scale = np.array(seconds)
    (per_flop, launch, step, run), *_ = np.linalg.lstsq(
        np.array(lines) / scale[:, None], np.ones(len(scale)), rcond=None
    )
    fitted = np.array(lines) @ np.array([per_flop, launch, step, run])
    rows = [
        (name, runs, 1e3 * times[runs], 1e3 * float(fitted[4 * n + m]))
        for n, (name, (times, *_)) in enumerate(found.items())
        for m, runs in enumerate(PACKS)
    ]
    constants = [
        ("peak x reached, GFLOP/s", 1e-9 / per_flop),
        ("bandwidth, GB/s", bandwidth(device) / 1e9),
        ("launch, ms", 1e3 * launch),
        ("step, ms", 1e3 * step),
        ("run, ms", 1e3 * run),
    ]
    workload.publish(
        f"Constants of the cost curve, {device}, {dtype}, one thread",
        [
            workload.markdown(constants, ("constant", "measured")),
            workload.markdown(rows, ("model", "runs of a pack", "step, ms", "by the curve, ms")),
        ],
        device=device, peer="ray", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
