"""`raybias serve`: the runs of a finished study behind Ray Serve's HTTP proxy.

An application of one ingress, which is `web` on Serve, and for each backbone and method the
replicas of `serve`, whose queue is bounded. `app` builds it, also for `serve run` and KubeRay:

    applications:
      - name: raybias
        import_path: raybias.runtime.serve.app:app
        args: {out: s3://bucket/study, token_file: /etc/raybias/token}
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, BackpressureConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from raybias.config import Backbone, Method, Study
from raybias.errors import ConfigError, OutputError, PlanError, WorkFailed
from raybias.planning.resolve import check_models
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import REQUESTS_PER_REPLICA, deploy, model_id, scorer_of
from raybias.runtime.ray_session import root_error
from raybias.runtime.serve.http import ASGI, RETRY_AFTER_S, Limits, Overloaded, token_digest, web
from raybias.schema import LABELS
from raybias.storage import Store
from raybias.study_record import read_record

NAME: Final = "raybias-serve"
TOKEN_VARIABLE: Final = "RAYBIAS_SERVE_TOKEN"
_FEWEST_CHARACTERS: Final = 16
#: Requests that the ingress looks at; Serve's proxy turns away what comes on top.
_UNDER_WAY: Final = 256


class Serving(BaseModel):
    """The arguments of the application."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str
    """Folder or URI of a finished study, which every node can read."""
    models: tuple[str, ...] = ()
    """Backbones by name; all by default. Each holds a replica of its own."""
    replicas: int = Field(1, ge=1)
    """Replicas that each model may scale to."""
    gpus: int = Field(0, ge=0, le=1)
    """GPUs of one replica."""
    limits: Limits = Limits()
    """How much one request, and all that wait, may be."""
    token_file: str | None = None
    """File with the bearer token; by default it is in RAYBIAS_SERVE_TOKEN."""
    anyone: bool = False
    """Whether to answer without a token, for a proxy that listens on loopback alone."""


@dataclass(frozen=True)
class Served:
    """A run that can be asked."""

    run: str
    deployment: str
    facts: dict[str, Any]


def app(args: Serving) -> serve.Application:
    """The Serve application of a study's OUT.

    Raises
    ------
    OutputError: OUT holds no study, none of its runs labels texts, or a local model is not the
        one that it was made with.
    ConfigError: no token, or a model that the study does not have.
    """
    digest = None if args.anyone else token_digest(read_token(args.token_file))
    store = Store(args.out)
    record = read_record(store)
    study, deployments, runs = record.study, {}, []
    held = _held(store, study, args.models)
    check_models(store, record, list(dict.fromkeys(backbone.name for backbone, *_ in held)))
    for backbone, method, kept in held:
        name = f"{backbone.name}-{method.name}"
        deployments[name] = _scorer(args, study, backbone, method, name)
        runs += [Served(row["run_id"], name, _facts(row)) for row in kept]
    if not runs:
        raise OutputError(
            "holds no run that labels texts", where=store.uri, cure="run its study to the end first"
        )
    meter = Meter(study=study.name, stage="serve", model="")
    ingress = serve.deployment(
        name="Ingress",
        ray_actor_options={"num_cpus": 0},
        # The models' queues turn away what is too much; this bounds the bodies that are held.
        max_ongoing_requests=max(_UNDER_WAY, 2 * args.limits.max_queued),
        # Requests that come at once wait for a moment before they are under way.
        max_queued_requests=max(_UNDER_WAY, 2 * args.limits.max_queued),
        backpressure_config=BackpressureConfig(retry_after_s=RETRY_AFTER_S),
    )(serve.ingress()(Ingress))
    return ingress.bind(runs, deployments, args.limits, digest, meter)


class Ingress:
    """Takes requests from Serve's proxy to the replicas of their run.

    Parameters
    ----------
    runs: what can be asked.
    deployments: handles by name.
    limits, digest: as for `web.web`.
    meter: says how many requests are under way.
    """

    def __init__(
        self,
        runs: Sequence[Served],
        deployments: dict[str, Any],
        limits: Limits,
        digest: bytes | None,
        meter: Meter,
    ) -> None:
        self.served = {each.run: each for each in runs}
        self.deployments, self.limits, self.digest = deployments, limits, digest
        self.meter, self.under_way = meter, 0

    def __serve_build_asgi_app__(self) -> ASGI:
        """What Serve's replica calls for each request."""
        return web(self, self.limits, self.digest)

    def runs(self) -> list[dict[str, Any]]:
        """The runs with what is known of them."""
        return [{"run": each.run, **each.facts} for each in self.served.values()]

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        """As `web.Labeller.label`."""
        handle = self.deployments[self.served[run].deployment]
        self._count(1)
        method = self.served[run].facts["method"]
        handle = handle.options(multiplexed_model_id=model_id(method, run))
        response = handle.label.remote(method, run, list(texts))
        try:
            answer = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except (BackPressureError, DeploymentUnavailableError, RayActorError) as error:
            raise Overloaded from error
        except Exception as error:
            raise root_error(error, f"run {run}") from error
        finally:
            self._count(-1)
        return _results(answer)

    def _count(self, more: int) -> None:
        self.under_way += more
        self.meter.set("raybias_queue_depth", self.under_way)


def _results(answer: Any) -> list[dict[str, Any]]:
    logits_NL = np.asarray(answer["logits"], np.float64)
    if not np.isfinite(logits_NL).all():
        raise WorkFailed("logits that are not finite", cure="serve a study in bfloat16 or float32")
    odds_NL = np.exp(logits_NL - logits_NL.max(axis=1, keepdims=True))
    shares_NL = odds_NL / odds_NL.sum(axis=1, keepdims=True)
    return [
        {
            "label": None if label is None else LABELS[label],
            "probabilities": dict(zip(LABELS, shares.tolist(), strict=True)),
            "answer": said,
        }
        for label, shares, said in zip(answer["labels"], shares_NL, answer["texts"], strict=True)
    ]


def _classifiers(study: Study, models: Sequence[str]) -> list[tuple[Backbone, Method]]:
    known = [backbone.name for backbone in study.backbones]
    if unknown := [name for name in models if name not in known]:
        raise ConfigError(f"no model {unknown[0]!r}; the study has {', '.join(known)}")
    return [
        (backbone, method)
        for backbone in study.backbones
        if not models or backbone.name in models
        for method in study.methods_of(backbone)
        if not method.reads_pairs
    ]


def _held(
    store: Store, study: Study, models: Sequence[str]
) -> list[tuple[Backbone, Method, list[dict[str, Any]]]]:
    """Each backbone and method that has kept runs, with their rows."""
    there = store.exists("runs.parquet")
    rows = store.read_table("runs.parquet").to_pylist() if there else []
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["selected"]:
            kept.setdefault((row["model"], row["method"]), []).append(row)
    return [
        (backbone, method, kept[backbone.name, method.name])
        for backbone, method in _classifiers(study, models)
        if (backbone.name, method.name) in kept
    ]


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("model", "method", "dataset", "seed")}


def _scorer(
    args: Serving, study: Study, backbone: Backbone, method: Method, name: str
) -> serve.Application:
    resources = study.resources
    deployment = serve.deployment(
        name=name,
        ray_actor_options={"num_cpus": resources.cpus_per_worker, "num_gpus": args.gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            max_replicas=args.replicas,
            target_ongoing_requests=REQUESTS_PER_REPLICA,
        ),
        max_ongoing_requests=REQUESTS_PER_REPLICA,
        max_queued_requests=args.limits.max_queued,
        max_constructor_retry_count=2,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=args.limits.timeout_s,
    )
    return deployment(scorer_of([method])).bind(
        spec=backbone,
        methods=(method,),
        words=study.verbalizer.words(),
        out=Store(args.out).uri,
        threads=resources.cpus_per_worker,
        gpu=args.gpus > 0,
        tokens_per_batch=resources.tokens_per_batch,
        meter=Meter(study=study.name, stage="serve", model=backbone.name),
    )


def read_token(file: str | None) -> str:
    """The bearer token, from a file or the environment.

    Raises
    ------
    ConfigError: there is none, or it can be guessed.
    """
    try:
        text = Path(file).read_text("utf-8") if file else os.environ.get(TOKEN_VARIABLE, "")
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
def served(args: Serving, *, host: str, port: int) -> Iterator[None]:
    """Hold the application and Serve's HTTP proxy in the Ray that is connected.

    Raises
    ------
    PlanError: Serve runs there already, with its proxy elsewhere.
    WorkFailed: the replicas do not start.
    """
    application = app(args)
    _check_room(args)
    own = not _serve_runs()
    if not own and _http_place() != (host, port):
        raise PlanError(
            f"Ray Serve runs in this cluster already, and its HTTP is {_http_place()}",
            where=f"{host}:{port}",
            cure="give the --host and --port that it has, or end it with `serve shutdown`",
        )
    try:
        if own:
            serve.start(
                proxy_location="HeadOnly",
                http_options={
                    "host": host,
                    "port": port,
                    # Behind the limit that answers 504, so that nothing waits for ever.
                    "request_timeout_s": 2 * args.limits.timeout_s + 10,
                },
                logging_config={"log_level": "WARNING"},
            )
        deploy(application, NAME, route_prefix="/")
        yield
    finally:
        if own:
            serve.shutdown()
        else:
            serve.delete(NAME)


def _check_room(args: Serving) -> None:
    """Serve would wait for ever for what the cluster does not have."""
    import ray

    store = Store(args.out)
    study = read_record(store).study
    held = _held(store, study, args.models)
    has = ray.cluster_resources()
    for kind, each in (("CPU", study.resources.cpus_per_worker), ("GPU", args.gpus)):
        if each * len(held) > has.get(kind, 0):
            raise PlanError(
                f"{len(held)} models need {each * len(held)} {kind}s, the cluster has"
                f" {has.get(kind, 0):g}",
                where=store.uri,
                cure="choose some with --model",
            )


def _serve_runs() -> bool:
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return False
    return True


def _http_place() -> tuple[str, int] | None:
    """Where the proxy of the Serve that runs listens; None where it has none."""
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    # Kept as the enumeration or its value, by Ray's version.
    disabled = str(getattr(options.location, "value", options.location)) in ("NoServer", "Disabled")
    return None if options.location is None or disabled else (options.host, options.port)
