"""The order of a study's tasks: dependencies, devices, priority, and what a failure leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.config import Resources
from raybias.planning.inventory import Inventory, Node
from raybias.planning.machine import ResourceRequest
from raybias.planning.tasks import Task, remaining
from raybias.runtime.graph import Grant, Graph, Stopped

PATIENCE_S = 20.0
#: A graph, what it placed, and what its narrow tasks wait for.
Crowd = tuple[Graph, list[Grant], list[threading.Event]]


def task(key: str, *after: str, least: int = 1, most: int | None = None, **more: Any) -> Task:
    gpus = more.pop("gpus", 1)
    need = ResourceRequest(cpus=1, gpus=gpus) if gpus else None
    return Task(
        key=key, kind="tune", backbone="b", seconds=more.pop("seconds", 1.0), need=need,
        least=least, most=most or least, after=after,
    )  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    """Up to twelve tasks that come after earlier ones."""
    made: list[Task] = []
    for n in range(draw(st.integers(1, 12))):
        after = draw(st.lists(st.sampled_from(made), max_size=3, unique_by=id)) if made else []
        least = draw(st.integers(1, 4))
        made.append(
            task(
                f"t{n}", *(each.key for each in after), least=least,
                most=draw(st.sampled_from([least, least + 3])), gpus=draw(st.integers(0, 2)),
                seconds=draw(st.integers(1, 9)),
            )
        )  # fmt: skip
    return made


class Declared:
    """Nodes of so many GPUs."""

    resources = Resources()

    def __init__(self, *gpus: int, halve: Callable[..., None] | None = None) -> None:
        self.nodes = [node(gpus=each) for each in gpus]
        self.halve = halve or (lambda fits: None)

    def inventory(self) -> Inventory:
        return Inventory(tuple(self.nodes), "declared")


def node(name: str = "", *, gpus: int) -> Node:
    return Node(name=name, cpus=64, memory=2**40, gpus=gpus, gpu_memory=2**34)


class Log:
    """What runs, and what was wrong with it."""

    def __init__(self, devices: int) -> None:
        self.graph, self.devices = Graph(Declared(devices)), devices
        self.lock = threading.Lock()
        self.done: list[str] = []
        self.running: dict[str, Grant] = {}
        self.wrong: list[str] = []

    def work(self, grant: Grant) -> None:
        with self.lock:
            self.running[grant.task.key] = grant
            missing = set(grant.task.after) - set(self.done)
            each = [g.task.least * g.task.devices for g in self.running.values()]
            if missing:
                self.wrong.append(f"{grant.task.key} before {missing}")
            if sum(each) > self.devices and sum(map(bool, each)) > 1:
                self.wrong.append(f"{each} of {self.devices} devices")
        time.sleep(0.001)
        with self.lock:
            del self.running[grant.task.key]
            self.done.append(grant.task.key)


@given(graphs(), st.integers(1, 6))
def test_every_task_runs_once_after_what_it_needs_on_the_devices_there_are(
    tasks: list[Task], devices: int
) -> None:
    log = Log(devices)
    for each in tasks:
        log.graph.add(each, log.work)
    log.graph.run()
    assert log.wrong == []
    assert sorted(log.done) == sorted(each.key for each in tasks)
    noted = {span["task"] for span in log.graph.spans}
    assert noted == {each.key for each in tasks if each.devices}


@given(graphs())
def test_on_one_device_the_longest_path_is_first(tasks: list[Task]) -> None:
    """Of what is ready; all tasks take the device."""
    tasks = [task(t.key, *t.after, seconds=t.seconds) for t in tasks]
    log, paths = Log(1), remaining(tasks)
    for each in tasks:
        log.graph.add(each, log.work)
    log.graph.run()
    for n, key in enumerate(log.done):
        before = set(log.done[:n])
        ready = [t.key for t in tasks if t.key not in before and before >= set(t.after)]
        assert paths[key] == max(paths[other] for other in ready)


def gate(opened: threading.Event, begun: list[Grant]) -> Callable[[Grant], None]:
    def wait(grant: Grant) -> None:
        begun.append(grant)
        grant.on_stop(opened.set)
        assert opened.wait(PATIENCE_S)

    return wait


@pytest.mark.long
def test_a_reading_takes_what_nobody_waits_for_and_gives_it_back() -> None:
    graph, slots, begun = Graph(Declared(8)), list[int](), threading.Event()

    def read(grant: Grant) -> None:
        for enough, wanted in ((10, 8), (3, 3), (10, 8)):
            grant.enough = enough
            until(lambda wanted=wanted: grant.slots == wanted)
            slots.append(grant.slots)
        begun.set()
        until(lambda: grant.slots == 6)
        slots.append(grant.slots)

    ended = threading.Event()
    graph.add(task("reading", most=10), read)
    graph.add(task("first", gpus=0), lambda grant: begun.wait(PATIENCE_S) or None)
    graph.add(task("pack", "first", least=2), gate(ended, []))
    graph.add(task("end", "reading", gpus=0), lambda grant: ended.set())
    graph.run()
    assert slots == [8, 3, 8, 6]
    assert [each["held"] for each in graph.spans if each["task"] == "reading"] == slots


def until(condition: Callable[[], bool]) -> None:
    ended = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ended
        time.sleep(0.005)


def test_the_first_error_stops_what_runs_and_is_raised() -> None:
    graph, ended, begun = Graph(Declared(2)), list[str](), threading.Event()

    def long(grant: Grant) -> None:
        stop = threading.Event()
        grant.on_stop(stop.set)
        begun.set()
        assert stop.wait(PATIENCE_S)
        assert grant.stopped.is_set()
        ended.append("long")
        raise RuntimeError("as its worker was killed")

    def fail(grant: Grant) -> None:
        begun.wait(PATIENCE_S)
        raise ValueError("the first")

    graph.add(task("long"), long)
    graph.add(task("fails"), fail)
    graph.add(task("waits", "fails"), lambda grant: ended.append("waits"))
    with pytest.raises(ValueError, match="the first"):
        graph.run()
    assert ended == ["long"]


@pytest.mark.parametrize("limit_s", [0.0, 600.0])
def test_a_limit_or_another_thread_stops_what_runs(limit_s: float) -> None:
    graph, ran = Graph(Declared(1)), list[str]()

    def work(grant: Grant) -> None:
        if limit_s:
            threading.Thread(target=graph.stop).start()
        assert grant.stopped.wait(PATIENCE_S)
        ran.append(grant.task.key)

    graph.add(task("runs"), work)
    graph.add(task("waits", "runs"), lambda grant: ran.append("waits"))
    with pytest.raises(Stopped):
        graph.run(limit_s=limit_s)
    assert ran == ["runs"]


@pytest.mark.long
def test_what_idle_devices_are_given_is_waited_for() -> None:
    """As a pack is halved: what comes after the one comes after the other too."""
    done: list[str] = []
    given, started = threading.Event(), threading.Event()

    def halve(fits: Callable[[Task], bool]) -> None:
        if not given.is_set() and started.is_set():
            assert fits(task("half"))
            assert not fits(task("another"))
            graph.add(task("half"), lambda grant: done.append("half"), beside="pack")
            given.set()

    def pack(grant: Grant) -> None:
        started.set()
        assert given.wait(PATIENCE_S)
        done.append("pack")

    graph = Graph(Declared(2, halve=halve))
    graph.add(task("pack"), pack)
    graph.add(task("read", "pack"), lambda grant: done.append("read"))
    graph.run()
    assert sorted(done[:2]) == ["half", "pack"]
    assert done[2:] == ["read"]


def crowded(nodes: Declared, count: int, *, gpus: int = 1) -> Crowd:
    """Narrow tasks hold devices until their gates open, and `first` ends once all are placed."""
    graph, placed, gates = Graph(nodes), list[Grant](), [threading.Event() for _ in range(count)]
    for n, opened in enumerate(gates):
        graph.add(task(f"narrow {n}", gpus=gpus, seconds=99), gate(opened, placed))
    graph.add(task("first", gpus=0), lambda grant: until(lambda: len(placed) >= count))
    return graph, placed, gates


@contextmanager
def running(crowd: Crowd) -> Iterator[None]:
    """Run a crowd in a thread; all gates open in the end."""
    graph, placed, gates = crowd
    runs = threading.Thread(target=graph.run)
    runs.start()
    until(lambda: len(placed) == len(gates))
    time.sleep(0.1)
    yield
    for opened in gates:
        opened.set()
    runs.join(PATIENCE_S)


def test_four_devices_on_two_nodes_are_no_room_for_a_worker_of_four() -> None:
    graph, placed, gates = crowd = crowded(Declared(4, 4), 4, gpus=2)
    graph.add(task("wide", "first", gpus=4, seconds=50), placed.append)
    graph.add(task("small", "first"), placed.append)
    with running(crowd):
        # Two of the first node end, and two of the other; the small one is on the one not reserved.
        gates[0].set(), gates[2].set()
        until(lambda: len(placed) == 5)
        time.sleep(0.1)
        assert [grant.task.key for grant in placed[4:]] == ["small"]
        gates[1].set()
        until(lambda: len(placed) == 6)


@pytest.mark.long
def test_a_node_that_joins_is_used_and_one_that_is_reserved_is_avoided() -> None:
    nodes = Declared(2)
    graph, placed, _ = crowd = crowded(nodes, 2)
    graph.add(task("wide", "first", gpus=2, seconds=50), placed.append)
    graph.add(task("last", "first"), placed.append)
    with running(crowd):
        nodes.nodes.append(node("joined", gpus=1))
        until(lambda: len(placed) == 3)
        last = placed[-1]
        assert (last.task.key, last.nodes, last.avoid) == ("last", {"joined": 1}, {"node 0"})


def test_a_study_holds_its_share_and_a_wide_task_waits_for_no_narrower_one_of_it() -> None:
    nodes = Declared(2, 2)
    nodes.resources = Resources(share=0.5)
    graph, placed, _ = crowd = crowded(nodes, 2)
    graph.add(task("wide", "first", gpus=2), placed.append)
    graph.add(task("last", "first", seconds=50), placed.append)
    with running(crowd):
        assert len(placed) == 2, "two devices of four are the study's"
    assert [grant.task.key for grant in placed[2:]] == ["wide", "last"]
