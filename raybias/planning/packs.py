"""Choose how many runs share a pack, so that the whole study ends soonest on its cluster.

Wide packs cost least device time, narrow ones end sooner where devices are left over. For a few
times T each stage takes the widest packs with which its sweep and its final runs end within T. The
simulated schedule tells which T is best, whether runs stop as planned or go to their last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raybias.planning.simulation import simulate
from raybias.planning.stage_plans import TunePlan
from raybias.planning.tasks import tasks_of

if TYPE_CHECKING:
    from raybias.planning.plan import Plan
    from raybias.planning.prepared import PreparedStudy

#: Times that are tried.
_TRIED: Final = 24
#: Wall times whose product is within this of the best are as good, if they take less device time.
_AS_GOOD: Final = 1.01


def choose_packs(prepared: PreparedStudy, plan: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with the packs of each stage that end the study soonest.

    Parameters
    ----------
    stages: for each tuning stage its plans, from the widest packs to the narrowest.
    """
    if all(len(sizes) == 1 for sizes in stages):
        return plan
    lengths = [[_seconds(plan, each) for each in sizes] for sizes in stages]
    found: dict[tuple[int, ...], tuple[float, float, Plan]] = {}
    for target in _targets([length for each in lengths for length in each]):
        chosen = tuple(
            next((n for n, length in enumerate(each) if length <= target), _shortest(each))
            for each in lengths
        )
        if chosen not in found:
            tuning = tuple(sizes[n] for sizes, n in zip(stages, chosen, strict=True))
            made = replace(plan, tuning=tuning)
            wall = work = 1.0
            for early in (True, False):
                tasks = tasks_of(prepared, made, early=early)
                wall *= simulate(tasks, plan.inventory).wall
                work *= sum(task.work for task in tasks)
            found[chosen] = wall, work, made
    enough = _AS_GOOD * min(wall for wall, _, _ in found.values())
    return min((each for each in found.values() if each[0] <= enough), key=lambda each: each[1])[2]


def _seconds(plan: Plan, stage: TunePlan) -> float:
    """Return the seconds of a stage's longest sweep pack and longest final pack."""
    work = plan.works.tuning[stage.backbone, stage.training, stage.method]
    seconds = 0.0
    for name, runs in (("sweep", work.sweep), ("final", work.final)):
        if packs := stage.packs(name):
            longest = work.stops(runs)[(runs - 1) % packs :: packs]
            seconds += stage.speed.load(work.passes.all_bytes / stage.ranks)
            seconds += work.pack_seconds(stage.speed, stage.layout, longest)
    return seconds


def _shortest(lengths: Sequence[float]) -> int:
    return min(range(len(lengths)), key=lambda n: lengths[n])


def _targets(lengths: Sequence[float]) -> list[float]:
    """Thin out the times that make a difference."""
    distinct = sorted(set(lengths))
    step = max(1, -(-len(distinct) // _TRIED))
    return [*distinct[::step], distinct[-1]]
