"""Run commands in this process, and find ports for those in others."""

from __future__ import annotations

import socket

import pytest

from raybias.cli import main


def exit_code(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([*map(str, words)])
    return int(caught.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line with which a command refuses its input."""
    capsys.readouterr()
    assert exit_code(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
