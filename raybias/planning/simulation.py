"""Simulate a graph of tasks on a cluster: which would run where and when.

The rule is that of the driver: of what is ready, the task with the longest path behind it first, on
devices that hold its backbone already where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raybias.planning.inventory import Inventory, Node
from raybias.planning.schedule import Schedule, Span, Task, remaining


@dataclass
class _Host:
    """What is free of a node."""

    node: Node
    devices: list[int]
    """Free places, numbered over all nodes; those of a GPU follow one another."""
    cpus: float
    memory: int
    per_gpu: int = 1

    def room(self, task: Task) -> int:
        """Count the workers of a task that fit now."""
        need = task.need
        if need is None or need.device > (self.node.gpu_memory or 0):
            return 0
        free = len(self.devices)
        if need.sharers < self.per_gpu:
            free = sum(map(self._whole, self.devices))
        room = min(free // task.devices, self.cpus // need.cpus)
        return int(min(room, self.memory // need.host) if need.host else room)

    def _whole(self, place: int) -> bool:
        """Tell whether all places of a place's GPU are free."""
        first = place - place % self.per_gpu
        return self.per_gpu == 1 or set(range(first, first + self.per_gpu)) <= {*self.devices}

    def order(self, task: Task, held: Mapping[int, str]) -> None:
        """Sort the places: of GPUs that suit a task, then those that hold its backbone."""
        if self.per_gpu == 1:
            self.devices.sort(key=lambda place: held.get(place) != task.backbone)
            return
        shares = task.need is not None and task.need.sharers > 1
        whole = {place: self._whole(place) for place in self.devices}

        def last(place: int) -> tuple[bool, bool, int]:
            first = place - place % self.per_gpu
            its = [place] if shares else range(first, first + self.per_gpu)
            cold = any(held.get(each) != task.backbone for each in its)
            return whole[place] if shares else not whole[place], cold, place

        self.devices.sort(key=last)


@dataclass
class _Running:
    """A task under way.

    Attributes
    ----------
    begun: of each worker its node, its devices, when it took them, and when it had loaded.
    """

    task: Task
    begun: list[tuple[_Host, list[int], float, float]] = field(default_factory=list)
    end: float = 0.0

    def settle(self) -> None:
        """Work out when it ends: replicas share the work, each from when it has loaded."""
        since = sorted(loaded for _, _, _, loaded in self.begun)
        if not self.task.divisible:
            self.end = since[-1] + self.task.seconds
            return
        for count in range(len(since), 0, -1):
            self.end = (self.task.seconds + sum(since[:count])) / count
            if self.end >= since[count - 1]:
                return


class _Simulator:
    """The state of a cluster."""

    def __init__(self, inventory: Inventory, *, on_gpus: bool, most: int | None) -> None:
        self.hosts: list[_Host] = []
        self.devices = 0
        per_gpu = inventory.per_gpu
        for node in inventory.nodes:
            count = node.gpus * per_gpu if on_gpus else int(node.cpus)
            own = list(range(self.devices, self.devices + count))
            self.hosts.append(_Host(node, own, node.cpus, node.memory, per_gpu))
            self.devices += count
        self.devices = self.free = min(self.devices, most or self.devices)
        self.held: dict[int, str] = {}
        self.now = 0.0
        self.running: list[_Running] = []
        self.spans: list[Span] = []

    def begin_all(self, ready: Sequence[Task]) -> set[str]:
        """Begin what there is room for, in this order; return the keys."""
        begun, refused = set(), set()
        for task in ready:
            asked = task.need, task.least
            if asked not in refused and self.begin(task):
                begun.add(task.key)
            else:
                refused.add(asked)
        return begun

    def begin(self, task: Task) -> bool:
        """Begin a task if there is room for it."""
        if task.need is None:
            self.running.append(_Running(task, end=self.now + task.seconds))
            return True
        alone = self.free == self.devices
        if task.least * task.devices > self.free and not alone:
            return False
        if sum(host.room(task) for host in self.hosts) < task.least:
            return False
        running = _Running(task)
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

    def end_next(self) -> Task:
        """Go on to the end of the task that ends first."""
        running = min(self.running, key=lambda each: each.end)
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
                    kind=task.kind,
                    backbone=task.backbone,
                    method=task.method,
                    start=start,
                    loaded=min(loaded, self.now),
                    end=self.now,
                    worker=device,
                )
                for device in devices
            ]
        return task


def simulate(tasks: Sequence[Task], inventory: Inventory, *, most: int | None = None) -> Schedule:
    """Run a graph of tasks on the nodes of an inventory, in simulated time.

    Parameters
    ----------
    most: devices that they hold together; all by default.

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
        begun = state.begin_all(ready)
        ordered = [task for task in ordered if task.key not in begun]
        state.grow()
        if not state.running:
            raise ValueError(f"nothing has room: {', '.join(task.key for task in ordered)}")
        ended = state.end_next()
        for after in waiting.values():
            after.discard(ended.key)
    return Schedule(tuple(state.spans), state.devices, inventory.per_gpu)
