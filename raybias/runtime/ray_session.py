"""Connect to Ray, silence what a user cannot act on, and unwrap its exceptions."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import Final

from raybias.errors import PlanError, RaybiasError, WorkFailed
from raybias.runtime.ending import keeping_handlers, kill_started, undoing
from raybias.storage import is_storage_error, storage_error

#: Seconds for the head of a cluster to take a connection.
_ANSWERS_S: Final = 5.0


@contextmanager
def connected(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray while the context is open; a connection that exists is used and kept.

    Gives whether Ray was started for it, on this machine, and ends with it.

    A process can be connected to one cluster only, so another `address` than that of the
    connection is refused rather than passed over.

    Parameters
    ----------
    address: of a cluster; None takes RAY_ADDRESS, which `ray job submit` sets, or
        else starts Ray on this machine.

    Raises
    ------
    PlanError: no cluster answers at `address`, or the process is connected to another one.
    """
    # Ray 2.60 warns about this default at every start.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    _send_arguments_by_value()
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
    try:
        check_listening(place)
        with keeping_handlers():
            ray.init(address=place, log_to_driver=debugging(), logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PlanError(
            f"no Ray cluster answers ({first_line(error)})",
            where=place,
            cure="check `ray status` there; a cluster with tokens needs RAY_AUTH_MODE=token",
        ) from error
    own = place == "local"
    try:
        with undoing(kill_started) if own else nullcontext():
            _quiet()
            yield own
    finally:
        ray.shutdown()


def check_listening(place: str) -> None:
    """Refuse a `HOST:PORT` that takes no connection, which Ray itself would try for minutes.

    Raises
    ------
    ConnectionError: nothing listens there.
    """
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from error


def debugging() -> bool:
    """Tell whether the user wants tracebacks and Ray's own output."""
    return os.environ.get("RAYBIAS_DEBUG", "0") not in ("", "0")


@contextmanager
def translating_errors(work: str) -> Iterator[None]:
    """Turn any exception into one `RaybiasError`; `work` names what failed."""
    try:
        yield
    except Exception as error:
        raise root_error(error, work) from error


def root_error(error: BaseException, work: str) -> RaybiasError:
    """Return the raybias error at the root of `error`, or a `WorkFailed` that names the root."""
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
    return WorkFailed(
        f"{type(root).__name__}: {first_line(root)}",
        where=work,
        cure=f"Ray's logs are in {_logs()}, and RAYBIAS_DEBUG=1 shows the traceback",
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


def _logs() -> str:
    import ray

    session = ray.get_runtime_context().get_session_name() if ray.is_initialized() else None
    return f"/tmp/ray/{session or 'session_latest'}/logs on the head node"


def _send_arguments_by_value() -> None:
    """Send Ray Data's actors their constructor arguments by value, as far as they are small.

    Ray 2.60 puts them into the object store, where an actor that starts again may not find them
    (ray#53727), and says so on standard error in each stage.
    """
    from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator

    for reference, value in (
        ("_map_transformer_ref", "_map_transformer"),
        ("_data_context_ref", "data_context"),
    ):
        setattr(ActorPoolMapOperator, reference, property(attrgetter(value)))


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
