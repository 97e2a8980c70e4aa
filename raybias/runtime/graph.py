"""Run a graph of tasks on nodes that come and go: of what is ready, the widest, then longest path.

A task starts when its dependencies are done and a node has room for its worker, or several for its
workers. One that is ready and finds no room reserves the nodes where it will start, and nothing
narrower is placed there. So one node, not the study, waits for what it still holds; behind narrow
tasks of longer paths a wide one would wait for the last of them. Devices that nobody waits for go
to tasks that can use more, and to halves of running packs. It knows nothing of Ray.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from raybias.config import Resources
from raybias.errors import WorkFailed
from raybias.planning.inventory import Inventory, Node
from raybias.planning.machine import ResourceRequest, places
from raybias.planning.tasks import Task, remaining

#: What a task does with the workers that it is granted.
Work = Callable[["Grant"], None]
#: Seconds between two looks for new nodes, and for what idle devices could take over.
LOOK_EVERY_S: Final = 2.0


class Stopped(WorkFailed):
    """Raised by a task that ended before its work was done, since its graph was stopped."""


@dataclass(eq=False)
class Grant:
    """The workers of a running task.

    slots: how many it has now; a task that can use more than its least polls it.
    enough: how many it can still use.
    nodes: workers by the name of the node that is planned to hold them, or that does.
    avoid: names of nodes that are reserved for tasks before it.
    stopped: set when it is to end.
    add: adds a task for a part of this one's work, for what waits for it.
    actions: that end it.
    """

    task: Task
    slots: int
    enough: int
    nodes: dict[str, int]
    avoid: frozenset[str]
    stopped: threading.Event
    add: Callable[[Task], None]
    actions: list[Callable[[], object]] = field(default_factory=list)

    def on_stop(self, action: Callable[[], object]) -> None:
        """Have `action` end this task when it is to be stopped; at once where it is."""
        self.actions.append(action)
        if self.stopped.is_set():
            action()

    def check(self) -> None:
        """Raise `Stopped` where the task is to end."""
        if self.stopped.is_set():
            raise Stopped("stopped before its end")


class Places(Protocol):
    """The nodes on which a graph's tasks run; `resources` has the study's share of them."""

    resources: Resources

    def inventory(self) -> Inventory:
        """List the nodes that there are now; without any, tasks run one after another."""

    def halve(self, fits: Callable[[Task], object]) -> None:
        """Halve running packs for whose task `fits` finds, and takes, a free place."""


@lru_cache(4096)
def _capacity(node: Node, need: ResourceRequest) -> int:
    return places([node], need).count


class _Room:
    """What tasks may still hold: what is free of each node, and of the study's share of all."""

    def __init__(self, inventory: Inventory, resources: Resources) -> None:
        self.nodes = {node.name or f"node {n}": node for n, node in enumerate(inventory.nodes)}
        self.free = self.nodes.copy()
        self.devices = self.left = inventory.devices(resources)
        self.share = resources.share
        self.reserved: dict[str, set[str]] = {}

    @property
    def closed(self) -> frozenset[str]:
        return frozenset().union(*self.reserved.values())

    def take(self, task: Task, nodes: Mapping[str, int]) -> None:
        """Count so many workers on each node as held; all is, where a task has none to itself."""
        need = task.need
        if need is None:
            return
        self.left = self.left - sum(nodes.values()) * need.devices if nodes else 0
        for name, workers in nodes.items():
            if node := self.free.get(name):
                self.free[name] = replace(
                    node,
                    cpus=node.cpus - workers * need.cpus,
                    gpus=node.gpus - workers * need.gpus,
                    memory=node.memory - workers * need.host,
                )

    def add(self, task: Task, workers: int, *, least: int) -> dict[str, int]:
        """Take nodes for up to so many workers; none where fewer than `least` have room.

        One worker goes where least is left; several, which may share a backbone, to few nodes.
        """
        need, closed = task.need, self.closed
        if need is None or closed >= self.nodes.keys():
            return {}
        workers = min(workers, self.left // need.devices)
        rooms = {n: _capacity(node, need) for n, node in self.free.items() if n not in closed}
        found: dict[str, int] = {}
        for name in sorted(rooms, key=rooms.__getitem__, reverse=workers > 1):
            if (more := min(rooms[name], workers - sum(found.values()))) > 0:
                found[name] = more
        if sum(found.values()) < max(1, least):
            return {}
        self.take(task, found)
        return found

    def reserve(self, task: Task, before: Iterable[str]) -> None:
        """Reserve nodes for a task: those of `before`, then those where the least must end."""
        need, closed, missing = task.need, self.closed, task.least
        if need is None or closed >= self.nodes.keys():
            return
        if self.share < 1 and task.least * need.devices > self.left:
            # Whatever is placed would take of the share what this waits for.
            self.reserved[task.key] = set(self.nodes)
            return
        own = self.reserved.setdefault(task.key, set())
        able = {n: _capacity(node, need) for n, node in self.nodes.items() if n not in closed}
        room = {name: _capacity(self.free[name], need) for name in able}
        for name in sorted(able, key=lambda name: (name not in before, -room[name])):
            if missing > 0 and able[name]:
                own.add(name)
                missing -= able[name]


class Graph:
    """Tasks that wait, run and are done; one that no node has room for begins when it is alone."""

    def __init__(self, places: Places) -> None:
        self.places = places
        #: Rows of `schema.SCHEDULE`; `_held` are tasks, with how many devices they hold since when.
        self.spans: list[dict[str, Any]] = []
        self.devices = 0
        self._held: dict[str, tuple[Task, int, float]] = {}
        self._tasks: dict[str, Task] = {}
        self._work: dict[str, Work] = {}
        self._paths: dict[str, float] = {}
        self._running: dict[str, Grant] = {}
        self._reserved: dict[str, set[str]] = {}
        self._done: set[str] = set()
        self._error: BaseException | None = None
        self._begun = 0.0
        self._stopped = threading.Event()
        self._changed = threading.Condition()

    def add(self, task: Task, work: Work, *, beside: str | None = None) -> None:
        """Add a task; what waits for the task `beside`, which runs, waits for it too."""
        with self._changed:
            for key, each in self._tasks.items():
                if beside in each.after:
                    self._tasks[key] = replace(each, after=(*each.after, task.key))
            self._tasks[task.key], self._work[task.key] = task, work
            self._changed.notify_all()

    def run(self, *, limit_s: float = math.inf) -> None:
        """Run all tasks; raises the first error of one, or `Stopped` after `limit_s` seconds."""
        self._begun = time.monotonic()
        try:
            while self._step(self.places.inventory()):
                if time.monotonic() - self._begun > limit_s:
                    self._stopped.set()
        finally:
            self.stop()
            self._note()
        if self._error is not None:
            raise self._error
        if len(self._done) < len(self._tasks):
            raise Stopped("stopped before its end")

    def stop(self) -> None:
        """End what runs; returns when it has ended, or after 30 s."""
        with self._changed:
            self._stopped.set()
            running = list(self._running.values())
            self._changed.notify_all()
        for action in (action for grant in running for action in grant.actions):
            with suppress(Exception):  # What is to be ended can be gone.
                action()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=30.0)

    def _step(self, inventory: Inventory) -> bool:
        with self._changed:
            if self._stopped.is_set() or len(self._done) == len(self._tasks):
                return False
            self._paths = remaining(self._tasks.values())
            room = _Room(inventory, self.places.resources)
            for grant in self._running.values():
                room.take(grant.task, grant.nodes)
            self._begin(room)
            self._share(room)
            self.devices = max(self.devices, room.devices)
            self._note()
            self.places.halve(partial(room.add, workers=1, least=1))
            self._changed.wait(LOOK_EVERY_S)
            return True

    def _begin(self, room: _Room) -> None:
        """Begin what is ready and has room, the widest first, then by the longest path."""
        known = self._running.keys() | self._done
        ready = (
            task
            for task in self._tasks.values()
            if task.key not in known and self._done.issuperset(task.after)
        )
        waiting = list[Task]()
        for task in sorted(self._ordered(ready), key=lambda t: -t.devices * t.least):
            if task.need is None:
                self._start(task, {}, frozenset())
            elif nodes := room.add(task, task.least, least=task.least):
                self._start(task, nodes, room.closed)
            else:
                room.reserve(task, self._reserved.get(task.key, ()))
                waiting.append(task)
        self._reserved = room.reserved
        if waiting and not any(grant.task.need for grant in self._running.values()):
            room.take(waiting[0], {})
            self._start(waiting[0], {}, frozenset())

    def _start(self, task: Task, nodes: dict[str, int], avoid: frozenset[str]) -> None:
        add = partial(self.add, work=self._work[task.key], beside=task.key)
        grant = Grant(task, task.least, task.most, nodes, avoid, self._stopped, add)
        self._running[task.key] = grant
        name = f"raybias {task.key}"
        threading.Thread(target=self._do, args=(grant,), daemon=True, name=name).start()

    def _share(self, room: _Room) -> None:
        for task in self._ordered(grant.task for grant in self._running.values()):
            grant = self._running[task.key]
            wanted = max(0, min(task.most, grant.enough) - task.least)
            more = room.add(task, wanted, least=1) if wanted else {}
            grant.slots = task.least + sum(more.values())

    def _note(self) -> None:
        """End the spans of tasks that hold other devices than before, and begin theirs."""
        now = time.monotonic() - self._begun
        held = {
            key: (grant.task, grant.slots * grant.task.devices)
            for key, grant in self._running.items()
            if grant.task.devices
        }
        for key, (task, count, start) in [*self._held.items()]:
            if held.get(key) != (task, count):
                del self._held[key]
                names = {"task": key, "kind": task.kind, "backbone": task.backbone}
                span = {"method": task.method, "held": count, "start": start, "end": now}
                self.spans.append(names | span)
        for key, (task, count) in held.items():
            self._held.setdefault(key, (task, count, now))

    def _do(self, grant: Grant) -> None:
        key = grant.task.key
        try:
            self._work[key](grant)
            error = None
        except BaseException as raised:
            error = raised
        with self._changed:
            if error is not None:
                self._error = self._error or error
                self._stopped.set()
            del self._running[key]
            self._done.add(key)
            self._changed.notify_all()

    def _ordered(self, tasks: Iterable[Task]) -> list[Task]:
        """Sort by the longest path behind; of equal ones the first added is first."""
        return sorted(tasks, key=lambda task: -self._paths[task.key])
