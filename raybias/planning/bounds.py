"""Bound a plan's wall time, and choose how many runs share a pack by such bounds.

No schedule is simulated: devices that become idle take half of the slowest pack, and runs stop when
their losses do. What is certain before is the work, the longest path through the tasks, and what
follows from both for any driver that leaves no device idle while a task is ready (Graham 1969).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tabulate import tabulate

from raybias.planning.machine import ResourceRequest, places
from raybias.planning.schedule import Task, duration, remaining
from raybias.planning.tasks import tasks_of

if TYPE_CHECKING:
    from raybias.planning.inventory import Inventory
    from raybias.planning.prepared import PreparedStudy
    from raybias.planning.stage_plans import Plan, TunePlan

#: Times that the search over packs tries.
_TRIED: Final = 24
#: Plans whose products of wall times are within this of the least are as good.
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

    Attributes
    ----------
    low: the larger of the longest path, were each pack halved down to its longest run, and of the
        work over all the workers that there is room for.
    high: Graham's bound: the longest path, and the rest of the work over the workers that are busy
        while a ready task waits. Tasks that take more than half of the cluster are added as if they
        ran by themselves. How workers of several sizes come to lie on nodes is not reckoned with,
        nor are failures.
    busy: largest share of the devices' time that computing can take.
    path, first: seconds of the longest path, and the task that it begins with.
    """

    low: float
    high: float
    busy: float
    path: float
    first: str

    @classmethod
    def of(cls, tasks: Sequence[Task], inventory: Inventory, devices: int) -> Bounds:
        """Bound tasks on the nodes of an inventory, of which they hold so many places or CPUs."""
        loads = {task.key: task.load for task in tasks}
        # A worker that goes on with its backbone loads it once.
        shortest = remaining(
            replace(task, load=0.0, seconds=task.alone or task.seconds) for task in tasks
        )
        first = max(shortest, key=lambda key: shortest[key] + loads[key])
        path = shortest[first] + loads[first]
        needs = {task.need for task in tasks if task.need is not None}
        # The share of the cluster that a worker takes, of what runs out first.
        share = {
            need: 1 / max(1, min(places(inventory.nodes, need).count, devices // need.places))
            for need in needs
        }
        of_need: dict[ResourceRequest, float] = dict.fromkeys(needs, 0.0)
        wide: dict[str, float] = {}
        area, shares = 0.0, {1.0}
        for task in tasks:
            if task.need is None:
                continue
            own = task.least * share[task.need]
            workers = 1 if task.divisible else task.least
            of_need[task.need] += task.seconds * workers * share[task.need]
            if own > 0.5:
                together = min(task.most, 1 / share[task.need]) if task.divisible else 1
                wide[task.key] = task.load + task.seconds / together
            else:
                loading = task.load * task.most
                area += (task.seconds * workers + loading) * share[task.need]
                shares.add(own)
        longest = max(
            remaining(
                replace(task, load=0.0, seconds=0.0) if task.key in wide else task for task in tasks
            ).values()
        )
        narrow = shares - {1.0} or {1.0}
        least = min(narrow)
        left = max(0.0, area - longest * least) / (1 - max(narrow) + least)
        computing = _work(tasks) / devices
        low = max(path, computing, *of_need.values())
        high = max(low, sum(wide.values()) + longest + left)
        return cls(low, high, computing / low if low else 1.0, path, first)

    def __str__(self) -> str:
        return f"between {duration(self.low)} and {duration(self.high)}"


@dataclass(frozen=True)
class Forecast:
    """The wall time of a plan.

    Attributes
    ----------
    planned: where runs stop early, between the first step at which they can and the last.
    latest: where all runs go to their last step.
    places, per_device: that the study holds.
    """

    planned: Bounds
    latest: Bounds
    places: int
    per_device: int

    @classmethod
    def of(cls, prepared: PreparedStudy, made: Plan) -> Forecast:
        """Bound the wall time of a plan."""
        planned, latest = (
            Bounds.of(tasks_of(prepared, made, early=early), made.inventory, made.devices)
            for early in (True, False)
        )
        return cls(planned, latest, made.devices, made.inventory.per_gpu)

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
    def devices(self) -> str:
        """Name the devices."""
        count = self.places // self.per_device
        devices = f"{count} device{'s' if count > 1 else ''}"
        return devices if self.per_device == 1 else f"{self.places} places on {devices}"

    @property
    def unused(self) -> str:
        """Say that most devices have nothing to do, and what would use them; else nothing."""
        path = self.planned.path
        if self.planned.busy >= _USED or path < _LONG_S or self.places <= self.per_device:
            return ""
        return (
            f"at most {self.planned.busy:.0%} of the time of {self.devices} is used:"
            f" {self.planned.first} and what follows take {duration(path)}; more"
            " backbones, training sets or seeds would use them, or fewer devices do"
        )


def scale_table(found: Sequence[tuple[int, Forecast]]) -> str:
    """Write bounds for several sizes of a cluster as a table."""
    rows = [
        (f"x {times}", each.devices, *map(_span, (each.planned, each.latest)))
        for times, each in found
    ]
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


def _span(bounds: Bounds) -> str:
    return f"{duration(bounds.low)} to {duration(bounds.high)}"


def _work(tasks: Iterable[Task]) -> float:
    """Add up seconds of computing times places."""
    return sum(task.work * (task.need.per_gpu if task.need else 1) for task in tasks)


def choose_packs(prepared: PreparedStudy, plan: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with the packs of each stage that can end the study soonest.

    Wide packs take least device time, narrow ones end sooner where devices are left over. For a few
    times T each stage takes the cheapest packs with which its sweep and its final runs end within
    T; the best T has the least wall time. Then several workers share each GPU of a stage, or all
    share its weights, where the wall time is clearly less; weights only in a study of some minutes.

    Parameters
    ----------
    stages: for each tuning stage its plans.
    """
    options = [
        sorted((_cost(plan, each) for each in _apart(sizes)), key=lambda option: option[:2])
        for sizes in stages
    ]
    times = sorted({seconds for sizes in options for _, seconds, _ in sizes})
    found: dict[tuple[int, ...], tuple[float, float, Plan]] = {}
    for most in [*times[:: max(1, -(-len(times) // _TRIED))], *times[-1:]]:
        chosen = [
            next((each for _, seconds, each in sizes if seconds <= most), None)
            or min(sizes, key=lambda each: each[1])[2]
            for sizes in options
        ]
        if (key := tuple(map(id, chosen))) not in found:
            found[key] = _tried(prepared, replace(plan, tuning=tuple(chosen)))
    enough = _AS_GOOD * min((wall for wall, *_ in found.values()), default=0.0)
    good = [each for each in found.values() if each[0] <= enough]
    best = min(good, key=lambda each: each[1], default=(0.0, 0.0, plan))
    for place, sizes in enumerate(stages):
        apart = {id(each) for each in _apart(sizes)}
        for stage in (each for each in sizes if id(each) not in apart):
            tuning = list(best[2].tuning)
            tuning[place] = stage
            tried = _tried(prepared, replace(plan, tuning=tuple(tuning)))
            long = best[0] > _LONG_S**2 or not stage.sharded
            best = tried if long and tried[0] < _WORTH * best[0] else best
    return best[2]


def _apart(sizes: Sequence[TunePlan]) -> list[TunePlan]:
    """Return the plans in which each worker has GPUs and weights of its own; all if none has."""
    return [each for each in sizes if not (each.sharded or each.sharers > 1)] or [*sizes]


def _tried(prepared: PreparedStudy, plan: Plan) -> tuple[float, float, Plan]:
    """Return a plan behind the products of its wall times and works, with early stops and without.

    A wall time is the larger of the longest path and the work over all devices.
    """
    wall = work = 1.0
    for early in (True, False):
        tasks = tasks_of(prepared, plan, early=early)
        path = max(remaining(replace(task, load=0.0) for task in tasks).values())
        wall *= max(path, _work(tasks) / plan.devices)
        work *= _work(tasks)
    return wall, work, plan


def _cost(plan: Plan, stage: TunePlan) -> tuple[float, float, TunePlan]:
    """Return a stage's work, and the seconds of its longest sweep pack and longest final pack."""
    work = plan.works.tuning[stage.backbone, stage.training, stage.method]
    whole = seconds = 0.0
    for name, runs in (("sweep", work.sweep), ("final", work.final)):
        packs, stops = stage.packs(name), work.stops(runs)
        each = [
            work.pack_seconds(stage.speed, stage.layout, stops[pack::packs])
            for pack in range(packs)
        ]
        if each:
            seconds += stage.speed.load(work.passes.all_bytes / stage.ranks) + max(each)
        whole += sum(each) * stage.need.places * stage.ranks
    return whole, seconds, stage
