"""The order of a study's tasks: dependencies, devices, priority, and what a failure leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.planning.machine import ResourceRequest
from raybias.planning.schedule import Task, remaining
from raybias.runtime.graph import Grant, Graph, Stopped

PATIENCE_S = 20.0


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


class Log:
    """What runs, and what was wrong with it."""

    def __init__(self, devices: int) -> None:
        self.graph, self.devices = Graph(devices), devices
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


def gate(opened: threading.Event) -> Callable[[Grant], None]:
    def wait(grant: Grant) -> None:
        grant.on_stop(opened.set)
        assert opened.wait(PATIENCE_S)

    return wait


@pytest.mark.long
def test_a_reading_takes_what_nobody_waits_for_and_gives_it_back() -> None:
    graph, slots, begun = Graph(8), list[int](), threading.Event()

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
    graph.add(task("pack", "first", least=2), gate(ended))
    graph.add(task("end", "reading", gpus=0), lambda grant: ended.set())
    graph.run()
    assert slots == [8, 3, 8, 6]


def until(condition: Callable[[], bool]) -> None:
    ended = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ended
        time.sleep(0.005)


def test_the_first_error_stops_what_runs_and_is_raised() -> None:
    graph, ended, begun = Graph(2), list[str](), threading.Event()

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


def test_a_stop_from_another_thread_ends_all_at_once() -> None:
    graph, opened, ran = Graph(1), threading.Event(), list[str]()
    graph.add(task("runs"), gate(opened))
    graph.add(task("waits"), lambda grant: ran.append("waits"))
    stopper = threading.Timer(0.1, graph.stop)
    stopper.start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        graph.run()
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert ran == []


@pytest.mark.long
def test_what_runs_longer_than_its_limit_is_stopped_and_said_to_be() -> None:
    graph, ran = Graph(1), list[str]()

    def work(grant: Grant) -> None:
        assert grant.stopped.wait(PATIENCE_S)
        ran.append(grant.task.key)

    graph.add(task("runs"), work)
    graph.add(task("waits", "runs"), lambda grant: ran.append("waits"))
    with pytest.raises(Stopped):
        graph.run(limit_s=0.0)
    assert ran == ["runs"]


@pytest.mark.long
def test_what_idle_devices_are_given_is_waited_for() -> None:
    """As a pack is halved: what comes after the one comes after the other too."""
    done: list[str] = []
    given = threading.Event()

    def spare(idle: int) -> None:
        if not given.is_set():
            assert idle == 1
            graph.add(task("half"), lambda grant: done.append("half"), beside="pack")
            given.set()

    def pack(grant: Grant) -> None:
        assert given.wait(PATIENCE_S)
        done.append("pack")

    graph = Graph(2, spare=spare)
    graph.add(task("pack"), pack)
    graph.add(task("read", "pack"), lambda grant: done.append("read"))
    graph.run()
    assert sorted(done[:2]) == ["half", "pack"]
    assert done[2:] == ["read"]
