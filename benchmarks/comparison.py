"""What `python -m benchmarks` gathers: ratios of a peer's cost to ours, round by round.

A benchmark that has a peer yields `Comparison`s from its function `comparisons(size)`, which the
module named by `MODULES` in `__main__.py` has. Both sides of a round do the same work one after the
other, so what else a machine does weighs on both; a ratio says more than seconds do.
"""

from __future__ import annotations

import importlib
import math
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import ttest_1samp

#: What a round's cost is on a CPU, where other processes take their share of a clock's seconds.
PROCESSOR = "processor time"
CLOCK = "wall time"


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
    profile: whether to print where the time of ours goes.
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
    profile: bool = False

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
    share: of the rate of a large matrix product that the operations reach that no method can leave
        out; None where they are not counted.
    alike: how near the results of both sides are; empty where that is not compared.
    """

    work: str
    ours: str
    peer: str
    cost: str
    ratios: tuple[float, ...]
    share: float | None = None
    alike: str = ""

    def interval(self, level: float = 0.95) -> tuple[float, float, float]:
        """Compute the geometric mean of the ratios, and its t interval over rounds.

        Another round on this machine is what it covers, and no other machine. One round has no
        interval: both ends are NaN.
        """
        logs = np.log(self.ratios)
        if len(logs) < 2:
            return float(np.exp(logs.mean())), float("nan"), float("nan")
        found = ttest_1samp(logs, 0.0).confidence_interval(level)
        return (
            float(np.exp(logs.mean())), float(np.exp(found.low)), float(np.exp(found.high))
        )  # fmt: skip

    def __str__(self) -> str:
        """Say it in a line."""
        middle, low, high = self.interval()
        between = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
        return f"{self.work}: {self.ours} against {self.peer}: {middle:.2f}x{between} ({self.cost})"


def processor() -> str:
    """Name the processor, and whether it has AMX."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    amx = " with AMX" if any("amx_bf16" in line for line in lines) else ""
    return f"{names[0] if names else platform.machine()}{amx}"


def compare(module: str, size: Size) -> tuple[tuple[Comparison, ...], str]:
    """Run one module's comparisons; what they were, or why they could not run."""
    found: list[Comparison] = []
    try:
        for each in importlib.import_module(module).comparisons(size):
            print(f"{module}: {each}", file=sys.stderr)
            found.append(each)
    except ModuleNotFoundError as error:
        return (), f"needs {error.name} (`pip install -c constraints.txt '.[bench,endpoints]'`)"
    except MissingError as error:
        return (), str(error)
    except Exception as error:  # A benchmark's fault is its line, and not the end of the others.
        return tuple(found), f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return tuple(found), ""
