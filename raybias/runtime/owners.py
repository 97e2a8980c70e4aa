"""Know the driver of each Serve application, so that its replicas end with it.

Serve's controller outlives every driver, and its applications with it. Their names hold the job of
the driver that made them, and each replica looks whether that job still runs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from raybias.redaction import redact
from raybias.runtime.ray_internals import delete_apps, jobs, serve_client

#: Seconds between two looks of a replica; Serve takes some ten more to end it.
_LOOK_EVERY_S: Final = 10.0
_APP: Final = re.compile(r"raybias-(?:serve-[0-9a-f]{8}|[0-9a-f]{16})-([0-9a-f]{8})-.+")
#: Of drivers that are Ray's own.
_INTERNAL: Final = "/ray/dashboard/"
_SHOWN: Final = 120


@dataclass(frozen=True)
class Driver:
    """A process that connected to the cluster, by Ray's table of jobs."""

    pid: int
    host: str
    command: str
    ended: bool

    def __str__(self) -> str:
        command = redact(self.command)
        shown = f"{command[:_SHOWN]}..." if len(command) > _SHOWN else command
        return f"process {self.pid} on {self.host} ({shown})"


def app_name(prefix: str, name: str) -> str:
    """Name an application of this driver; `prefix` is its OUT's, or its service's."""
    return f"{prefix}-{ray.get_runtime_context().get_job_id()}-{name}"


def drivers() -> dict[str, Driver]:
    """List the drivers that Ray remembers, by job."""
    return {
        job["JobID"]: Driver(
            job["DriverPid"], job["DriverIPAddress"], job["Entrypoint"], job["IsDead"]
        )
        for job in jobs()
        if _INTERNAL not in job["Entrypoint"]
    }


def applications() -> list[str]:
    """List the cluster's Serve applications by name; none where Serve does not run."""
    client = serve_client()
    return [] if client is None else [status.name for status in client.list_serve_statuses()]


def delete_left(prefix: str) -> None:
    """Delete the Serve applications `prefix*` that a killed driver left in the cluster."""
    if names := [name for name in applications() if name.startswith(prefix)]:
        delete_apps(names)


def left_behind() -> dict[str, str]:
    """Describe the driver, which has ended, of each application that is still there."""
    known = drivers()
    jobs = {name: found[1] for name in applications() if (found := _APP.fullmatch(name))}
    return {
        name: str(known.get(job, f"job {job}"))
        for name, job in jobs.items()
        if _has_ended(job, known)
    }


def others() -> list[str]:
    """Describe what else can hold the cluster: other drivers, and what those that ended left."""
    own = ray.get_runtime_context().get_job_id()
    running = [str(each) for job, each in drivers().items() if job != own and not each.ended]
    ended = sorted(set(left_behind().values()))
    return running + [
        f"replicas of {each}, which has ended; they end within 30 s" for each in ended
    ]


def end_with_driver() -> None:
    """Have this replica's application deleted within 30 s of its driver's end.

    One that no driver named, as of `serve run`, is left alone.
    """
    found = None
    with suppress(RayServeException):  # Outside of a replica there is none.
        found = _APP.fullmatch(serve.get_replica_context().app_name)
    if found is not None:
        watch = threading.Thread(target=_watch, args=(found[0], found[1]), daemon=True)
        watch.start()


def _watch(app: str, job: str) -> None:
    while True:
        # The head may be away for a moment, which says nothing about the driver.
        with suppress(Exception):
            if _has_ended(job, drivers()):
                delete_apps([app], blocking=False)
        time.sleep(_LOOK_EVERY_S)


def _has_ended(job: str, known: Mapping[str, Driver]) -> bool:
    return job not in known or known[job].ended
