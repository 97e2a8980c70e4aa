"""End a command within seconds of SIGTERM or SIGINT, whatever it is doing.

The main thread may be deep in Ray, torch or a download when a signal comes, so a thread beside it
does what is left: it undoes what outlives this process, kills the processes that this one started,
such as a Ray of its own, and exits with 128 + the signal's number. All that raybias writes is
whole or absent, so nothing else needs an orderly end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

#: Seconds for all cleanups together, and the least for each where others took them.
_UNDOING_S: Final = 3.0
_LEAST_S: Final = 0.3
_KILLING_S: Final = 1.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_undo: list[Callable[[], object]] = []
_begun = threading.Event()


@contextmanager
def undoing(action: Callable[[], object]) -> Iterator[None]:
    """Have `action` called, in another thread, where a signal comes while the context is open."""
    _undo.append(action)
    try:
        yield
    finally:
        _undo.remove(action)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """End on SIGTERM or SIGINT while the context is open, at once on a second; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Python's own handlers wait until the main thread is back from C; this pipe does not.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(heard,), daemon=True)
    watch.start()
    try:
        with keeping_handlers():
            for number in _SIGNALS:
                signal.signal(number, lambda *_: None)
            try:
                yield
            finally:
                if _begun.is_set():
                    # What the main thread would say now is an effect of the end.
                    threading.Event().wait()
    finally:
        signal.set_wakeup_fd(before)
        os.write(told, b"\0")
        watch.join()
        os.close(told)
        os.close(heard)


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Give signals back to who handles them now; `ray.init` takes SIGTERM, and aborts on it."""
    main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in _SIGNALS} if main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _watch(heard: int) -> None:
    while (number := os.read(heard, 1)[0]) not in _SIGNALS:
        if number == 0:
            return
    if _begun.is_set():
        _exit(number)
    _begun.set()
    threading.Thread(target=_end, args=(number,), daemon=True).start()
    _watch(heard)


def _end(number: int) -> None:
    ended = time.monotonic() + _UNDOING_S
    # What was begun last is undone first; what hangs is left to itself.
    for action in reversed(_undo.copy()):
        undone = threading.Thread(target=_quietly, args=(action,), daemon=True)
        undone.start()
        undone.join(max(_LEAST_S, ended - time.monotonic()))
    with suppress(Exception):
        cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # A progress bar hides it.
        sys.stderr.flush()
        # What other threads and C write from now on is not shown.
        shown = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        line = f"{cursor}raybias: stopped; the same command goes on with what is there\n"
        os.write(shown, line.encode())
    _exit(number)


def _quietly(action: Callable[[], object]) -> None:
    with suppress(Exception):
        action()


def kill_started() -> None:
    """Kill the processes that this one started, and those that they did."""
    ended = time.monotonic() + _KILLING_S
    # Stopped first: one that dies while it starts another leaves that without a known parent.
    before: list[psutil.Process] = []
    started = psutil.Process().children(recursive=True)
    while started != before and time.monotonic() < ended:
        for process in started:
            with suppress(psutil.Error):
                process.suspend()
        time.sleep(0.01)  # A signal takes a moment.
        # What was started before its parent stopped is in the next list.
        before = started if not any(map(_is_running, started)) else []
        started = psutil.Process().children(recursive=True)
    for process in started:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(started, timeout=max(0.0, ended - time.monotonic()))


def _is_running(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    return False


def _exit(number: int) -> None:
    kill_started()
    sys.stderr.flush()
    os._exit(128 + number)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and waits for its parent does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
