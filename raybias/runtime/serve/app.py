"""Route requests about a finished study to replicas of Ray Serve.

Each backbone and method has replicas of `predict/replica.py` with a bounded queue; an ingress runs
`http.web` before them. `raybias serve` holds it in its own process (`serve_out`); `serve run` and
KubeRay take `app`, a Serve application with the ingress as a deployment:

    applications:
      - name: raybias
        import_path: raybias.runtime.serve.app:app
        args: {out: s3://bucket/study, token_file: /etc/raybias/token}

There, with RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S=1 on every node, as in the image of cluster/, a
lost proxy is replaced within seconds. Serve answers 500 to requests lost with the ingress.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
import ray
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import BackpressureConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from scipy.special import softmax

from raybias.config import Backbone, Study
from raybias.errors import ConfigError, OutputError, PlanError, WorkFailed
from raybias.methods.base import Method, check_models, methods_of
from raybias.network import is_loopback
from raybias.opening import read_written
from raybias.planning.inventory import with_autoscaled_nodes
from raybias.planning.plan import serving_plan
from raybias.planning.stage_plans import Stage
from raybias.runtime.ending import undoing
from raybias.runtime.inventory import read_inventory
from raybias.runtime.predict.replica import deployed, deployment, model_id, wait_for_replica
from raybias.runtime.progress import Meter
from raybias.runtime.ray_internals import app_name, asks_for_token, delete_left
from raybias.runtime.ray_session import connected, root_error
from raybias.runtime.serve.http import RETRY_AFTER_S, Limits, Overloaded, token_digest, web
from raybias.schema import ITEMS
from raybias.storage import Store
from raybias.study_record import read_record, read_runs
from raybias.table_rules import read_checked

TOKEN_VARIABLE: Final = "RAYBIAS_SERVE_TOKEN"
_FEWEST_CHARACTERS: Final = 16
#: Columns of `schema.RUNS` that describe a run.
_FACTS: Final = ("run_id", "model", "method", "dataset", "seed")
#: Seconds between two looks at whether a replica lives.
_HEALTH_CHECK_S: Final = 1.0
#: Seconds between two looks of a request at whether there is one.
_LOOK_S: Final = 0.5
#: Bytes of a request's headers.
_HEADERS_MOST: Final = 16 * 2**10
#: Seconds that requests under way have when the server ends.
_DRAINS_S: Final = 2


class Serving(BaseModel):
    """The arguments of the application."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str
    """Folder or URI of a finished study, which every node can read."""
    models: tuple[str, ...] = ()
    """Backbones by name, each with its own replicas; all by default."""
    replicas: int = Field(1, ge=1)
    """Replicas of each model and of the ingress; of two, one answers while the other is lost."""
    gpus: int | None = Field(None, ge=0, le=8)
    """GPUs of one replica, also where an autoscaler must bring them; planned by default."""
    limits: Limits = Limits()
    """Limits of one request, and of all that wait."""
    token_file: str | None = None
    """File with the bearer token; the variable RAYBIAS_SERVE_TOKEN holds it by default."""
    anyone: bool = False
    """Whether to answer without a token, for a proxy that listens on loopback alone."""
    allowed_hosts: tuple[str, ...] = ()
    """What the Host of a request may be without a token, besides loopback names."""


@dataclass(frozen=True)
class Offer:
    """The runs of a study that are served, and their token.

    `facts` describe each run, `digest` as for `web`; `stages` plan the replicas by `MODEL-METHOD`.
    """

    args: Serving
    study: Study
    facts: Mapping[str, Mapping[str, Any]]
    digest: bytes | None
    stages: Mapping[str, Stage]


def offered(args: Serving) -> tuple[Offer, dict[str, serve.Application]]:
    """Read a study's OUT; return what it offers, and a scorer for each `MODEL-METHOD`.

    OutputError: OUT holds no study, no run that labels texts, or a local model has changed.
    ConfigError: a model that the study does not have; no token, or one that can be guessed.
    PlanError: a model that no replica can hold on the connected cluster.
    """
    digest = None if args.anyone else token_digest(read_token(args.token_file))
    store = Store(args.out)
    record = read_record(store)
    study = record.study
    known = [backbone.name for backbone in study.backbones]
    if unknown := [name for name in args.models if name not in known]:
        raise ConfigError(f"no model {unknown[0]!r}; the study has {', '.join(known)}")
    kept = read_runs(store).filter("selected")
    labelling: dict[str, tuple[Backbone, Method]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for backbone in study.backbones:
        for method in methods_of(study, backbone):
            rows = kept.filter(model=backbone.name, method=method.name)
            asked = not args.models or backbone.name in args.models
            if asked and method.reads == "probes" and rows.height:
                labelling[f"{backbone.name}-{method.name}"] = backbone, method
                facts |= {row.pop("run_id"): row for row in rows.select(*_FACTS).to_dicts()}
    if not facts:
        raise OutputError(
            "holds no run that labels texts", where=store.uri, cure="run its study to the end first"
        )
    check_models(store, record, list(dict.fromkeys(row["model"] for row in facts.values())))
    inventory = with_autoscaled_nodes(read_inventory(), study.resources.nodes)
    items = {
        each.name: read_checked(store, file, ITEMS)
        for each in study.probes
        if store.exists(file := f"items/{each.name}.parquet")
    }
    stages = {
        name: serving_plan(study, *each, items, inventory, gpus=args.gpus)
        for name, each in labelling.items()
    }
    offer = Offer(args, study, facts, digest, stages)
    return offer, {name: _scorer(offer, name, *each) for name, each in labelling.items()}


def app(args: Serving) -> serve.Application:
    """Build the Serve application of a study's OUT; raises as `offered` does."""
    offer, scorers = offered(args)
    ingress = serve.deployment(
        name="Ingress",
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=_HEALTH_CHECK_S,
        # The models' queues turn away what is too much; this bounds the bodies that are held.
        max_ongoing_requests=args.limits.under_way,
        # Requests that come at once wait for a moment before they are under way.
        max_queued_requests=args.limits.under_way,
        backpressure_config=BackpressureConfig(retry_after_s=RETRY_AFTER_S),
    )(serve.ingress()(DeployedIngress))
    return ingress.bind(offer, scorers)


class Ingress:
    """Routes requests to the replicas of their run, by deployments named `MODEL-METHOD`."""

    def __init__(self, offer: Offer, deployments: Mapping[str, Any]) -> None:
        self.offer, self.deployments, self.under_way = offer, deployments, 0
        self.meter = Meter(study=offer.study.name, stage="serve", model="")
        self.seen: dict[str, int] = {}

    def __serve_build_asgi_app__(self) -> FastAPI:
        args = self.offer.args
        return web(self, args.limits, self.offer.digest, args.allowed_hosts)

    def runs(self) -> list[dict[str, Any]]:
        """List the runs; see `http.Labeller.runs`."""
        return [{"run": run, **facts} for run, facts in self.offer.facts.items()]

    def running(self, name: str) -> int:
        """Count the replicas of a deployment that run, or were asked for where none was seen."""
        return self.seen.get(name, self.offer.args.replicas)

    def watch(self, applications: Mapping[str, str], ended: threading.Event) -> None:
        """Count live replicas every second until `ended`; no request waits for lost ones."""

        def look() -> None:
            while not ended.wait(_HEALTH_CHECK_S):
                # Serve's controller may be away for a moment.
                with suppress(Exception):
                    found = serve.status().applications
                    for name, application in applications.items():
                        states = found[application].deployments[name].replica_states
                        self.seen[name] = states.get("RUNNING", 0)

        threading.Thread(target=look, daemon=True).start()

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        method = self.offer.facts[run]["method"]
        name = f"{self.offer.facts[run]['model']}-{method}"
        handle = self.deployments[name].options(multiplexed_model_id=model_id(method, run))
        lost: RayActorError | None = None
        self._count(1)
        try:
            # Where a replica is lost with its request, another has the same answer.
            for _ in range(min(2, self.running(name))):
                try:
                    response = handle.label.remote(method, run, list(texts))
                    answers = await self._asked(name, response)
                    return _results(answers, self.offer.study.labels)
                except RayActorError as error:
                    lost = error
        finally:
            self._count(-1)
        raise Overloaded from lost

    async def _asked(self, name: str, response: Any) -> Any:
        """Wait for an answer as long as a replica lives; `RayActorError` where it is lost."""

        async def answered() -> Any:
            return await response

        answer = asyncio.ensure_future(answered())
        try:
            while not (await asyncio.wait({answer}, timeout=_LOOK_S))[0]:
                if not self.running(name):
                    raise Overloaded
            return answer.result()
        except (RayActorError, Overloaded):
            raise
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise Overloaded from error
        except Exception as error:
            raise root_error(error, name) from error
        finally:
            if not answer.done():
                answer.cancel()
                response.cancel()

    def _count(self, more: int) -> None:
        self.under_way += more
        self.meter.set("raybias_queue_depth", self.under_way)


class DeployedIngress(Ingress):
    """An ingress that is a deployment of the application beside its models."""

    def __init__(self, offer: Offer, deployments: Mapping[str, Any]) -> None:
        super().__init__(offer, deployments)
        application = serve.get_replica_context().app_name
        self.watch(dict.fromkeys(self.deployments, application), threading.Event())


def _results(answers: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[dict[str, Any]]:
    logits_NL = np.asarray([each["scores"] for each in answers], np.float64)
    if not np.isfinite(logits_NL).all():
        raise WorkFailed("logits that are not finite", cure="serve a study in bfloat16 or float32")
    shares_NL = softmax(logits_NL, axis=1)
    return [
        {
            "label": None if each["pred"] is None else labels[each["pred"]],
            "probabilities": dict(zip(labels, shares.tolist(), strict=True)),
            "answer": each["answer"],
        }
        for each, shares in zip(answers, shares_NL, strict=True)
    ]


def _scorer(offer: Offer, name: str, backbone: Backbone, method: Method) -> serve.Application:
    args, study, stage = offer.args, offer.study, offer.stages[name]
    replicas = deployment(
        name,
        [method],
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": stage.need.cpus, "num_gpus": stage.gpus, **stage.requests},
        health_check_period_s=_HEALTH_CHECK_S,
        graceful_shutdown_timeout_s=args.limits.timeout_s,
        max_queued_requests=args.limits.max_queued,
    )
    meter = Meter(study=study.name, stage="serve", model=backbone.name)
    context = stage.context(backbone, study)
    return replicas.bind(context, (method,), Store(args.out), meter)


def read_token(file: str | None) -> str:
    """Read the bearer token from a file or the environment; refuse one that can be guessed."""
    try:
        text = read_written(file) if file else os.environ.get(TOKEN_VARIABLE, "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token ({error})", where=str(file)) from error
    token = text.strip()
    if len(token) < _FEWEST_CHARACTERS:
        raise ConfigError(
            f"a token of {len(token)} characters; {_FEWEST_CHARACTERS} are the fewest"
            if token
            else "no bearer token",
            where=file or TOKEN_VARIABLE,
            cure="make one with `openssl rand -hex 32`",
        )
    return token


@contextmanager
def serve_out(
    out: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: str | None = None,
    address: str | None = None,
    **options: Any,
) -> Iterator[str]:
    """Serve the runs of a finished study while the context is open; gives the URL.

    host: to listen on; others than loopback need a token.
    address: of a Ray cluster; None takes RAY_ADDRESS, or starts Ray on this machine.
    token_file, options: `models`, `replicas`, `limits` and `allowed_hosts`, as in `Serving`.

    ConfigError, OutputError: as `offered`; or no token where one is needed, or a place that is
        taken.
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
        args = Serving(out=out, token_file=token_file, anyone=anyone, **options)
        with _ingress(args, ends_with_ray=own) as ingress, _answering(ingress, place):
            yield f"http://{host}:{port}"


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve a place to listen on; nobody is answered there yet."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen ({error.strerror or error})",
                where=f"{host}:{port}",
                cure="give another --port or --host",
            ) from error
        yield taken


@contextmanager
def _answering(ingress: Ingress, place: socket.socket) -> Iterator[None]:
    """Answer HTTP requests in a thread; beyond the limit of connections uvicorn says 503."""
    config = uvicorn.Config(
        ingress.__serve_build_asgi_app__(),
        http="h11",
        limit_concurrency=ingress.offer.args.limits.under_way,
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
    has, needs = ray.cluster_resources(), [each.need for each in offer.stages.values()]
    for kind, each in (("CPU", sum(n.cpus for n in needs)), ("GPU", sum(n.gpus for n in needs))):
        # Serve would wait for it for ever.
        if each * args.replicas > has.get(kind, 0):
            raise PlanError(
                f"{len(scorers)} models with {args.replicas} replicas need {each * args.replicas}"
                f" {kind}s, the cluster has {has.get(kind, 0):g}",
                where=Store(args.out).uri,
                cure="choose some with --model, or give fewer --replicas",
            )
    prefix = f"raybias-serve-{uuid.uuid4().hex[:8]}"
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
