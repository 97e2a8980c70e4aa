"""Every path that a command takes, given what is no file: one line, at once, and nothing left.

`READING` has every command and option that reads a path.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raybias.cli import app, as_one_line
from raybias.errors import DataError
from raybias.opening import MOST_WRITTEN, check_file, read_written
from support.documents import ROOT

#: What is read by each command, `{}` for the path.
READING = {
    "run": ("run", "{}", "--out", "out"),
    "plan": ("plan", "{}"),
    "measure": ("measure", "{}"),
    "compare": ("compare", "{}", "{}"),
    "compare --policy": ("compare", "a.csv", "a.csv", "--policy", "{}"),
    "report": ("report", "{}"),
    "probes check": ("probes", "check", "{}"),
    "probes write": ("probes", "write", "file", "--data", "{}", "--out", "out.csv"),
    "annotate import": ("annotate", "import", "{}", "{}", "--out", "judged"),
    "serve --token-file": ("serve", "out", "--token-file", "{}"),
    "audit": ("audit", "{}", "--probe", "toxicity", "--out", "out"),
    "data convert": ("data", "convert", "{}", "--out", "out"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("label,pred,group\n1,0,x\n0,1,y\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "pipe.parquet")
    return tmp_path


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize(
    "path",
    ["pipe.yaml", "pipe.csv", "pipe.parquet", "/dev/zero", "/proc/kmsg", "x" * 300, "no/such"],
)
def test_what_is_no_file_is_refused_in_one_line(
    name: str, path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(folder.iterdir())
    with at_once():
        done = CliRunner().invoke(app, [word.format(path) for word in READING[name]])
    assert done.exit_code
    assert done.exception is not None
    if not isinstance(done.exception, SystemExit):
        line = str(as_one_line(done.exception))
        assert "bug of raybias" not in line
        assert len(line) < 2500
        assert "\n" not in line
    assert sorted(folder.iterdir()) == before


#: What is written by each command, `{}` for the path.
WRITING = {
    "measure --out": ("measure", "a.csv", "--out", "{}"),
    "compare --out": ("compare", "a.csv", "a.csv", "--out", "{}"),
    "run --out": ("run", "demo.yaml", "--out", "{}"),
    "demo --out": ("demo", "--out", "{}"),
    "audit --write": ("audit", "planted", "--probe", "gender", "--write", "{}"),
    "probes write --out": ("probes", "write", "toxicity", "--out", "{}"),
    "probes new --out": ("probes", "new", "labels", "--out", "{}"),
    "data convert --out": ("data", "convert", "planted", "--out", "{}"),
}


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("path", ["y" * 300, "a.csv/in/file", "file:///x/%00y", "pipe.csv"])
def test_what_cannot_be_written_is_refused_in_one_line(
    name: str, path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "demo.yaml").write_bytes((ROOT / "jobs/demo.yaml").read_bytes())
    before = sorted(folder.rglob("*"))
    with at_once():
        done = CliRunner().invoke(app, [word.format(path) for word in WRITING[name]])
    assert done.exit_code, done.output
    assert done.exception is not None
    if not isinstance(done.exception, SystemExit):
        line = str(as_one_line(done.exception))
        assert "bug of raybias" not in line
        assert "\n" not in line
    assert sorted(folder.rglob("*")) == before


@contextmanager
def at_once() -> Iterator[None]:
    """Interrupt what waits for longer than a minute, such as for the writer of a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_given_pipe_is_read_to_a_limit(tmp_path: Path) -> None:
    for text, refused in (("name: x\n", False), ("x" * (MOST_WRITTEN + 9), True)):
        ours, theirs = os.pipe()
        thread = threading.Thread(target=_fill, args=(theirs, text))
        thread.start()
        try:
            if refused:
                with pytest.raises(DataError, match="has more than 16 MiB"):
                    read_written(f"/dev/fd/{ours}")
            else:
                assert read_written(f"/dev/fd/{ours}") == text
        finally:
            os.close(ours)
            thread.join()
    with pytest.raises(DataError, match="is a device, socket or file of the kernel"):
        check_file("/dev/zero")
    check_file(tmp_path)
    check_file(tmp_path / "missing")


def _fill(pipe: int, text: str) -> None:
    try:
        with os.fdopen(pipe, "w") as file:
            file.write(text)
    # The reader had enough.
    except BrokenPipeError:
        pass
