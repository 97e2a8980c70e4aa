"""Connect to Ray, silence what a user cannot act on, and unwrap its exceptions."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from raybias.errors import PlanError, RaybiasError, WorkFailed
from raybias.planning.inventory import size
from raybias.runtime.ending import keeping_handlers, kill_started, undoing
from raybias.runtime.ray_internals import forget_serve, grpc_channel, on_loopback, session_folder
from raybias.storage import is_storage_error, storage_error
from raybias.terminal import debugging

#: What `address` says for work that is done without Ray.
NO_RAY: Final = "none"
#: Seconds for the head of a cluster to take a connection.
_ANSWERS_S: Final = 5.0
#: Free bytes for the session of a Ray of this machine.
_SESSION_NEEDED: Final = 100 * 2**20


@contextmanager
def connected(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray while the context is open; gives whether Ray was started, and ends, with it.

    A connection that exists is used and kept. `address` is of a cluster; None takes RAY_ADDRESS, or
    else starts Ray on this machine.

    Raises PlanError: no cluster answers at `address`, or the process is connected to another one.
    """
    # Ray 2.60 else shows all GPUs to workers that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    import ray

    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", here) and "://" not in str(address):
            raise PlanError(
                f"no Ray cluster answers while this process is connected to the one at {here}",
                where=str(address),
                cure="leave the address out, or call ray.shutdown() first",
            )
        _quiet()
        yield False
        return
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    own = place == "local"
    if own:
        # Whatever listens on loopback, Serve opens a port of each replica to every network.
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
            raise PlanError(
                "without its token anyone on the network could run code in the Ray of this machine",
                where="RAY_AUTH_MODE=disabled",
                cure="unset it",
            )
        check_session_folder()
        if not os.access(Path("~").expanduser(), os.R_OK | os.W_OK | os.X_OK):
            # Ray 2.60 else writes a token for its own processes to ~/.ray.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        check_answering(place)
        with keeping_handlers(), on_loopback() if own else nullcontext():
            ray.init(address=place, log_to_driver=debugging(), logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PlanError(
            f"no Ray cluster answers ({first_line(error)})",
            where=place,
            cure="check `ray status` there; a cluster with tokens needs RAY_AUTH_MODE=token",
        ) from error
    except Exception as error:
        # Ray has no narrower one for processes of its own that do not come up.
        raise PlanError(
            f"Ray does not start ({first_line(error)})",
            where="this machine",
            cure="see that memory is left; a slow machine needs RAY_raylet_start_wait_time_s=120",
        ) from error
    try:
        with undoing(kill_started) if own else nullcontext():
            _quiet()
            yield own
    finally:
        forget_serve()
        ray.shutdown()


def names_no_cluster(address: str | None) -> bool:
    """Tell whether `connected` would start Ray on this machine because nothing says otherwise."""
    ray = sys.modules.get("ray")
    connected_already = ray is not None and ray.is_initialized()
    return not (address or os.environ.get("RAY_ADDRESS") or connected_already)


def check_answering(place: str) -> None:
    """Raise ConnectionError where `HOST:PORT` does not answer; Ray would try for minutes."""
    host, _, port = place.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from error
    import grpc

    channel = grpc_channel(f"{host}:{port}")
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWERS_S)
    except grpc.FutureTimeoutError as error:
        raise ConnectionError(f"no reply within {_ANSWERS_S:g} s") from error
    finally:
        channel.close()


def check_session_folder() -> None:
    """Refuse a folder for Ray's sockets and logs that is full, or cannot be written."""
    folder = session_folder()
    cure = "make room there, or set RAY_TMPDIR to another folder"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        problem = f"Ray cannot write its sockets and logs ({error.strerror})"
        raise PlanError(problem, where=folder, cure=cure) from error
    if free < _SESSION_NEEDED:
        raise PlanError(
            f"{size(free)} are free for Ray's sockets and logs, {size(_SESSION_NEEDED)} are needed",
            where=folder,
            cure=cure,
        )


@contextmanager
def translating_errors(work: str) -> Iterator[None]:
    """Turn any exception into one `RaybiasError`; `work` names what failed."""
    try:
        yield
    except Exception as error:
        raise root_error(error, work) from error


def root_error(error: BaseException, work: str) -> RaybiasError:
    """Return the raybias error at the root of `error`, or a `WorkFailed` that names the root."""
    import ray
    from ray.exceptions import RayTaskError

    chain = list(_causes(error))
    for each in chain:
        # Ray's wrapper inherits from the error it wraps, but not what it holds.
        if isinstance(each, RaybiasError) and not isinstance(each, RayTaskError):
            return each
    for each in chain:
        if isinstance(each, OSError) and is_storage_error(each):
            return storage_error(each, work)
    # The innermost with a message: Ray Data marks errors of its own by an empty cause.
    root = next((each for each in reversed(chain) if str(each)), chain[-1])
    session = ray.get_runtime_context().get_session_name() if ray.is_initialized() else None
    logs = f"/tmp/ray/{session or 'session_latest'}/logs on the head node"
    return WorkFailed(
        f"{type(root).__name__}: {first_line(root)}",
        where=work,
        cure=f"Ray's logs are in {logs}, and RAYBIAS_DEBUG=1 shows the traceback",
    )


def first_line(error: BaseException) -> str:
    """Return an error's message without the traceback that Ray puts around it."""
    from ray.exceptions import RayTaskError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return "no message"
    return lines[-1] if isinstance(error, RayTaskError) else lines[0]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it wraps, outermost first."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = [getattr(each, "cause", None), getattr(each, "controller_failure", None)]
        inner += list(getattr(each, "worker_failures", {}).values())
        inner.append(each.__cause__)
        waiting += [part for part in inner if isinstance(part, BaseException)]


def _quiet() -> None:
    """Silence what Ray's libraries print on the driver; their log files keep it."""
    import ray.data
    import ray.serve

    if debugging():
        return
    ray.data.DataContext.get_current().enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            # Its errors arrive as exceptions, and are printed once.
            handler.setLevel(logging.CRITICAL + 1)
    for name in ("ray.serve", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Serve logs a handle's call to a replica that was lost meanwhile.
    logging.getLogger("asyncio").addFilter(
        lambda record: "RunningReplica.get_queue_len" not in record.getMessage()
    )
