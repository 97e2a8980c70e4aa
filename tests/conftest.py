"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same cases each time, so that a change fails for what it did; `long` looks for new ones.
settings.register_profile("tests", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("long", max_examples=2500)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The published data that is not shipped; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("RAYBIAS_SHARED", beside))
    if not (folder / "data").is_dir():
        pytest.skip(f"the published data is not at {folder}; set RAYBIAS_SHARED to its folder")
    return folder
