"""Commands about probes, as a user gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from raybias.cli import main


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Run a command, whose words may be paths and numbers, and check its exit code."""

    def call(*words: object, code: int = 0) -> Printed:
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        printed = Printed(*capsys.readouterr())
        assert int(end.value.code or 0) == code, printed.err
        return printed

    return call
