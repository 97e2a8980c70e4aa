"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("support")

# The same cases each time, so that a change fails for what it did; `long` looks for new ones.
settings.register_profile("tests", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("fast", max_examples=5, derandomize=True, deadline=None)
settings.register_profile("long", max_examples=2500)
settings.load_profile("tests")

#: Architectures of which a claim holds once more: `make fast` leaves them to `make test`.
FURTHER = {"bloom", "cohere", "gpt2", "mistral", "opt_projected", "qwen2", "roberta", "xlnet"}


#: These take about half of the time that tests on a Ray cluster take.
ONE_RAY = {"test_corpus_stream.py", "test_methods.py", "test_run.py", "test_train.py"}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is long, and deal the tests to processes by file, those on Ray to two of them.

    A cluster of its own for each process would take much of the machine, and a single one would
    wait for one study after the other while the others have long ended.
    """
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("kind") in FURTHER:
            item.add_marker("long")
        group = item.path.name
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            group = "one Ray" if group in ONE_RAY else "other Ray"
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at what was imported, which stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The published data that is not shipped; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("RAYBIAS_SHARED", beside))
    if not (folder / "data").is_dir():
        pytest.skip(f"the published data is not at {folder}; set RAYBIAS_SHARED to its folder")
    return folder
