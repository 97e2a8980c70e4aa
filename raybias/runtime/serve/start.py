"""Serve a finished study from this process until it is told to stop."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Final

import ray
import uvicorn
from fastapi import FastAPI

from raybias.errors import ConfigError, PlanError
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.owners import app_name, delete_left
from raybias.runtime.predict.replica import deployed, wait_for_replica
from raybias.runtime.ray_internals import asks_for_token
from raybias.runtime.ray_session import connected, is_loopback
from raybias.runtime.serve.app import (
    TOKEN_VARIABLE,
    Ingress,
    Offer,
    Serving,
    offered,
    read_token,
)
from raybias.runtime.serve.http import Limits
from raybias.storage import Store

NAME: Final = "raybias-serve"
#: Bytes of a request's headers.
_HEADERS_MOST: Final = 16 * 2**10
#: Seconds that requests under way have when the server ends.
_DRAINS_S: Final = 2


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
    replicas: of each model; of two, one answers while the other is lost.
    limits: of requests.
    address: of a Ray cluster; None takes RAY_ADDRESS, or starts Ray on this machine.

    Raises
    ------
    ConfigError: no token where one is needed, or a place that is taken.
    OutputError: OUT holds no study, or no run that labels texts.
    PlanError: the cluster lacks CPUs or GPUs, or asks for no token.
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
    # Loading torch takes as long as a Ray of this machine does to start.
    threading.Thread(target=import_module, args=("raybias.engine.context",), daemon=True).start()
    with _bound(host, port) as place, connected(address) as own:
        if not asks_for_token():
            raise PlanError(
                "Ray asks for no token, and a replica's port, which Serve opens to every network,"
                " runs what anyone sends",
                where="RAY_AUTH_MODE",
                cure="unset it, or set it to token on every node",
            )
        serving = Serving(
            out=out,
            models=tuple(models),
            replicas=replicas,
            gpus=int(read_inventory().gpus > 0),
            limits=limits or Limits(),
            token_file=token_file,
            anyone=anyone,
        )
        with _ingress(serving, ends_with_ray=own) as ingress:
            application = ingress.__serve_build_asgi_app__()
            with _answering(application, place, most=serving.limits.under_way):
                yield f"http://{host}:{port}"


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve a place to listen on; nobody is answered there yet."""
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            taken = stack.enter_context(socket.socket(family, kind, protocol))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(place)
        except OSError as error:
            raise ConfigError(
                f"cannot listen ({error.strerror or error})",
                where=f"{host}:{port}",
                cure="give another --port or --host",
            ) from error
        yield taken


@contextmanager
def _answering(application: FastAPI, place: socket.socket, *, most: int) -> Iterator[None]:
    """Answer HTTP requests in a thread; beyond `most` connections uvicorn says 503."""
    config = uvicorn.Config(
        application,
        http="h11",
        limit_concurrency=most,
        h11_max_incomplete_event_size=_HEADERS_MOST,
        timeout_graceful_shutdown=_DRAINS_S,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()

    try:
        with undoing(stop):
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            yield
    finally:
        stop()


@contextmanager
def _ingress(args: Serving, *, ends_with_ray: bool) -> Iterator[Ingress]:
    """Run the replicas in the Ray that is connected, and an ingress in this process."""
    offer, scorers = offered(args)
    _check_room(offer, len(scorers))
    prefix = f"{NAME}-{uuid.uuid4().hex[:8]}"
    ended = threading.Event()

    def end() -> None:
        ended.set()
        if not ends_with_ray:
            delete_left(prefix)

    applications = {key: app_name(prefix, key) for key in scorers}
    with undoing(end), ExitStack() as stack:
        stack.callback(ended.set)
        handles = {
            key: stack.enter_context(deployed(scorers[key], name))
            for key, name in applications.items()
        }
        for handle in handles.values():
            wait_for_replica(handle, ended, every=True)
        ingress = Ingress(offer, handles)
        ingress.watch(applications, ended)
        yield ingress


def _check_room(offer: Offer, models: int) -> None:
    """Refuse what the cluster does not have; Serve would wait for it for ever."""
    has, args, count = ray.cluster_resources(), offer.args, models * offer.args.replicas
    for kind, each in (("CPU", offer.study.resources.cpus_per_worker), ("GPU", args.gpus)):
        if each * count > has.get(kind, 0):
            raise PlanError(
                f"{models} models with {args.replicas} replicas need {each * count}"
                f" {kind}s, the cluster has {has.get(kind, 0):g}",
                where=Store(args.out).uri,
                cure="choose some with --model, or give fewer --replicas",
            )
