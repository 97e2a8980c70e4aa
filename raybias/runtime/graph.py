"""Run a graph of tasks on the workers that a cluster holds: what is ready, longest path first.

Ray places and queues; this keeps its queue short and in order. A task begins when those that it
comes after have ended and its workers are free, and what can use more workers has those that
nobody waits for. It knows nothing of Ray.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush

from raybias.errors import WorkFailed
from raybias.planning.schedule import Schedule, Span, Task, remaining

#: What a task does with the workers that it is granted.
Work = Callable[["Grant"], None]

#: Seconds between two looks for what idle workers could take over.
_LOOK_EVERY_S = 2.0


class Stopped(WorkFailed):
    """Raised by a task that ended before its work was done, since its graph was stopped."""


@dataclass(eq=False)
class Grant:
    """The workers of a running task.

    Attributes
    ----------
    slots: how many it has now; a task that can use more than its least looks now and then.
    enough: how many it can still use.
    stopped: whether it is to end.
    add: adds a task that does a part of this one, for what waits for it.
    """

    task: Task
    slots: int
    enough: int
    stopped: threading.Event
    add: Callable[[Task, Work], None]
    _actions: list[Callable[[], object]] = field(default_factory=list)

    def on_stop(self, action: Callable[[], object]) -> None:
        """Have `action` end this task when it is to be stopped; at once where it is."""
        self._actions.append(action)
        if self.stopped.is_set():
            action()

    def end(self) -> None:
        """End the task by what `on_stop` was given."""
        for action in self._actions:
            with suppress(Exception):  # What is to be ended can be gone.
                action()


class Logbook:
    """Numbers the devices that tasks hold as they run, and keeps which held what and when."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self._free = list(range(devices))
        self._held: dict[str, list[tuple[int, float]]] = {}
        self._tasks: dict[str, Task] = {}
        self._spans: list[Span] = []

    def hold(self, held: Mapping[str, tuple[Task, int]], now: float) -> None:
        """Note how many devices each running task holds from `now` on, by its key."""
        for key in list(self._held):
            self._release(key, held[key][1] if key in held else 0, now)
        for key, (task, devices) in held.items():
            self._tasks[key] = task
            own = self._held.setdefault(key, [])
            while len(own) < devices and self._free:
                own.append((heappop(self._free), now))

    def _release(self, key: str, devices: int, now: float) -> None:
        task, own = self._tasks[key], self._held[key]
        while len(own) > devices:
            worker, start = own.pop()
            heappush(self._free, worker)
            self._spans.append(
                Span(
                    task=key,
                    kind=task.kind,
                    backbone=task.backbone,
                    method=task.method,
                    worker=worker,
                    start=start,
                    loaded=start,
                    end=now,
                )
            )

    def schedule(self) -> Schedule:
        """Return what was noted of devices that are held no more."""
        return Schedule(tuple(self._spans), self.devices)


class Graph:
    """Tasks that wait, run and are done.

    Parameters
    ----------
    devices: GPUs, or CPUs without them, that the cluster holds; a task that needs more begins
        when it is alone.
    spare: called with the number of idle devices; it may `add` tasks.

    Attributes
    ----------
    log: which devices each task held when.
    """

    def __init__(self, devices: int, *, spare: Callable[[int], object] = lambda idle: None) -> None:
        self.devices, self._spare = devices, spare
        self.log = Logbook(devices)
        self._tasks: dict[str, Task] = {}
        self._work: dict[str, Work] = {}
        self._paths: dict[str, float] = {}
        self._running: dict[str, Grant] = {}
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
        """Run all tasks to their end.

        Parameters
        ----------
        limit_s: seconds after which what still runs is stopped.

        Raises
        ------
        Stopped: the limit passed.
        BaseException: the first error of a task; the others were stopped.
        """
        self._begun = time.monotonic()
        try:
            while (idle := self._step()) is not None:
                if idle:
                    self._spare(idle)
                if time.monotonic() - self._begun > limit_s:
                    self._stopped.set()
        finally:
            self.stop()
            self._note()
        if self._error is not None:
            raise self._error
        if len(self._done) < len(self._tasks):
            raise Stopped("stopped before its end")

    def stop(self, *, patience_s: float = 30.0) -> None:
        """End what runs; returns when it has ended, or after `patience_s`."""
        with self._changed:
            self._stopped.set()
            running = list(self._running.values())
            self._changed.notify_all()
        for grant in running:
            grant.end()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=patience_s)

    def _step(self) -> int | None:
        """Begin what can, and wait for a change; returns idle workers, None when all is over."""
        with self._changed:
            if self._stopped.is_set() or len(self._done) == len(self._tasks):
                return None
            self._paths = remaining(self._tasks.values())
            self._begin()
            idle = self._share()
            self._note()
            self._changed.wait(_LOOK_EVERY_S)
            return idle

    def _begin(self) -> None:
        """Begin what is ready and has room, longest path first."""
        free = self.devices - sum(self._least(grant.task) for grant in self._running.values())
        for task in self._ordered(self._tasks.values()):
            begun = task.key in self._running or task.key in self._done
            if begun or not self._done.issuperset(task.after) or self._least(task) > free:
                continue
            free -= self._least(task)
            grant = self._running[task.key] = Grant(
                task, task.least, task.most, self._stopped, partial(self.add, beside=task.key)
            )
            name = f"raybias {task.key}"
            threading.Thread(target=self._do, args=(grant,), daemon=True, name=name).start()

    def _share(self) -> int:
        """Give the devices that nobody waits for to tasks that can use more; count the idle."""
        free = self.devices - sum(self._least(grant.task) for grant in self._running.values())
        for task in self._ordered(grant.task for grant in self._running.values()):
            grant = self._running[task.key]
            wanted = max(0, min(task.most, grant.enough) - task.least)
            more = min(wanted, free // task.devices) if task.devices else wanted
            grant.slots, free = task.least + more, free - more * task.devices
        return free

    def _note(self) -> None:
        running = ((key, grant) for key, grant in self._running.items())
        held = {key: (each.task, each.slots * each.task.devices) for key, each in running}
        self.log.hold(held, time.monotonic() - self._begun)

    def _least(self, task: Task) -> int:
        return min(task.least * task.devices, self.devices)

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
