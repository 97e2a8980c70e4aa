"""Serve a finished study from this process until it is told to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray import serve as ray_serve
from ray.serve.context import _get_global_client

from raybias.errors import ConfigError, PlanError
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.predict.replica import deploy
from raybias.runtime.ray_session import connected
from raybias.runtime.serve.app import TOKEN_VARIABLE, Serving, app, held_runs, read_token
from raybias.runtime.serve.http import Limits
from raybias.runtime.serve.security_audit import is_loopback
from raybias.storage import Store
from raybias.study_record import read_record

NAME: Final = "raybias-serve"


@contextmanager
def serve(
    out: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: str | None = None,
    models: Sequence[str] = (),
    replicas: int = 1,
    limits: Limits | None = None,
    address: str | None = None,
) -> Iterator[str]:
    """Serve the runs of a finished study while the context is open; gives the URL.

    Parameters
    ----------
    out: folder or URI of the study.
    host: to listen on; others than loopback need a token.
    token_file: with the bearer token, which RAYBIAS_SERVE_TOKEN holds by default.
    models: only these backbones.
    replicas: that each model may scale to.
    limits: of requests.
    address: of a Ray cluster; None takes RAY_ADDRESS, or starts Ray on this machine.

    Raises
    ------
    ConfigError: no token where one is needed, or a place that is taken.
    OutputError: OUT holds no study, or no run that labels texts.
    PlanError: the cluster lacks CPUs or GPUs, or Serve runs there already, elsewhere.
    WorkFailed: the replicas do not start.
    """
    anyone = token_file is None and TOKEN_VARIABLE not in os.environ
    if anyone and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is open to others, and there is no token",
            cure=f"give --token-file or {TOKEN_VARIABLE}",
        )
    if not anyone:
        read_token(token_file)
    if address is None and "RAY_ADDRESS" not in os.environ:
        _check_free(host, port)
    with connected(address):
        serving = Serving(
            out=out,
            models=tuple(models),
            replicas=replicas,
            gpus=int(read_inventory().gpus > 0),
            limits=limits or Limits(),
            token_file=token_file,
            anyone=anyone,
        )
        with served(serving, host=host, port=port):
            yield f"http://{host}:{port}"


def _check_free(host: str, port: int) -> None:
    """Refuse a place that is taken; Serve's proxy would try again and again."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen ({error.strerror or error})",
            where=f"{host}:{port}",
            cure="give another --port or --host",
        ) from error


@contextmanager
def served(args: Serving, *, host: str, port: int) -> Iterator[None]:
    """Run the application and Serve's HTTP proxy in the Ray that is connected.

    Raises
    ------
    PlanError: Serve runs there already, with its proxy elsewhere.
    WorkFailed: the replicas do not start.
    """
    application = app(args)
    _check_room(args)
    running = _get_global_client(raise_if_no_controller_running=False)
    own = running is None
    if not own and (place := _http_place(running)) != (host, port):
        raise PlanError(
            f"Ray Serve runs in this cluster already, and its HTTP is {place}",
            where=f"{host}:{port}",
            cure="give the --host and --port that it has, or end it with `serve shutdown`",
        )

    def end() -> None:
        if own:
            ray_serve.shutdown()
        else:
            ray_serve.delete(NAME)

    try:
        if own:
            ray_serve.start(
                proxy_location="HeadOnly",
                http_options={
                    "host": host,
                    "port": port,
                    # Behind the limit that answers 504, so that nothing waits for ever.
                    "request_timeout_s": 2 * args.limits.timeout_s + 10,
                },
                logging_config={"log_level": "WARNING"},
            )
        with undoing(end):
            deploy(application, NAME, route_prefix="/")
            yield
    finally:
        end()


def _check_room(args: Serving) -> None:
    """Refuse what the cluster does not have; Serve would wait for it for ever."""
    store = Store(args.out)
    study = read_record(store).study
    held = held_runs(store, study, args.models)
    has = ray.cluster_resources()
    for kind, each in (("CPU", study.resources.cpus_per_worker), ("GPU", args.gpus)):
        if each * len(held) > has.get(kind, 0):
            raise PlanError(
                f"{len(held)} models need {each * len(held)} {kind}s, the cluster has"
                f" {has.get(kind, 0):g}",
                where=store.uri,
                cure="choose some with --model",
            )


def _http_place(client: Any) -> tuple[str, int] | None:
    """Find where the proxy of the running Serve listens; None where it has none."""
    options = client.http_config
    # Kept as the enumeration or its value, by Ray's version.
    disabled = str(getattr(options.location, "value", options.location)) in ("NoServer", "Disabled")
    return None if options.location is None or disabled else (options.host, options.port)
