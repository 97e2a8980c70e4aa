"""Choose how many runs share a pack, so that the whole study ends soonest on its cluster.

Wide packs cost least device time, narrow ones end sooner where devices are left over. For a few
times T each stage takes the widest packs with which its sweep and its final runs end within T. The
simulated schedule tells which T is best, whether runs stop as planned or go to their last step, and
whether a stage does better with several workers on each GPU, or with one pack on weights that all
its workers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raybias.planning.simulation import simulate
from raybias.planning.stage_plans import TunePlan
from raybias.planning.tasks import tasks_of

if TYPE_CHECKING:
    from raybias.planning.prepared import PreparedStudy
    from raybias.planning.stage_plans import Plan

#: Times that are tried.
_TRIED: Final = 24
#: Wall times whose product is within this of the best are as good, if they take less device time.
_AS_GOOD: Final = 1.01
#: Sharing ties workers together, so both wall times must fall by a tenth for it.
_WORTH: Final = 0.9**2


def choose_packs(prepared: PreparedStudy, plan: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with the packs of each stage that end the study soonest.

    Parameters
    ----------
    stages: for each tuning stage its plans, from the widest packs to the narrowest.
    """
    if all(len(sizes) == 1 for sizes in stages):
        return plan
    apart = [
        [each for each in sizes if not (each.sharded or each.sharers > 1)] or [*sizes]
        for sizes in stages
    ]
    lengths = [[_seconds(plan, each) for each in sizes] for sizes in apart]
    found: dict[tuple[int, ...], _Tried] = {}
    for target in _targets([length for each in lengths for length in each]):
        chosen = tuple(
            next((n for n, length in enumerate(each) if length <= target), _shortest(each))
            for each in lengths
        )
        if chosen not in found:
            tuning = tuple(sizes[n] for sizes, n in zip(apart, chosen, strict=True))
            found[chosen] = _Tried.of(prepared, replace(plan, tuning=tuning))
    enough = _AS_GOOD * min(each.wall for each in found.values())
    good = (each for each in found.values() if each.wall <= enough)
    return _shared(prepared, min(good, key=lambda each: each.work), stages).plan


@dataclass(frozen=True)
class _Tried:
    """A plan with the products of its wall times and device times, with early stops and without."""

    plan: Plan
    wall: float
    work: float

    @classmethod
    def of(cls, prepared: PreparedStudy, plan: Plan) -> _Tried:
        wall = work = 1.0
        for early in (True, False):
            tasks = tasks_of(prepared, plan, early=early)
            wall *= simulate(tasks, plan.inventory, most=plan.devices).wall
            work *= sum(task.work for task in tasks)
        return cls(plan, wall, work)


def _shared(prepared: PreparedStudy, best: _Tried, stages: Sequence[Sequence[TunePlan]]) -> _Tried:
    """Have the workers of a stage share GPUs or its weights where the study ends clearly sooner."""
    for place, sizes in enumerate(stages):
        if best.plan.tuning[place].sharded:
            continue
        shared = [each for each in sizes if each.sharers > 1]
        # As wide as the packs that were chosen, and the narrowest.
        found = [each for each in shared if each.pack == best.plan.tuning[place].pack]
        for stage in (*found, *shared[-1:], *(each for each in sizes[-1:] if each.sharded)):
            tuning = list(best.plan.tuning)
            tuning[place] = stage
            tried = _Tried.of(prepared, replace(best.plan, tuning=tuple(tuning)))
            best = tried if tried.wall < _WORTH * best.wall else best
    return best


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
