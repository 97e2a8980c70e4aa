"""Bound a plan's wall time, and choose how many runs share a pack by such bounds.

No schedule is simulated, since runs stop and packs are halved as losses decide. Bounds follow from
the work, the critical path, the turns of packs on devices, and list scheduling (Graham 1969).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tabulate import tabulate

from raybias.planning.inventory import Inventory, duration
from raybias.planning.machine import ResourceRequest, places
from raybias.planning.stage_plans import Plan, TunePlan
from raybias.planning.tasks import Task, remaining, tasks_of, tuning_tasks

#: Times that the search over packs tries.
_TRIED: Final = 24
#: Plans whose products of wall times are within this of the least are as good; of these, that with
#: the least upper bounds is taken.
_AS_GOOD: Final = 1.01
#: Sharing ties workers together, so both wall times must fall by a tenth for it.
_WORTH: Final = 0.9**2
#: More nodes help little once the wall time can be within this of the longest path.
_NEAR: Final = 1.1
#: Devices of which less than this share can be used are too many.
_USED: Final = 0.5
#: Seconds of a longest path below which nobody minds.
_LONG_S: Final = 600.0


@dataclass(frozen=True)
class Bounds:
    """Bounds of the wall time of a plan's tasks, in seconds.

    low: the larger of the longest path, with packs halved down to their longest run, and of the
        work over all the workers that there is room for.
    high: Graham's bound: the longest path, and the rest of the work over the workers that are busy
        while a ready task waits; with packs whole or halved to single runs, whichever is less.
        Tasks of over half the cluster are added serially; fragmentation and failures are left out.
    turns: the estimate that packs are chosen by: the larger of the work over all devices and of the
        longest path, in which the packs of a stage take turns on the devices.
    busy: largest share of the devices' time that computing can take.
    path, first: seconds of the longest path, and the task that it begins with.
    """

    low: float
    high: float
    turns: float
    busy: float
    path: float
    first: str

    @classmethod
    def of(cls, tasks: Sequence[Task], inventory: Inventory, devices: int) -> Bounds:
        """Bound tasks on the nodes of an inventory, of which they hold so many GPUs or CPUs."""
        # A worker that goes on with its backbone loads it once.
        shortest = remaining(
            replace(task, load=0.0, seconds=task.alone or task.seconds) for task in tasks
        )
        starts = {task.key: shortest[task.key] + task.load for task in tasks}
        first = max(starts, key=lambda key: starts[key])
        turns = remaining(
            replace(task, load=0.0, seconds=task.rounds or task.seconds) for task in tasks
        )
        # The share of the cluster that a worker takes, of what runs out first.
        share = {
            need: 1 / max(1, min(places(inventory.nodes, need).count, devices // need.devices))
            for need in {task.need for task in tasks if task.need is not None}
        }
        of_need, work = dict.fromkeys(share, 0.0), 0.0
        for task in tasks:
            if task.need is not None:
                busy = task.seconds * (1 if task.divisible else task.least)
                work += busy * task.devices
                of_need[task.need] += busy * share[task.need]
        computing = work / devices
        low = max(starts[first], computing, *of_need.values())
        return cls(
            low=low,
            high=max(low, min(_graham(tasks, share, halved=halved) for halved in (False, True))),
            turns=max(*turns.values(), computing),
            busy=computing / low if low else 1.0,
            path=starts[first],
            first=first,
        )

    def __str__(self) -> str:
        return f"between {duration(self.low)} and {duration(self.high)}"


def _graham(
    tasks: Sequence[Task], share: Mapping[ResourceRequest, float], *, halved: bool
) -> float:
    """Return the longest path and the rest of the work, packs whole or `halved` to single runs."""
    apart, area, shares = 0.0, 0.0, {1.0}
    path: list[Task] = []
    for task in tasks:
        each = share[task.need] if task.need else 0.0
        if task.least * each > 0.5:
            together = min(task.most, 1 / each) if task.divisible else 1
            apart += task.load + task.seconds / together
            path.append(replace(task, load=0.0, seconds=0.0))
            continue
        seconds, longest = task.seconds, task.seconds
        if halved and task.alone:
            rounds = 2 * math.ceil(math.log2(max(1, task.runs)))
            seconds, longest = task.singly, task.alone + rounds * task.load
        path.append(replace(task, seconds=longest))
        if task.need is not None:
            area += (seconds * (1 if task.divisible else task.least) + task.load * task.most) * each
            shares.add(task.least * each)
    longest = max(remaining(path).values())
    narrow = shares - {1.0} or {1.0}
    left = max(0.0, area - longest * min(narrow)) / (1 - max(narrow) + min(narrow))
    return apart + longest + left


@dataclass(frozen=True)
class Forecast:
    """Bounds on `count` devices if runs stop early (`planned`) or go on (`latest`)."""

    planned: Bounds
    latest: Bounds
    count: int

    @classmethod
    def of(cls, made: Plan) -> Forecast:
        """Bound the wall time of a plan."""
        planned, latest = (
            Bounds.of(tasks_of(made, early=early), made.inventory, made.devices)
            for early in (True, False)
        )
        return cls(planned, latest, made.devices)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"wall time {self.planned} if runs stop early, evenly in the logarithm of their"
                " steps;",
                f"  {self.latest} if all go to their last step. These are bounds, not forecasts of"
                " a schedule",
                f"  no more devices make it shorter than {duration(self.planned.path)}:"
                f" {self.planned.first} and what follows",
            ]
        )

    @property
    def unused(self) -> str:
        """Say that most devices have nothing to do, and what would use them; else nothing."""
        path = self.planned.path
        if self.planned.busy >= _USED or path < _LONG_S or self.count == 1:
            return ""
        return (
            f"at most {self.planned.busy:.0%} of the time of {self.count} devices is used:"
            f" {self.planned.first} and what follows take {duration(path)}; more"
            " backbones, training sets or seeds would use them, or fewer devices do"
        )


def scale_table(found: Sequence[tuple[int, Forecast]]) -> str:
    """Write bounds for several sizes of a cluster as a table."""
    rows = [
        (
            f"x {times}",
            f"{forecast.count} device{'s' if forecast.count > 1 else ''}",
            *(f"{duration(each.low)} to {duration(each.high)}"
              for each in (forecast.planned, forecast.latest)),
        )
        for times, forecast in found
    ]  # fmt: skip
    heads = ("nodes", "devices", "wall time, early stops", "to the last step")
    table = tabulate(rows, heads, tablefmt="simple", stralign="right")
    near = ((times, each.planned) for times, each in found)
    enough = next((each for each in near if each[1].low <= _NEAR * each[1].path), None)
    if enough is None:
        return table
    return (
        f"{table}\nmore than {enough[0]} times the nodes help little: {enough[1].first} and what"
        f" follows take {duration(enough[1].path)}"
    )


def choose_packs(plan: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with the packs that end the study soonest as they take turns.

    For a few times T each stage takes the cheapest packs that end by T; the best T has the least
    wall time. Weights are sharded where that clearly ends a study of minutes sooner.
    """
    if not stages:
        return plan

    def tried(tuning: Sequence[TunePlan]) -> tuple[float, float, Plan]:
        """Return products of both wall times in turns, and of both upper bounds."""
        made = replace(plan, tuning=tuple(tuning))
        each = Forecast.of(made)
        return each.planned.turns * each.latest.turns, each.planned.high * each.latest.high, made

    def cost(stage: TunePlan) -> tuple[float, float]:
        """Return a stage's work, and the seconds of its longest sweep and final packs."""
        tasks = list(tuning_tasks(plan, stage, early=True))
        return sum(task.work for task in tasks), max(remaining(tasks).values())

    # Each worker has weights of its own, unless there is no such plan.
    apart = [[each for each in sizes if not each.sharded] or [*sizes] for sizes in stages]
    options = [
        sorted((*cost(stage), place) for place, stage in enumerate(sizes)) for sizes in apart
    ]
    times = sorted({seconds for sizes in options for _, seconds, _ in sizes})
    found = {}
    for most in [*times[:: max(1, -(-len(times) // _TRIED))], *times[-1:]]:
        chosen = tuple(
            next(
                (place for _, seconds, place in sizes if seconds <= most),
                min(sizes, key=lambda option: option[1])[2],
            )
            for sizes in options
        )
        if chosen not in found:
            found[chosen] = tried([sizes[n] for sizes, n in zip(apart, chosen, strict=True)])
    enough = _AS_GOOD * min(turns for turns, *_ in found.values())
    good = (each for each in found.values() if each[0] <= enough)
    best = min(good, key=lambda each: each[1])
    for place, (*_, last) in enumerate(stages):
        if last.sharded and not apart[place][0].sharded and best[0] > _LONG_S**2:
            tuning = best[2].tuning
            other = tried([*tuning[:place], last, *tuning[place + 1 :]])
            best = other if other[0] < _WORTH * best[0] else best
    return best[2]
