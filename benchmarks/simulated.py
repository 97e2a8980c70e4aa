"""A study's wall time by simulation, and what a search over simulated schedules would gain.

The simulator runs a graph of tasks on nodes as the driver does: of what is ready, the task with the
longest path first, on devices that hold its backbone already where there are any; idle workers take
half of the trials of the slowest pack. The search tries packs of every width and takes those that
end the study soonest. Beside it stand the planner's packs, which are chosen by bounds alone
(`raybias/planning/bounds.py`), with the share of the devices' time in which they compute, and packs
of at most runs / devices. All of it is simulated: no model is loaded, and nothing runs on a GPU.

    python benchmarks/simulated.py --data FOLDER --tokenizer FOLDER
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from raybias.errors import PlanError
from raybias.planning.bounds import Forecast
from raybias.planning.inventory import Inventory, Node, assumed
from raybias.planning.layout import LayoutPlanner
from raybias.planning.machine import Layout, Speed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan, TunePlan
from raybias.planning.tasks import Task, remaining, tasks_of
from raybias.planning.workload import TuningWork

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "docs")]
import plans  # type: ignore[import-not-found]
import workload

#: Clusters beside those of docs/plans.py.
MORE: Final = {
    "64 x 80 GB": "nodes=8,cpus=96,memory=1360GiB,gpus=8,gpu_memory=80GB,gpu=A100",
    "CPUs": "cpus=32,memory=128GiB",
}
#: Seconds between two looks of the driver for packs that idle workers could halve.
_LOOK_S: Final = 2.0
#: Times that the search tries.
_TRIED: Final = 24
#: Wall times whose product is within this of the best are as good, if they take less device time.
_AS_GOOD: Final = 1.01
#: Sharing ties workers together, so both wall times must fall by a tenth for it.
_WORTH: Final = 0.9**2


@dataclass(frozen=True, kw_only=True)
class Span:
    """A task on one device, in seconds from the study's begin.

    Attributes
    ----------
    worker: the device, counted over all nodes.
    loaded: when it began to compute.
    """

    task: str
    start: float
    loaded: float
    end: float
    worker: int


@dataclass(frozen=True)
class Schedule:
    """Which task ran where and when, on so many devices."""

    spans: tuple[Span, ...]
    devices: int

    @property
    def wall(self) -> float:
        """Seconds until the last task ends."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they compute; loading does not count."""
        spent = sum(span.end - span.loaded for span in self.spans)
        return spent / (self.devices * self.wall) if self.wall else 1.0


@dataclass(frozen=True)
class Runs:
    """Runs of a pack that have not stopped.

    Attributes
    ----------
    stops: the step at which each stops.
    reached: the step that they are at; of runs that are tuned one by one, the first is.
    """

    work: TuningWork
    speed: Speed
    layout: Layout
    stops: tuple[int, ...]
    reached: float = 0.0

    @property
    def one_by_one(self) -> bool:
        """Whether each run is a whole model, which is tuned by itself."""
        return self.work.most == 1

    def seconds(self) -> float:
        """Return the seconds until all have stopped."""
        return self._walk(math.inf)[0]

    def after(self, seconds: float) -> Runs:
        """Return those that go on after so many seconds."""
        return self._walk(seconds)[1]

    def _walk(self, limit: float) -> tuple[float, Runs]:
        spent, reached = 0.0, self.reached
        stops = list(self.stops) if self.one_by_one else sorted(self.stops)
        while stops:
            together = 1 if self.one_by_one else len(stops)
            check = self.work.evaluation_seconds(self.speed, self.layout, together)
            step = (
                self.work.step_seconds(self.speed, self.layout, together) + check / self.work.every
            )
            spent += 0.0 if reached else check
            steps = stops[0] - reached
            if spent + steps * step > limit:
                reached += max(0.0, limit - spent) / step
                break
            spent += steps * step + self.work.test_seconds(self.speed, self.layout)
            reached = 0.0 if self.one_by_one else stops[0]
            stops.pop(0)
        return spent, replace(self, stops=tuple(stops), reached=reached)

    def halve(self) -> tuple[Runs, Runs]:
        """Return the runs that a pack keeps, and those that another worker takes."""
        if self.one_by_one:
            half = len(self.stops) // 2
            given = replace(self, stops=self.stops[half:], reached=0.0)
            return replace(self, stops=self.stops[:half]), given
        # Nobody knows beforehand which stop first.
        return replace(self, stops=self.stops[1::2]), replace(self, stops=self.stops[::2])


def runs_of(plan: Plan, tasks: Sequence[Task], *, early: bool) -> dict[str, Runs]:
    """Return the runs of each pack of a plan that can be halved, by its task."""
    found = {}
    for task in tasks:
        if task.kind == "tune" and task.least == 1:
            stage = plan.tune(task.backbone, task.training, task.method)
            work = stage.work
            count = work.sweep if task.stage == "sweep" else work.final
            stops = work.stops(count, early=early)[task.pack :: task.packs]
            found[task.key] = Runs(work, stage.speed, stage.layout, stops)
    return found


@dataclass
class _Host:
    """What is free of a node."""

    node: Node
    devices: list[int]
    """Free ones, numbered over all nodes."""
    cpus: float
    memory: int

    def room(self, task: Task) -> int:
        """Count the workers of a task that fit now."""
        need = task.need
        if need is None or need.device > (self.node.gpu_memory or 0):
            return 0
        room = min(len(self.devices) // task.devices, self.cpus // need.cpus)
        return int(min(room, self.memory // need.host) if need.host else room)

    def order(self, task: Task, held: Mapping[int, str]) -> None:
        """Sort the devices, those that hold a task's backbone first."""
        self.devices.sort(key=lambda device: held.get(device) != task.backbone)


@dataclass(eq=False)
class _Running:
    """A task under way.

    Attributes
    ----------
    begun: of each worker its node, its devices, when it took them, and when it had loaded.
    runs, since: of a pack its runs, as they were at a time.
    """

    task: Task
    begun: list[tuple[_Host, list[int], float, float]] = field(default_factory=list)
    end: float = 0.0
    runs: Runs | None = None
    since: float = 0.0

    def settle(self) -> None:
        """Work out when it ends: replicas share the work, each from when it has loaded."""
        since = sorted(loaded for _, _, _, loaded in self.begun)
        if not self.task.divisible:
            self.since = since[-1]
            self.end = since[-1] + self.task.seconds
            return
        for count in range(len(since), 0, -1):
            self.end = (self.task.seconds + sum(since[:count])) / count
            if self.end >= since[count - 1]:
                return

    @property
    def ripe(self) -> float:
        """When it may be asked for half of its runs."""
        able = self.runs is not None and len(self.runs.stops) > 1
        return self.since + max(self.task.load, _LOOK_S) if able else math.inf


class _Simulator:
    """The state of a cluster."""

    def __init__(self, inventory: Inventory, *, on_gpus: bool, most: int | None) -> None:
        self.hosts: list[_Host] = []
        self.devices = 0
        for node in inventory.nodes:
            count = node.gpus if on_gpus else int(node.cpus)
            own = list(range(self.devices, self.devices + count))
            self.hosts.append(_Host(node, own, node.cpus, node.memory))
            self.devices += count
        self.devices = self.free = min(self.devices, most or self.devices)
        self.held: dict[int, str] = {}
        self.now = 0.0
        self.running: list[_Running] = []
        self.spans: list[Span] = []

    def begin_all(self, ready: Sequence[Task], runs: Mapping[str, Runs]) -> set[str]:
        """Begin what there is room for, in this order; return the keys."""
        begun, refused = set(), set()
        for task in ready:
            asked = task.need, task.least
            if asked not in refused and self.begin(task, runs.get(task.key)):
                begun.add(task.key)
            else:
                refused.add(asked)
        return begun

    def begin(self, task: Task, runs: Runs | None = None) -> bool:
        """Begin a task if there is room for it."""
        if task.need is None:
            self.running.append(_Running(task, end=self.now + task.seconds))
            return True
        alone = self.free == self.devices
        if task.least * task.devices > self.free and not alone:
            return False
        if sum(host.room(task) for host in self.hosts) < task.least:
            return False
        running = _Running(task, runs=runs)
        self._take(running, task.most)
        running.settle()
        self.running.append(running)
        return True

    def grow(self) -> None:
        """Give free devices to what is being read."""
        for running in self.running:
            more = running.task.most - len(running.begun)
            loaded = self.now + running.task.load
            if running.task.divisible and more and running.end > loaded:
                self._take(running, more)
                running.settle()

    def halve(self) -> dict[str, str]:
        """Have idle devices take half of the slowest packs; return whose part each task does."""
        parts = {}
        for running in sorted(self.running, key=lambda each: -each.end):
            if running.runs is None or running.ripe > self.now:
                continue
            left = running.runs.after(self.now - running.since)
            if len(left.stops) < 2:
                running.runs = None
                continue
            kept, given = left.halve()
            key = f"{running.task.key}+{len(self.spans)}.{self.now:g}"
            part = replace(running.task, key=key, seconds=given.seconds())
            if part.devices > self.free or not self.begin(part, given):
                continue
            running.runs, running.since = kept, self.now
            running.end = self.now + kept.seconds()
            parts[key] = running.task.key
        return parts

    def _take(self, running: _Running, workers: int) -> None:
        """Take the devices of up to so many workers, those that hold the backbone first."""
        task, need = running.task, running.task.need
        for _ in range(workers if need else 0):
            able = [host for host in self.hosts if host.room(task)]
            enough = len(running.begun) >= task.least and self.free < task.devices
            if not able or need is None or enough:
                return
            self.free -= task.devices
            host = max(able, key=lambda each: self._warm(each, task))
            host.order(task, self.held)
            warm = self._warm(host, task) >= task.devices
            taken, host.devices = host.devices[: task.devices], host.devices[task.devices :]
            host.cpus -= need.cpus
            host.memory -= need.host
            self.held |= dict.fromkeys(taken, task.backbone)
            loaded = self.now if warm else self.now + task.load
            running.begun.append((host, taken, self.now, loaded))

    def _warm(self, host: _Host, task: Task) -> int:
        return sum(self.held.get(device) == task.backbone for device in host.devices)

    def go_on(self) -> Task | None:
        """Go on to the end of the task that ends first, or until a pack can be halved."""
        running = min(self.running, key=lambda each: each.end)
        ripe = [each.ripe for each in self.running if each.ripe > self.now]
        if self.free > 0 and ripe and min(ripe) < running.end:
            self.now = min(ripe)
            return None
        self.running.remove(running)
        self.now, task = running.end, running.task
        for host, devices, start, loaded in running.begun:
            host.devices += devices
            self.free += len(devices)
            if task.need is not None:
                host.cpus += task.need.cpus
                host.memory += task.need.host
            self.spans += [
                Span(
                    task=task.key,
                    start=start,
                    loaded=min(loaded, self.now),
                    end=self.now,
                    worker=device,
                )
                for device in devices
            ]
        return task


def simulate(
    tasks: Sequence[Task],
    inventory: Inventory,
    *,
    most: int | None = None,
    runs: Mapping[str, Runs] | None = None,
) -> Schedule:
    """Run a graph of tasks on the nodes of an inventory, in simulated time.

    Parameters
    ----------
    most: devices that they hold together; all by default.
    runs: of each pack that idle devices may halve, by its task; none by default.

    Raises
    ------
    ValueError: a task that no free cluster has room for, or that waits for itself.
    """
    on_gpus = any(task.need is not None and task.need.gpus for task in tasks)
    state, paths = _Simulator(inventory, on_gpus=on_gpus, most=most), remaining(tasks)
    waiting = {task.key: set(task.after) for task in tasks}
    ordered = sorted(tasks, key=lambda task: -paths.get(task.key, math.inf))
    while ordered or state.running:
        ready = [task for task in ordered if not waiting[task.key]]
        begun = state.begin_all(ready, runs or {})
        ordered = [task for task in ordered if task.key not in begun]
        state.grow()
        for part, whole in state.halve().items():
            for after in waiting.values():
                after.update({part} if whole in after else ())
        if not state.running:
            raise ValueError(f"nothing has room: {', '.join(task.key for task in ordered)}")
        ended = state.go_on()
        for after in waiting.values():
            after.discard(ended.key if ended else "")
    return Schedule(tuple(state.spans), state.devices)


def schedule_of(made: Plan, *, early: bool) -> Schedule:
    """Simulate a plan; `early` stops runs between the first possible step and the last."""
    tasks = tasks_of(made, early=early)
    runs = runs_of(made, tasks, early=early)
    return simulate(tasks, made.inventory, most=made.devices, runs=runs)


def search(made: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with the packs that end the study soonest by simulation.

    For a few times T each stage takes the widest packs with which its sweep and its final runs end
    within T; then all workers share one pack, where the study ends much sooner.

    Parameters
    ----------
    stages: for each tuning stage its plans, from the widest packs to the narrowest.
    """
    apart = [[each for each in sizes if not each.sharded] or [*sizes] for sizes in stages]
    lengths = [[_seconds(each) for each in sizes] for sizes in apart]
    found: dict[tuple[int, ...], _Tried] = {}
    times = sorted({length for each in lengths for length in each})
    for most in [*times[:: max(1, -(-len(times) // _TRIED))], *times[-1:]]:
        chosen = tuple(
            next((n for n, length in enumerate(each) if length <= most), each.index(min(each)))
            for each in lengths
        )
        if chosen not in found:
            tuning = tuple(sizes[n] for sizes, n in zip(apart, chosen, strict=True))
            found[chosen] = _Tried.of(replace(made, tuning=tuning))
    enough = _AS_GOOD * min(each.wall for each in found.values())
    best = min((each for each in found.values() if each.wall <= enough), key=lambda each: each.work)
    for place, sizes in enumerate(stages):
        if best.plan.tuning[place].sharded:
            continue
        if sizes[-1].sharded:
            tuning = (*best.plan.tuning[:place], sizes[-1], *best.plan.tuning[place + 1 :])
            tried = _Tried.of(replace(best.plan, tuning=tuning))
            best = tried if tried.wall < _WORTH * best.wall else best
    return best.plan


@dataclass(frozen=True)
class _Tried:
    """A plan with the products of its wall times and device times, with early stops and without."""

    plan: Plan
    wall: float
    work: float

    @classmethod
    def of(cls, made: Plan) -> _Tried:
        wall = work = 1.0
        for early in (True, False):
            wall *= schedule_of(made, early=early).wall
            work *= sum(task.work for task in tasks_of(made, early=early))
        return cls(made, wall, work)


def _seconds(stage: TunePlan) -> float:
    """Return the seconds of a stage's longest sweep pack and longest final pack."""
    work, seconds = stage.work, 0.0
    for name, runs in (("sweep", work.sweep), ("final", work.final)):
        if packs := stage.packs[name]:
            longest = work.stops(runs)[(runs - 1) % packs :: packs]
            seconds += stage.speed.load(work.passes.all_bytes / stage.layout.ranks)
            seconds += work.pack_seconds(stage.speed, stage.layout, longest)
    return seconds


def by_runs(made: Plan, stages: Sequence[Sequence[TunePlan]]) -> Plan:
    """Return the plan with packs as wide as memory holds, at most the study's runs / devices."""
    apart = [[each for each in sizes if not each.sharded] or [*sizes] for sizes in stages]
    runs = sum(max(sizes[0].work.sweep, sizes[0].work.final) for sizes in apart)
    most = math.ceil(runs / made.devices)
    tuning = (next((each for each in sizes if each.pack <= most), sizes[-1]) for sizes in apart)
    return replace(made, tuning=tuple(tuning))


def stages_of(made: Plan) -> list[list[TunePlan]]:
    """Return for each tuning stage of a plan its plans by the width of its packs."""
    found = []
    for stage in made.tuning:
        backbone = next(each for each in made.study.backbones if each.name == stage.backbone)
        method = next(each for each in made.methods(backbone) if each.name == stage.method)
        shape = made.shapes[backbone.name]
        work = made.prepared.works[backbone.name, method.name]
        planner = LayoutPlanner(
            made.study.resources, made.inventory, backbone, shape, method=method.name, work=work
        )
        found.append(planner.tunings(stage.training))
    return found


def studies(data: Path, models: Path) -> dict[str, PreparedStudy]:
    """Return the jobs that tune, and soft prompts of large backbones on SST-5."""
    jobs = {job: plans.local_study(job, data, models)[0] for job in plans.JOBS}
    large = jobs["soft_prompt"]
    training = tuple([each for each in large.training if each.source == "sst5"][-1:])
    for name in plans.LARGE:
        own = large.backbones[0].model_copy(update={"name": name, "id": str(models / name)})
        jobs[name] = large.model_copy(update={"backbones": (own,), "training": training})
    return {job: PreparedStudy.of(study) for job, study in jobs.items() if study.training}


def main(
    data: Annotated[Path, typer.Option(help="Folder with the jobs' data.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with vocab.json and merges.txt.")],
    out: workload.OutOption = None,
) -> None:
    """Print simulated wall times of three ways to choose packs, and whether bounds hold them."""
    rows: list[tuple[object, ...]] = []
    ratios: dict[str, list[float]] = {"the planner's": [], "runs / devices": []}
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary)
        plans.write_models(models, workload.tokenizer(tokenizer), plans.architectures())
        for job, prepared in studies(data, models).items():
            for cluster, nodes in {**plans.LARGE_ON, **MORE}.items():
                try:
                    made = plan(prepared, assumed(nodes), skip_unfit=True)
                except PlanError:
                    continue
                stages = stages_of(made)
                bounds = Forecast.of(made)
                found = (made, by_runs(made, stages), search(made, stages))
                for early, bound in ((True, bounds.planned), (False, bounds.latest)):
                    own, *others = (schedule_of(each, early=early) for each in found)
                    rule, searched = (each.wall for each in others)
                    ratios["the planner's"].append(own.wall / searched)
                    ratios["runs / devices"].append(rule / searched)
                    rows.append(
                        (job, cluster, "early stops" if early else "to the last step",
                         f"{own.wall / 3600:,.2f}", f"{own.busy:.0%}",
                         f"{bound.low / own.wall:.2f} to {bound.high / own.wall:.2f}",
                         f"{searched / 3600:,.2f}",
                         *(f"{each[-1]:.2f}" for each in ratios.values()))
                    )  # fmt: skip
    heads = (
        *("job", "cluster", "runs", "the planner's packs, h", "devices busy", "bounds / wall time"),
        *("search by simulation, h", *(f"{how} / search" for how in ratios)),
    )
    summary = [
        f"{how} over the search: {statistics.median(each):.2f} at the median, {max(each):.2f} at"
        " worst"
        for how, each in ratios.items()
    ]
    workload.publish(
        "Packs by bounds and by a rule, against a search by simulation with halving",
        [workload.markdown(rows, heads), "\n\n".join(summary)],
        device="cpu",
        peer="ray",
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
