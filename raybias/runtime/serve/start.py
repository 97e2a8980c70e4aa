"""Serve a finished study from this process until it is told to stop."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import ray
from ray import serve as ray_serve

from raybias.errors import ConfigError, PlanError
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.owners import app_name, delete_left
from raybias.runtime.predict.replica import deploy
from raybias.runtime.ray_internals import asks_for_token
from raybias.runtime.ray_session import connected, is_loopback
from raybias.runtime.serve.app import (
    TOKEN_VARIABLE,
    Content,
    Ingress,
    Serving,
    content,
    digest_of,
    read_token,
)
from raybias.runtime.serve.front import answering, bound
from raybias.runtime.serve.http import Limits, web
from raybias.storage import Store

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
    with bound(host, port) as place, connected(address) as own:
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
            application = web(ingress, ingress.limits, ingress.digest)
            with answering(application, place, most=ingress.limits.under_way):
                yield f"http://{host}:{port}"


@contextmanager
def _ingress(args: Serving, *, ends_with_ray: bool) -> Iterator[Ingress]:
    """Run the replicas in the Ray that is connected, and an ingress in this process.

    Raises
    ------
    PlanError: the cluster lacks CPUs or GPUs.
    WorkFailed: the replicas do not start.
    """
    digest, held = digest_of(args), content(args)
    _check_room(args, held)
    prefix = f"{NAME}-{uuid.uuid4().hex[:8]}"
    ended = threading.Event()

    def end() -> None:
        ended.set()
        if not ends_with_ray:
            delete_left(prefix)

    ray_serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    try:
        with undoing(end), ThreadPoolExecutor() as pool:
            names = [app_name(prefix, name) for name in held.scorers]
            list(pool.map(deploy, held.scorers.values(), names))
            applications = dict(zip(held.scorers, names, strict=True))
            handles = {key: ray_serve.get_app_handle(name) for key, name in applications.items()}
            ingress = Ingress(args, held.runs, handles, digest, held.meter)
            ingress.watch(applications, ended)
            yield ingress
    finally:
        end()


def _check_room(args: Serving, held: Content) -> None:
    """Refuse what the cluster does not have; Serve would wait for it for ever."""
    has = ray.cluster_resources()
    count = len(held.scorers) * args.replicas
    for kind, each in (("CPU", held.study.resources.cpus_per_worker), ("GPU", args.gpus)):
        if each * count > has.get(kind, 0):
            raise PlanError(
                f"{len(held.scorers)} models with {args.replicas} replicas need {each * count}"
                f" {kind}s, the cluster has {has.get(kind, 0):g}",
                where=Store(args.out).uri,
                cure="choose some with --model, or give fewer --replicas",
            )
