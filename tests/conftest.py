"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

pytest.register_assert_rewrite("support")

# Ray's workers are nice to other work, and would wait for every test that computes by itself.
os.environ.setdefault("RAY_worker_niceness", "0")

# The same cases each time, so that a change fails for what it did; `long` looks for new ones.
settings.register_profile("tests", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("fast", max_examples=5, derandomize=True, deadline=None)
settings.register_profile("long", max_examples=4000, deadline=None)
settings.load_profile("tests")

#: Architectures of which a claim holds once more: `make fast` leaves them to `make test`.
FURTHER = {
    "bert_int8", "bloom", "cohere", "gpt2", "llama_int4", "llama_int8", "mistral", "mixtral",
    "opt_int4", "opt_projected", "qwen2", "roberta", "smollm2", "xlnet",
}  # fmt: skip

#: These files of tests/cluster start what they need by themselves.
NO_RAY = {"test_jobs.py", "test_readme.py", "test_zero3.py"}
#: The cases of these files take longest and share nothing: each goes to whoever is free.
APART = {"test_tuned_as_peers.py"}


class Dealer(LoadFileScheduling):
    """Deal files to test processes, and all that share a Ray cluster to one of them.

    Each cluster takes much of the machine, also while nobody uses it.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(super()._split_scope(nodeid))
        if file.name in APART:
            return nodeid
        if file.parent.name != "cluster" or file.name in NO_RAY:
            return str(file)
        return "Ray"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealer:
    return Dealer(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("kind") in FURTHER:
            item.add_marker("long")


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


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, converted from GGUF; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[1] / ".real" / "smollm2"
    if not folder.is_dir():
        pytest.skip(f"SmolLM2 is not at {folder}; `make real` downloads and converts it")
    return folder
