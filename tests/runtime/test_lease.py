"""One driver at a time has an OUT; what happened to the others and their places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from raybias.errors import BadInput, OutputError
from raybias.runtime import lease
from raybias.runtime.lease import EXPIRES_S, Lease, leased
from raybias.storage import Store

#: A driver that works until it is killed, and then ten that wait, work and write down when.
DRIVERS = """
import os, random, sys, time, warnings
from raybias.errors import OutputError
from raybias.runtime.lease import leased
from raybias.storage import Store

# Libraries have threads of their own, of which Python warns since 3.12 where a process forks.
warnings.simplefilter("ignore", DeprecationWarning)
out, log = sys.argv[1:]

def work(waits, works):
    if os.fork():
        return
    time.sleep(waits)
    try:
        with leased(Store(out)):
            begun = time.monotonic()
            print(os.getpid(), flush=True)
            time.sleep(works)
            with open(log, "a") as stream:
                stream.write(f"{begun} {time.monotonic()}\\n")
    except OutputError as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(0)

work(0, 600)
sys.stdin.read(1)
dice = random.Random(1)
for _ in range(10):
    work(dice.uniform(0, 1.0), dice.uniform(0, 0.2))
for _ in range(11):
    os.wait()
"""


@pytest.mark.long
def test_a_killed_holder_is_followed_at_once_and_of_ten_drivers_one_works_at_a_time(
    tmp_path: Path,
) -> None:
    store, log = Store(tmp_path / "out"), tmp_path / "log"
    command = [sys.executable, "-c", DRIVERS, store.uri, str(log)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as drivers:
        assert drivers.stdout is not None
        pid = int(drivers.stdout.readline())
        said = f"another raybias works on it \\(process {pid} on .*, since 20"
        with pytest.raises(OutputError, match=said), leased(store):
            pass
        os.kill(pid, signal.SIGKILL)
        _, said = drivers.communicate("x", timeout=60)
    spans = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert spans
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), spans
    refused = said.splitlines()
    assert len(spans) + len(refused) == 10, said
    assert all("another raybias works on it (process " in line for line in refused), said
    # The first found a lease there, so the folder is none of its own to remove.
    assert list((tmp_path / "out").glob("*")) == []


def test_a_lease_that_could_not_be_given_back_hinders_the_same_process_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose object store was away when a study ended."""
    store = Store(tmp_path / "out")

    def away(*_: object) -> None:
        raise OutputError("does not answer", where=store.uri)

    with monkeypatch.context() as patch, leased(store):
        with pytest.raises(OutputError, match="another raybias works on it"), leased(store):
            pass
        patch.setattr(Store, "delete", away)
    assert store.exists(lease.NAME)
    with leased(store):
        pass
    assert not store.exists(lease.NAME)


@pytest.mark.parametrize("age", [2 * EXPIRES_S, -10 * EXPIRES_S])
@pytest.mark.parametrize("beats", [True, False])
def test_another_machines_old_lease_is_watched_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, beats: bool
) -> None:
    """Its clock may be behind or ahead of this one's."""
    store = Store(tmp_path)
    there = Lease(host="other", machine="other", heartbeat=time.time() - age)
    store.write_text(lease.NAME, there.model_dump_json())

    def sleep(_: float) -> None:
        later = there.model_copy(update={"heartbeat": there.heartbeat + 5})
        store.write_text(lease.NAME, later.model_dump_json() if beats else there.model_dump_json())

    monkeypatch.setattr(lease.time, "sleep", sleep)
    if beats:
        with pytest.raises(OutputError, match="on other"), leased(store):
            pass
        return
    with leased(store):
        pass
    # Nor is one that cannot be read in anybody's way.
    monkeypatch.setattr(lease.time, "sleep", lambda _: None)
    for text in ("", "[]", '{"pid": -1}'):
        store.write_text(lease.NAME, text)
        with leased(store):
            pass


def test_a_holder_that_was_away_too_long_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_BEATS_S", 0.05)
    store = Store(tmp_path)
    other = Lease(host="other", machine="other")

    def overslept() -> None:
        with leased(store):
            store.write_text(lease.NAME, other.model_dump_json())
            time.sleep(30)

    # Tests that a shell runs in its background have it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            overslept()
    finally:
        signal.signal(signal.SIGINT, before)
    assert other.holder in store.read_text(lease.NAME), "it is the other's now"


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_takes_no_lease_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(lease, "_BEATS_S", 0.05)
    store, now = Store(tmp_path), time.time
    with leased(store):
        monkeypatch.setattr(lease.time, "time", lambda: now() + jump)
        before = Lease.model_validate_json(store.read_text(lease.NAME)).heartbeat
        with pytest.raises(OutputError, match="another raybias works on it"), leased(store):
            pass
        while abs(Lease.model_validate_json(store.read_text(lease.NAME)).heartbeat - before) < 3600:
            time.sleep(0.02)
        with pytest.raises(OutputError, match="another raybias works on it"), leased(store):
            pass
    assert not store.exists(lease.NAME)


def test_without_locks_the_last_to_write_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store."""
    store, other = Store(tmp_path), Lease(host="other", machine="other")
    store.is_local = False
    monkeypatch.setattr(
        lease.time, "sleep", lambda _: store.write_text(lease.NAME, other.model_dump_json())
    )
    with pytest.raises(OutputError, match="on other"), leased(store):
        pass


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(BadInput, match="cannot"), leased(Store(place)):
            pass
    (tmp_path / "out" / lease.NAME).mkdir(parents=True)
    with pytest.raises(BadInput), leased(Store(tmp_path / "out")):
        pass
