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

#: Seconds for all that must be undone.
_UNDOING_S: Final = 3.0
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
    """End the process on SIGTERM or SIGINT while the context is open; a second ends it at once.

    Outside of the main thread, which alone can handle signals, nothing changes.
    """
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
    undone = [threading.Thread(target=_quietly, args=(each,), daemon=True) for each in _undo]
    for thread in undone:
        thread.start()
    ended = time.monotonic() + _UNDOING_S
    for thread in undone:
        thread.join(max(0.0, ended - time.monotonic()))
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # A progress bar hides the cursor.
    print("raybias: stopped; the same command goes on with what is there", file=sys.stderr)
    _exit(number)


def _quietly(action: Callable[[], object]) -> None:
    with suppress(Exception):
        action()


def _exit(number: int) -> None:
    """Kill what this process started and leave, without waiting for any thread."""
    ended = time.monotonic() + _KILLING_S
    while time.monotonic() < ended:
        living = [each for each in psutil.Process().children(recursive=True) if _lives(each)]
        if not living:
            break
        # Parents come first; what one started meanwhile is found in the next round.
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)
    sys.stderr.flush()
    os._exit(128 + number)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
