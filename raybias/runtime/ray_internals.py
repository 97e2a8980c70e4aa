"""Call the parts of Ray that are not public; no other file of the package does.

Written for Ray 2.60, to which pyproject.toml pins Ray; tests/runtime/test_ray_internals.py says
which of these must be looked at again where that changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: Parts of the command lines of Ray's processes.
COMMANDS = ("ray::", "/ray/core/src/ray/", "/ray/dashboard/", "/ray/_private/")


def cpu_count() -> int:
    """Return the CPUs that `ray.init` finds: those of the container, which psutil does not see."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus())


def memory_bytes() -> int:
    """Return the bytes of memory that `ray.init` finds: those of the container."""
    from ray._common.utils import get_system_memory

    return int(get_system_memory())


def session_folder() -> str:
    """Return the folder in which `ray.init` makes that of its session."""
    from ray._common.utils import get_default_system_temp_dir

    return str(get_default_system_temp_dir())


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVIDIA's driver describes it.

    Attributes
    ----------
    kind: as Ray names it, such as A100; None where Ray has no name for it.
    total, free: bytes of its memory, and those that no process holds.
    bfloat16: whether it multiplies in bfloat16 (compute capability 8.0 or newer).
    """

    kind: str | None
    total: int
    free: int
    bfloat16: bool


def gpus_of_machine(visible: str | None = None) -> list[Gpu]:
    """Describe this machine's GPUs, or those of CUDA_VISIBLE_DEVICES; none without a driver.

    NVML makes no CUDA context, which would hold memory.
    """
    # Ray's copy of nvidia-ml-py.
    from ray._private.accelerators import NvidiaGPUAcceleratorManager
    from ray._private.thirdparty import pynvml

    try:
        pynvml.nvmlInit()
        if visible is None:
            visible = ",".join(map(str, range(pynvml.nvmlDeviceGetCount())))
        names = (name for name in map(str.strip, visible.split(",")) if name)
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdecimal()
            else pynvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
            if name != "NoDevFiles"
        ]
        kind = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type
        found = []
        for handle in handles:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            able = pynvml.nvmlDeviceGetCudaComputeCapability(handle) >= (8, 0)
            name = kind(pynvml.nvmlDeviceGetName(handle))
            found.append(Gpu(name, int(memory.total), int(memory.free), able))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return found


def grpc_channel(address: str) -> Any:
    """Open a gRPC channel to `HOST:PORT` as Ray's own processes do, with its TLS settings."""
    from ray._private.grpc_utils import init_grpc_channel

    return init_grpc_channel(address)


def asks_for_token() -> bool:
    """Tell whether Ray's processes ask each other, and everybody else, for a token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


@contextmanager
def on_loopback() -> Iterator[None]:
    """Have the Ray that is started listen on loopback alone, as it does by default on macOS.

    What stays open to others is the gRPC port of each Serve replica, which Serve binds everywhere,
    and which asks for Ray's token.
    """
    from ray._private import ray_constants

    variable, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    given = os.environ.get(variable)
    os.environ[variable], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[variable]
        if given is not None:
            os.environ[variable] = given


def jobs() -> list[dict[str, Any]]:
    """List the drivers of the connected cluster; `ray.util.state` needs the dashboard for it."""
    from ray._private import state

    found: list[dict[str, Any]] = state.jobs()
    return found


def leaving_nodes() -> set[str]:
    """Return the ids of the nodes that are drained, such as those of an announced preemption."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def free_by_node() -> dict[str, dict[str, float]]:
    """Return the resources that nothing holds, by the id of the node."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


def serve_client() -> Any:
    """Return Serve's client of its controller; None where Serve does not run.

    `serve.status` would register a module of Serve's around each config, which fails where another
    thread does so at the same time, and pickle a request router at each look.
    """
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=False)


def delete_apps(names: Sequence[str], *, blocking: bool = True) -> None:
    """Delete Serve applications, all at one time."""
    if client := serve_client():
        client.delete_apps(list(names), blocking=blocking)
