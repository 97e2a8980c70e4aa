"""Where a side's time goes: what stands between it and the limit that bare products set.

The share of a limit that is reached is a product of three: the part of the time that goes to matrix
products, their rate against that of one large product, and the part of their operations that no
method can leave out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import workload
from torch.profiler import ProfilerActivity, profile

#: Which operators a line stands for.
KINDS = {
    "attention": ("scaled_dot_product", "bmm", "softmax"),
    "linear": ("mm", "linear"),
    "copies": ("copy_", "cat", "fill_", "index", "where", "zero"),
    "norm and activation": ("layer_norm", "clamp_min", "threshold", "relu", "add", "mul"),
}


@dataclass(frozen=True)
class Profile:
    """One pass of a side, by kind of operator.

    Attributes
    ----------
    percent: of operator time.
    tflops: operations of the linear layers' products, and how many of them a second.
    """

    percent: dict[str, float]
    flops: float
    tflops: float


def where_time_goes(work: Callable[[], object], device: str) -> Profile:
    """Profile one pass of what has run before.

    The profiler knows wall time; on a CPU that other work shares, all of it is reduced by the part
    in which this process did not run.
    """
    cuda = device.startswith("cuda")
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
    return Profile(percent, flops, flops / seconds / 1e12 if seconds else 0.0)


def between(
    sides: Mapping[str, Callable[[], object]], needed: Mapping[str, float], device: str
) -> str:
    """Make the Markdown table of what stands between sides and the limit.

    Parameters
    ----------
    needed: operations that no method can leave out.
    """
    rows = []
    for name, work in sides.items():
        found = where_time_goes(work, device)
        precision = next(word for word in workload.DTYPES if word in name)
        rate = found.tflops / workload.peak_tflops(precision, device)
        shown = (f"{percent:.0f}%" for percent in found.percent.values())
        useful = f"{needed[name] / found.flops:.0%}" if found.flops else ""
        rows.append((name, *shown, f"{rate:.0%}", useful))
    headers = ("time goes to", *KINDS, "other", "linear, of the peak", "of that needed")
    return workload.markdown(rows, headers)


def _belongs(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts) and "Backward" not in name
