"""Hold an OUT for one driver at a time: OUT/lease.json says who, and that it is alive.

A holder writes a heartbeat every few seconds. A lease is free where its process, on this machine,
is gone, or where its heartbeat is old and does not change while it is looked at; clocks may differ
or jump. In a folder a lease is taken under a lock of that folder, so of any number of drivers one
has it. Object stores, and folders that know no locks, have no such thing: there a driver writes,
waits and reads back, so that of those that write within that time the last has it. One whose write
took longer than that has it beside another until the next heartbeat of either, which stops.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raybias.errors import MissingFile, OutputError, RaybiasError
from raybias.runtime.ending import is_alive, undoing
from raybias.storage import Store
from raybias.study_record import before_work
from raybias.terminal import warn

NAME: Final = "lease.json"
#: Seconds after its holder's last heartbeat until a lease is taken over.
EXPIRES_S: Final = 30.0
_BEATS_S: Final = 5.0
#: Seconds that an object store has to show what was written.
_SETTLES_S: Final = 2.0
#: Leases that this process holds, or is taking; others of its id it could not give back.
_HOLDING: Final[set[str]] = set()


def _machine() -> str:
    """Name the machine's start and process table, within which a process id means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


class Lease(BaseModel):
    """The content of OUT/lease.json."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    holder: str = Field(default_factory=lambda: uuid.uuid4().hex)
    host: str = Field(default_factory=socket.gethostname)
    machine: str = Field(default_factory=_machine)
    pid: int = Field(default_factory=os.getpid, ge=1, lt=2**31)
    started: float = Field(default_factory=time.time, ge=0, lt=2**32)
    """Seconds of the epoch, as the heartbeat."""
    heartbeat: float = Field(default_factory=time.time, ge=0, lt=2**32)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        return f"process {self.pid} on {self.host}, since {since}"

    @property
    def is_dead(self) -> bool:
        """Tell whether the holder's process, on this machine, is gone or holds it no more."""
        if self.machine != _machine():
            return False
        if self.pid == os.getpid():
            return self.holder not in _HOLDING
        return not is_alive(self.pid)


@contextmanager
def leased(store: Store) -> Iterator[None]:
    """Hold the lease of an OUT while the context is open; a signal gives it back, too.

    A holder that finds another in its place, as after hours asleep, interrupts the main thread.
    OutputError: another driver holds it, or OUT cannot be written.
    """
    made = store.is_local and not Path(store.root).exists()
    mine, ended = Lease(), threading.Event()
    _HOLDING.add(mine.holder)
    try:
        _take(store, mine)
    except BaseException:
        _HOLDING.remove(mine.holder)
        raise
    beats = threading.Thread(target=_beat, args=(store, mine, ended), daemon=True)
    beats.start()

    def release() -> None:
        ended.set()
        beats.join()
        _HOLDING.discard(mine.holder)
        with _locked(store):
            _, last = _read(store)
            if last is not None and last.holder == mine.holder:
                store.delete(NAME)
            if made:
                # Nothing is left of what was refused before any work.
                with suppress(OSError):
                    Path(store.root).rmdir()

    try:
        with undoing(release):
            yield
    finally:
        with suppress(RaybiasError, OSError):
            release()


@before_work()
def _take(store: Store, mine: Lease) -> None:
    try:
        found, lease = _read(store)
        if found is not None and not (lease is not None and lease.is_dead):
            if lease is not None and abs(time.time() - lease.heartbeat) < EXPIRES_S:
                raise _held(store, lease)
            # Its heartbeat is old by this machine's clock, which may be wrong.
            time.sleep(2 * _BEATS_S)
        with _locked(store) as alone:
            again, lease = _read(store)
            if again != found and lease is not None and not lease.is_dead:
                raise _held(store, lease)
            store.write_text(NAME, mine.model_dump_json())
        if not alone:
            time.sleep(_SETTLES_S)
            _, last = _read(store)
            if last is None or last.holder != mine.holder:
                raise _held(store, last)
    except OSError as error:
        raise OutputError(
            f"cannot write ({error.strerror or error})",
            where=store.uri,
            cure="check the place and its rights",
        ) from error


def _held(store: Store, lease: Lease | None) -> OutputError:
    return OutputError(
        f"another raybias works on it ({lease or 'it does not say which'})",
        where=store.uri,
        cure="wait for its end or give another --out; where it died, the same command goes on"
        f" {EXPIRES_S:.0f} s after its last heartbeat",
    )


def _beat(store: Store, mine: Lease, ended: threading.Event) -> None:
    """Renew a lease until `ended`; a place that does not answer is tried again."""
    while not ended.wait(_BEATS_S):
        with suppress(RaybiasError, OSError), _locked(store):
            text, found = _read(store)
            if text is not None and (found is None or found.holder != mine.holder):
                warn(f"raybias: {store.uri}: taken over by {found}")
                os.kill(os.getpid(), signal.SIGINT)
                return
            renewed = mine.model_copy(update={"heartbeat": time.time()})
            store.write_text(NAME, renewed.model_dump_json())


@contextmanager
def _locked(store: Store) -> Iterator[bool]:
    """Lock a folder against others that take its lease; gives whether that is possible."""
    if not store.is_local:
        yield False
        return
    import fcntl  # which Windows does not have

    folder = Path(store.root)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            alone = same = False
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
                alone = True
            with suppress(FileNotFoundError):
                same = folder.stat().st_ino == os.fstat(handle).st_ino
            # Its last holder may have removed it meanwhile.
            if same:
                yield alone
                return
        finally:
            os.close(handle)


def _read(store: Store) -> tuple[str | None, Lease | None]:
    """Read the text of a lease, if there is any, and the lease, if it is one."""
    try:
        text = store.read_bytes(NAME).decode("utf-8", "replace")
    except MissingFile:
        return None, None
    with suppress(ValidationError):
        return text, Lease.model_validate_json(text)
    return text, None
