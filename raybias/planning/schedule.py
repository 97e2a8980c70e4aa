"""A study as a graph of tasks: their order, and which devices each held as it ran.

Tasks that are ready run at once, as far as devices are free, that with the longest path before the
study's end first (list scheduling by critical path). The driver takes this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from raybias.planning.machine import ResourceRequest

Kind = Literal["fetch", "rewrite", "tune", "read"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work that one worker, one worker group or some replicas do, and what it waits for.

    Attributes
    ----------
    key: names the task.
    method, training, stage: of tuning and reading; a stage is "sweep" or "final".
    pack, packs: which part of the stage's runs it is: every `packs`-th, from the one at `pack`.
    runs: how many runs these are.
    seconds: of computing, once the backbone is loaded; where replicas share it, of one alone.
    alone: seconds of a pack's longest run by itself, to which halving can bring the pack; 0 for
        what is not halved.
    load: seconds until a worker that does not hold the backbone does.
    need: what each worker asks of a node; None for what takes no device.
    least, most: workers. Where they differ they are replicas: the task begins with any number of
        them, and takes more as devices become free.
    after: keys of the tasks that must end before.
    """

    key: str
    kind: Kind
    backbone: str
    method: str = ""
    training: str = ""
    stage: str = ""
    pack: int = 0
    packs: int = 1
    runs: int = 0
    seconds: float
    alone: float = 0.0
    load: float = 0.0
    need: ResourceRequest | None = None
    least: int = 1
    most: int = 1
    after: tuple[str, ...] = ()

    @property
    def divisible(self) -> bool:
        """Whether replicas share it, however many there are."""
        return self.least < self.most

    @property
    def shortest(self) -> float:
        """Seconds that it takes at least."""
        return self.load + self.seconds / (self.most if self.divisible else 1)

    @property
    def devices(self) -> int:
        """Places of GPUs, or CPUs without them, of one worker."""
        return self.need.places if self.need else 0

    @property
    def work(self) -> float:
        """Device-seconds of computing, loading aside."""
        workers = 1 if self.divisible else self.least
        return self.seconds * self.devices * workers / (self.need.per_gpu if self.need else 1)


def remaining(tasks: Iterable[Task]) -> dict[str, float]:
    """Return by task the seconds of the longest path from its beginning to the study's end."""
    known = {task.key: task for task in tasks}
    behind: dict[str, list[str]] = {key: [] for key in known}
    for task in known.values():
        for before in task.after:
            behind[before].append(task.key)
    paths: dict[str, float] = {}
    waiting = {key: len(after) for key, after in behind.items()}
    ends = [key for key, count in waiting.items() if not count]
    while ends:
        key = ends.pop()
        longest = max((paths[after] for after in behind[key]), default=0.0)
        paths[key] = known[key].shortest + longest
        for before in known[key].after:
            waiting[before] -= 1
            if not waiting[before]:
                ends.append(before)
    return paths


@dataclass(frozen=True, kw_only=True)
class Span:
    """A task on one device, in seconds from the study's begin.

    Attributes
    ----------
    worker: the device, counted over all nodes.
    loaded: when it began to compute.
    """

    task: str
    kind: str
    backbone: str
    method: str
    start: float
    loaded: float
    end: float
    worker: int


def duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.1f} s"


@dataclass(frozen=True)
class IdleBlock:
    """Devices that do nothing for some time, in seconds from the study's begin."""

    devices: int
    start: float
    end: float
    behind: tuple[str, ...] = ()
    """Tasks that ran meanwhile, longest first."""

    @property
    def hours(self) -> float:
        """Device-hours."""
        return self.devices * (self.end - self.start) / 3600

    def __str__(self) -> str:
        behind = ", ".join(self.behind[:2])
        more = f" and {len(self.behind) - 2} more" if len(self.behind) > 2 else ""
        return (
            f"{self.devices} for {duration(self.end - self.start)} from {duration(self.start)} on,"
            f" beside {behind}{more}"
        )


@dataclass(frozen=True)
class Schedule:
    """Which task ran where and when.

    Attributes
    ----------
    devices: or their places, where workers share them.
    per_device: places of a device.
    """

    spans: tuple[Span, ...]
    devices: int
    per_device: int = 1

    @property
    def wall(self) -> float:
        """Seconds until the last task ends."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they compute; loading does not count."""
        spent = sum(span.end - span.loaded for span in self.spans)
        return spent / (self.devices * self.wall) if self.wall else 1.0

    @property
    def idle_hours(self) -> float:
        """Device-hours in which devices hold no task."""
        held = sum(span.end - span.start for span in self.spans)
        return max(0.0, self.devices * self.wall - held) / (3600 * self.per_device)

    def idle_block(self) -> IdleBlock | None:
        """Return the largest block of idle devices: their number times its seconds."""
        begun = dict.fromkeys((0.0, self.wall), 0)
        for span in self.spans:
            begun[span.start] = begun.get(span.start, 0) + 1
            begun[span.end] = begun.get(span.end, 0) - 1
        times = sorted(begun)
        idle = [self.devices - held for held in accumulate(begun[t] for t in times[:-1])]
        best = max(_rectangles(times, idle), key=lambda block: block.hours, default=None)
        if best is None or best.hours <= 0:
            return None
        during: dict[str, float] = {}
        for span in self.spans:
            shared = min(span.end, best.end) - max(span.start, best.start)
            if shared > 0:
                during[span.task] = max(shared, during.get(span.task, 0.0))
        return replace(best, behind=tuple(sorted(during, key=lambda task: -during[task])))


def _rectangles(times: Sequence[float], heights: Sequence[int]) -> Iterator[IdleBlock]:
    """Yield the widest rectangle below each step of a histogram; `heights` lie between `times`."""
    rising: list[tuple[float, int]] = []
    for now, height in zip(times, [*heights, 0], strict=True):
        begin = now
        while rising and rising[-1][1] >= height:
            begin, high = rising.pop()
            yield IdleBlock(high, begin, now)
        rising.append((begin, height))
