"""A small study, what an undisturbed process leaves of it, and an arena for the tests of kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from arena import Arena, arena
from bout import undisturbed, write_study


@pytest.fixture(scope="module")
def place() -> Iterator[Arena]:
    with arena() as made:
        yield made


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), limit=120, arms=1)


@pytest.fixture(scope="module")
def calm(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OUT of an undisturbed run."""
    out = tmp_path_factory.mktemp("calm") / "out"
    undisturbed(study, out)
    return out
