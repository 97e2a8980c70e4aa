"""Run commands in this process."""

from __future__ import annotations

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
