"""Tell how long a plan takes: wall time, idle devices, a chart, and what more nodes would bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tabulate import tabulate

from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.schedule import IdleBlock, Schedule, remaining
from raybias.planning.simulation import simulate
from raybias.planning.speed import Machine
from raybias.planning.stage_plans import Plan
from raybias.planning.tasks import tasks_of

#: Columns of the chart, and its marks from no device to all.
_COLUMNS: Final = 60
_MARKS: Final = " ▁▂▃▄▅▆▇█"
#: More nodes help little once the wall time is within this of the longest path.
_NEAR: Final = 1.1


@dataclass(frozen=True)
class Forecast:
    """The schedule of a plan.

    Attributes
    ----------
    planned: where runs stop early, between the first step at which they can and the last.
    latest: where all runs go to their last step.
    longest: the task that the longest path of `planned` begins with, and that path's seconds.
    """

    planned: Schedule
    latest: Schedule
    longest: tuple[str, float]

    @classmethod
    def of(cls, prepared: PreparedStudy, made: Plan) -> Forecast:
        """Simulate a plan."""
        tasks = tasks_of(prepared, made)
        late = tasks_of(prepared, made, early=False)
        # A worker that goes on with its backbone loads it once.
        paths = remaining(replace(task, load=0.0) for task in tasks)
        loads = {task.key: task.load for task in tasks}
        first = max(paths, key=lambda key: paths[key] + loads[key])
        return cls(
            simulate(tasks, made.inventory, most=made.devices),
            simulate(late, made.inventory, most=made.devices),
            (first, paths[first] + loads[first]),
        )

    def __str__(self) -> str:
        planned, latest, (first, path) = self.planned, self.latest, self.longest
        lines = [
            f"wall time {duration(planned.wall)} as planned, {duration(latest.wall)} at most",
            f"  devices compute {planned.busy:.0%} of the time ({latest.busy:.0%}), and"
            f" {planned.idle_hours:,.1f} hours of {planned} are idle ({latest.idle_hours:,.1f})",
            f"  no more devices make it shorter than {duration(path)}: {first} and what follows",
        ]
        if block := planned.idle_block():
            lines.append(f"  the largest idle block: {idle(block)}")
        return "\n".join([*lines, *strips(planned)])


def duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:,.1f} s"


def idle(block: IdleBlock) -> str:
    """Describe idle devices, and what ran meanwhile."""
    behind = ", ".join(block.behind[:2])
    more = f" and {len(block.behind) - 2} more" if len(block.behind) > 2 else ""
    return (
        f"{block.devices} for {duration(block.end - block.start)} from {duration(block.start)} on,"
        f" beside {behind}{more}"
    )


def strips(schedule: Schedule) -> list[str]:
    """Draw how many devices each backbone holds over time, as text."""
    if not schedule.wall:
        return []
    column = schedule.wall / _COLUMNS
    names = list(dict.fromkeys(f"{span.kind} {span.backbone}" for span in schedule.spans))
    held = {name: [0.0] * _COLUMNS for name in names}
    for span in schedule.spans:
        row = held[f"{span.kind} {span.backbone}"]
        for n in range(int(span.start / column), min(_COLUMNS, int(span.end / column) + 1)):
            shared = min(span.end, (n + 1) * column) - max(span.start, n * column)
            row[n] += max(0.0, shared) / column
    held["idle"] = [schedule.devices - sum(each) for each in zip(*held.values(), strict=True)]
    wide = max(map(len, held))
    return [
        *(f"  {name:{wide}} |{_strip(row, schedule.devices)}|" for name, row in held.items()),
        f"  {'':{wide}}  a column is {duration(column)}, a full one all {schedule}",
    ]


def _strip(held: Sequence[float], devices: int) -> str:
    top = len(_MARKS) - 1
    # What is there at all is seen.
    return "".join(
        _MARKS[0 if each < 0.01 else max(1, min(top, round(each / devices * top)))] for each in held
    )


def scaled(
    prepared: PreparedStudy, made: Plan, sizes: Sequence[int], machine: Machine
) -> list[tuple[int, Forecast]]:
    """Forecast a study on so many times the nodes of its plan, planned anew for each.

    Raises
    ------
    PlanError: it does not fit.
    """
    found = []
    for times in sizes:
        inventory = replace(made.inventory, nodes=made.inventory.nodes * times)
        again = plan(
            prepared, inventory, machine=machine, skip_unfit=bool(made.unfit), works=made.works
        )
        found.append((times, Forecast.of(prepared, again)))
    return found


def scale_table(found: Sequence[tuple[int, Forecast]]) -> str:
    """Write forecasts for several sizes of a cluster as a table."""
    rows = [
        (
            f"x {times}",
            each.planned.devices,
            duration(each.planned.wall),
            f"{each.planned.busy:.0%}",
            f"{each.planned.idle_hours:,.1f}",
            duration(each.latest.wall),
            f"{each.latest.busy:.0%}",
            f"{each.latest.idle_hours:,.1f}",
        )
        for times, each in found
    ]
    heads = ("nodes", "devices", "planned", "busy", "idle hours", "at most", "busy", "idle hours")
    table = tabulate(rows, heads, tablefmt="simple", stralign="right")
    enough = next(
        (times for times, each in found if each.planned.wall <= _NEAR * each.longest[1]), None
    )
    if enough is None:
        return table
    path = next(each.longest for times, each in found if times == enough)
    return (
        f"{table}\nmore than {enough} times the nodes help little: {path[0]} and what follows take"
        f" {duration(path[1])}"
    )
