"""Two sides of one kind of work, timed in turn on this machine: what every comparison is made of.

A benchmark that has a peer yields `Comparison`s from its function `comparisons(size)`; `MODULES` in
`__main__.py` names it. Both sides of a round do the same work one after the other, so what else a
machine does weighs on both; a ratio says more than seconds do.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.stats import ttest_1samp
from tabulate import tabulate

#: What a round's cost is on a CPU, where other processes take their share of a clock's seconds.
PROCESSOR = "processor time"
CLOCK = "wall time"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PACKAGES = ("torch", "transformers", "peft", "lm_eval", "minicons", "openai", "ray", "numpy")

ShapeOption = Annotated[str, typer.Option(help="small, 125m, 1.3b, 6.7b or 13b.")]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
OutOption = Annotated[Path | None, typer.Option(help="Also write the report to this file.")]


class MissingError(Exception):
    """What a comparison wants is not on this machine; says what, and where it comes from."""


@dataclass(frozen=True)
class Size:
    """How much a comparison does.

    Attributes
    ----------
    rounds: both sides in turn, after one that only warms up.
    seeds: runs of a pack.
    items: sentences of a request that a model scores; prompts, which cost more, are fewer.
    shape: of the random-weight models, a name of `workload.SHAPES`.
    dtypes: precisions of ours; peers have the first.
    data: folder that holds sst5, amazon, crows_pairs, winobias and bbq, as far as they are there,
        and tokenizer, which knows their words; texts of like lengths are made where one is not.
    """

    rounds: int
    seeds: int
    items: int
    shape: str = "125m"
    device: str = "cpu"
    threads: int = 2
    data: Path | None = None
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    @property
    def merges(self) -> Path | None:
        """Return where vocab.json and merges.txt lie, if there are data."""
        return self.data / "tokenizer" if self.data is not None else None

    def folder(self, name: str) -> Path | None:
        """Return where a data set lies, if it is there."""
        place = self.data / name if self.data is not None else None
        return place if place is not None and place.is_dir() else None


@dataclass(frozen=True)
class Comparison:
    """One kind of work, done by ours and by a peer.

    Attributes
    ----------
    ratios: a round's cost of the peer over ours, as often as there were rounds; above one, ours is
        the cheaper.
    cost: what was compared, `PROCESSOR` or `CLOCK`.
    alike: how near the results of both sides are; empty where that is not compared.
    """

    work: str
    ours: str
    peer: str
    cost: str
    ratios: tuple[float, ...]
    alike: str = ""

    def interval(self) -> tuple[float, float, float]:
        """Compute the geometric mean of the ratios, and its 95% t interval over rounds.

        Another round on this machine is what it covers, and no other machine. One round has no
        interval: both ends are NaN.
        """
        logs = np.log(self.ratios)
        if len(logs) < 2:
            return float(np.exp(logs.mean())), math.nan, math.nan
        found = ttest_1samp(logs, 0.0).confidence_interval()
        return float(np.exp(logs.mean())), float(np.exp(found.low)), float(np.exp(found.high))


def compare(module: str, size: Size) -> tuple[tuple[Comparison, ...], str]:
    """Run one module's comparisons; what they were, or why they could not run."""
    found: list[Comparison] = []
    try:
        torch.set_num_threads(size.threads)
        for each in importlib.import_module(module).comparisons(size):
            print(f"{module}: {each.work}: {each.interval()[0]:.2f}x {each.peer}", file=sys.stderr)
            found.append(each)
    except ModuleNotFoundError as error:
        return (), f"needs {error.name} (`pip install -c constraints.txt '.[bench,endpoints]'`)"
    except MissingError as error:
        return (), str(error)
    except Exception as error:  # A benchmark's fault is its line, and not the end of the others.
        return tuple(found), f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return tuple(found), ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of work that ours and peers do.

    Attributes
    ----------
    sides: contenders, each a function of the round; ours name their precision.
    peers: for each of ours, groups of contenders, of each of which the cheapest is its peer.
    alike: how near the results of each of ours are to a peer's; empty where it is not compared.
    scale: of contenders that do a part of the work.
    """

    title: str
    sides: Mapping[str, Callable[[int], object]]
    peers: Mapping[str, Sequence[Sequence[str]]]
    alike: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)


def measured(part: Part, size: Size) -> Iterator[Comparison]:
    """Time the sides of a part in turn, and compare each of ours with its peer."""
    spent = interleave(part.sides, rounds=size.rounds, device=size.device)
    for name, factor in part.scale.items():
        spent[name] = [factor * each for each in spent[name]]
    middle = {name: statistics.median(each) for name, each in spent.items()}
    cost = CLOCK if size.device != "cpu" else PROCESSOR
    for ours, groups in part.peers.items():
        for names in groups:
            peer = min(names, key=middle.__getitem__)
            pairs = zip(spent[peer], spent[ours], strict=True)
            ratios = tuple(theirs / own for theirs, own in pairs)
            alike = part.alike.get(ours, "")
            yield Comparison(part.title, ours, peer, cost, ratios, alike)


def interleave(
    sides: Mapping[str, Callable[[int], object]], *, rounds: int, device: str
) -> dict[str, list[float]]:
    """Time every side in turn, round after round; round 0 only warms up.

    Returns
    -------
    Seconds of each side, one entry a round: of the processor, which change less on a busy machine;
    of the clock on a GPU.
    """
    clock = time.perf_counter if device != "cpu" else time.process_time
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            found[name].append(timed(partial(work, turn), device, clock))
    return {name: seconds[1:] for name, seconds in found.items()}


def timed(
    work: Callable[[], object], device: str, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of `work`, its kernels included."""
    wait: Callable[[], object] = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    begun = clock()
    work()
    wait()
    return clock() - begun


def processor() -> str:
    """Name the processor, and whether it has AMX."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    amx = " with AMX" if any("amx_bf16" in line for line in lines) else ""
    return f"{names[0] if names else platform.machine()}{amx}"


def markdown(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    """Format a Markdown table."""
    return tabulate(rows, headers=headers, tablefmt="github", floatfmt=".2f")


def publish(
    title: str, parts: list[str], *, device: str, out: Path | None, threads: int = 0
) -> None:
    """Print a report of Markdown parts with its command and machine; write it to `out`."""
    whole = ["-m", "benchmarks"] if sys.argv[0].endswith("__main__.py") else sys.argv[:1]
    # Folders by their own names: where they lie differs from machine to machine.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    gpu = f"{torch.cuda.get_device_name()}, " if device != "cpu" else ""
    versions = [f"{name} {version(name)}" for name in PACKAGES if find_spec(name)]
    machine = (
        f"{gpu}{processor()}, {os.cpu_count()} CPUs, {threads or torch.get_num_threads()} threads,"
        f" load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, {', '.join(versions)}"
    )
    head = [f"# {title}", f"    python {shlex.join([*whole, *words])}", machine]
    text = "\n\n".join([*head, *parts]) + "\n"
    print(text)
    if out is not None:
        out.write_text(text, "utf-8")
