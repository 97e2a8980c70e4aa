"""The parts of Ray that are not public: those of 2.60, used in one file, and each as it says.

Where the first test fails Ray was changed: read the others, then write the new version there.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from packaging.requirements import Requirement
from ray._private.thirdparty import pynvml

import raybias
from raybias.errors import PlanError
from raybias.runtime import ray_internals
from raybias.runtime.inventory import this_machine
from raybias.runtime.ray_session import connected

VARIABLE = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
PRIVATE = re.compile(r"\bray(?:\.\w+)*\._\w|import _get_|\._controller\b|\bserve\._\w")


def test_ray_is_the_version_that_these_were_written_for() -> None:
    assert ray.__version__.startswith("2.60.")
    asked = next(each for each in map(Requirement, requires("raybias") or ()) if each.name == "ray")
    assert asked.specifier.contains("2.60.0")


def test_one_file_uses_what_is_private() -> None:
    package = Path(raybias.__file__).parent
    using = {file.name for file in package.rglob("*.py") if PRIVATE.search(file.read_text())}
    assert using == {"ray_internals.py"}


def test_loopback_is_for_the_ray_that_is_started_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import ray_constants as constants

    monkeypatch.setattr(constants, "ENABLE_RAY_CLUSTER", True)
    with ray_internals.on_loopback():
        assert not constants.ENABLE_RAY_CLUSTER
    assert constants.ENABLE_RAY_CLUSTER


def test_workers_that_ask_for_no_gpu_see_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray does where this is set in the processes of its nodes."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(PlanError), connected("nowhere"):
        pass
    assert os.environ.pop(VARIABLE) == "1"
    assert (
        f"{VARIABLE}=1" in (Path(raybias.__file__).parents[1] / "cluster/Containerfile").read_text()
    )


def test_gpus_are_described_by_their_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those alone that this process may see."""
    assert ray_internals.gpus_of_machine() == []
    names = ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
    for name, stand_in in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda name: {"GPU-t4": 1}[name],
        "nvmlDeviceGetName": names.__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=40, free=39 - handle),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: [(8, 0), (7, 5)][handle],
    }.items():
        monkeypatch.setattr(pynvml, name, stand_in)
    a100 = ray_internals.Gpu("A100", 40, 39, bfloat16=True)
    t4 = ray_internals.Gpu("T4", 40, 38, bfloat16=False)
    assert ray_internals.gpus_of_machine() == [a100, t4]
    for visible, found in {"1": [t4], "GPU-t4, 0": [t4, a100], "": [], "NoDevFiles": []}.items():
        assert ray_internals.gpus_of_machine(visible) == found
    # A context would hold memory of the first GPU for as long as the driver runs.
    monkeypatch.setattr(torch.cuda, "_lazy_init", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    (node,) = this_machine(dtypes=True).nodes
    assert (node.gpus, node.gpu_memory, node.gpu, node.bfloat16) == (2, 38, "A100", False)
