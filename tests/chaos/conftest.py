"""A small study, and for the tests of kills an arena with one undisturbed run in it."""

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
def calm(place: Arena, study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OUT of an undisturbed run."""
    out = tmp_path_factory.mktemp("calm") / "out"
    undisturbed(place.address, study, out)
    return out
