"""SIGTERM and SIGINT end a command with one line, whatever it is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raybias.runtime.ending import ending_on_signals

#: A command that computes in C, has a child that starts others, and something to undo.
BUSY = """
import hashlib, subprocess, sys, time
from pathlib import Path
from raybias.runtime.ending import ending_on_signals, undoing

folder, hangs = Path(sys.argv[1]), sys.argv[2] == "hangs"
child = '''
import subprocess, time
for number in range(400):
    subprocess.Popen(['sleep', '600'])
    if number == 5:
        print('busy', flush=True)
time.sleep(600)
'''

def undo():
    (folder / "undone").touch()
    time.sleep(600 if hangs else 0)

with ending_on_signals(), undoing(undo), undoing(lambda: 1 / 0):
    subprocess.Popen([sys.executable, "-c", child])
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""
LINE = "raybias: stopped; the same command goes on with what is there\n"


def busy(folder: Path, how: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen([sys.executable, "-c", BUSY, folder, how], text=True, **pipes)
    assert started.stdout is not None
    assert started.stdout.readline() == "busy\n"
    return started


@pytest.mark.long
def test_a_signal_undoes_kills_and_says_one_line(tmp_path: Path) -> None:
    process = busy(tmp_path, "ends")
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)  # As long as anybody holds its pipes.
    assert process.returncode == 128 + signal.SIGINT
    assert said == LINE
    assert (tmp_path / "undone").exists()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.long
def test_what_hangs_is_not_waited_for_and_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = busy(tmp_path, "hangs")
    process.send_signal(signal.SIGTERM)
    while not (tmp_path / "undone").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 128 + signal.SIGINT
    alone = busy(tmp_path, "hangs")
    alone.send_signal(signal.SIGTERM)
    assert alone.communicate(timeout=30)[1] == LINE
    assert alone.returncode == 128 + signal.SIGTERM


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with ending_on_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
