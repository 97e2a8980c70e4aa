"""Call the parts of Ray that are not public; no other file of the package does.

Written for Ray 2.60, to which pyproject.toml pins Ray; tests/runtime/test_ray_internals.py says
which of these must be looked at again where that changes.

With them replicas end with their driver: Serve's controller outlives every driver, and its
applications with it. Their names hold the job of the driver that made them, and each replica looks
whether that job still runs.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from raybias.redaction import redact

#: Seconds between two looks of a replica; Serve takes some ten more to end it.
_LOOK_EVERY_S: Final = 10.0
_APP: Final = re.compile(r"raybias-(?:serve-[0-9a-f]{8}|[0-9a-f]{16})-([0-9a-f]{8})-.+")
#: Of drivers that are Ray's own.
_INTERNAL: Final = "/ray/dashboard/"
_SHOWN: Final = 120
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
    """A GPU by NVIDIA's driver: its kind as Ray names it, all bytes, and those nobody holds."""

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

    Serve still binds the gRPC port of each replica everywhere; it asks for Ray's token.
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


def leaving_nodes() -> set[str]:
    """Return the ids of the nodes that are drained, such as those of an announced preemption."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def free_by_node() -> dict[str, dict[str, float]]:
    """Return the resources that nothing holds, by the id of the node."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


def forget_serve() -> None:
    """Forget Serve's controller before Ray ends.

    Ray 2.60 tells its sessions apart by their jobs' numbers, and takes it for that of the next Ray
    that this process starts, whose job has the same.
    """
    if context := sys.modules.get("ray.serve.context"):
        context._set_global_client(None)


def _serve_client() -> Any:
    """Return Serve's client of its controller; None where Serve does not run.

    `serve.status` would register a module of Serve's around each config, which fails where another
    thread does so at the same time, and pickle a request router at each look.
    """
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=False)


def applications() -> list[str]:
    """List the cluster's Serve applications by name; none where Serve does not run."""
    client = _serve_client()
    return [] if client is None else [status.name for status in client.list_serve_statuses()]


def delete_apps(names: Sequence[str], *, blocking: bool = True) -> None:
    """Delete Serve applications, all at one time."""
    if client := _serve_client():
        client.delete_apps(list(names), blocking=blocking)


def app_name(prefix: str, name: str) -> str:
    """Name an application of this driver; `prefix` is its OUT's, or its service's."""
    import ray

    return f"{prefix}-{ray.get_runtime_context().get_job_id()}-{name}"


def drivers() -> dict[str, tuple[str, bool]]:
    """Describe the drivers that Ray remembers, by job, and whether each has ended.

    `ray.util.state` needs the dashboard for it.
    """
    from ray._private import state

    found = {}
    for job in state.jobs():
        if _INTERNAL not in job["Entrypoint"]:
            command = redact(job["Entrypoint"])
            shown = f"{command[:_SHOWN]}..." if len(command) > _SHOWN else command
            where = f"process {job['DriverPid']} on {job['DriverIPAddress']}"
            found[job["JobID"]] = f"{where} ({shown})", bool(job["IsDead"])
    return found


def delete_left(prefix: str) -> None:
    """Delete the Serve applications `prefix*` that a killed driver left in the cluster."""
    if names := [name for name in applications() if name.startswith(prefix)]:
        delete_apps(names)


def left_behind() -> dict[str, str]:
    """Describe the driver, which has ended, of each application that is still there."""
    known = drivers()
    jobs = {name: found[1] for name in applications() if (found := _APP.fullmatch(name))}
    owners = {name: known.get(job, (f"job {job}", True)) for name, job in jobs.items()}
    return {name: driver for name, (driver, ended) in owners.items() if ended}


def others() -> list[str]:
    """Describe what else can hold the cluster: other drivers, and what those that ended left."""
    import ray

    own = ray.get_runtime_context().get_job_id()
    running = [driver for job, (driver, ended) in drivers().items() if job != own and not ended]
    return running + [
        f"replicas of {driver}, which has ended; they end within 30 s"
        for driver in sorted(set(left_behind().values()))
    ]


def end_with_driver() -> None:
    """Have this replica's application deleted within 30 s of its driver's end, if one named it."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    found = None
    with suppress(RayServeException):  # Outside of a replica there is none.
        found = _APP.fullmatch(serve.get_replica_context().app_name)
    if found is not None:
        threading.Thread(target=_watch, args=(found[0], found[1]), daemon=True).start()


def _watch(app: str, job: str) -> None:
    while True:
        # The head may be away for a moment, which says nothing about the driver.
        with suppress(Exception):
            if drivers().get(job, ("", True))[1]:
                delete_apps([app], blocking=False)
        time.sleep(_LOOK_EVERY_S)
