"""Route requests about a finished study to replicas of Ray Serve.

Each backbone and method has replicas of `predict/replica.py` with a bounded queue; an ingress runs
`http.web` before them. `raybias serve` holds it in its own process (`start.py`); `serve run` and
KubeRay take `app`, a Serve application with the ingress as a deployment:

    applications:
      - name: raybias
        import_path: raybias.runtime.serve.app:app
        args: {out: s3://bucket/study, token_file: /etc/raybias/token}

There, with these variables on every node, as in the image of cluster/, a lost proxy is replaced
within seconds, and a request that was lost with the ingress is answered by 503:

    RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S=1
    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=raybias.runtime.serve.http:proxy_middlewares
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import BackpressureConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from scipy.special import softmax

from raybias.config import Backbone, Study
from raybias.errors import ConfigError, OutputError, WorkFailed
from raybias.methods.base import Method, check_models, methods_of
from raybias.runtime.predict.replica import deployment, model_id
from raybias.runtime.progress import Meter
from raybias.runtime.ray_session import root_error
from raybias.runtime.serve.http import RETRY_AFTER_S, Limits, Overloaded, token_digest, web
from raybias.schema import LABELS
from raybias.storage import Store
from raybias.study_record import read_record, read_runs

TOKEN_VARIABLE: Final = "RAYBIAS_SERVE_TOKEN"
_FEWEST_CHARACTERS: Final = 16
#: Columns of `schema.RUNS` that describe a run.
_FACTS: Final = ("run_id", "model", "method", "dataset", "seed")
#: Seconds between two looks at whether a replica lives.
_HEALTH_CHECK_S: Final = 1.0
#: Seconds between two looks of a request at whether there is one.
_LOOK_S: Final = 0.5


class Serving(BaseModel):
    """The arguments of the application."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: str
    """Folder or URI of a finished study, which every node can read."""
    models: tuple[str, ...] = ()
    """Backbones by name, each with its own replicas; all by default."""
    replicas: int = Field(1, ge=1)
    """Replicas of each model and of the ingress; of two, one answers while the other is lost."""
    gpus: int = Field(0, ge=0, le=1)
    """GPUs of one replica."""
    limits: Limits = Limits()
    """Limits of one request, and of all that wait."""
    token_file: str | None = None
    """File with the bearer token; the variable RAYBIAS_SERVE_TOKEN holds it by default."""
    anyone: bool = False
    """Whether to answer without a token, for a proxy that listens on loopback alone."""


@dataclass(frozen=True)
class Offer:
    """What is served of a study, and to whom; `facts` describe each run, `digest` as for `web`."""

    args: Serving
    study: Study
    facts: Mapping[str, Mapping[str, Any]]
    digest: bytes | None


def offered(args: Serving) -> tuple[Offer, dict[str, serve.Application]]:
    """Read a study's OUT; return what it offers, and a scorer for each `MODEL-METHOD`.

    Raises
    ------
    OutputError: OUT holds no study, no run that labels texts, or a local model has changed.
    ConfigError: a model that the study does not have; no token, or one that can be guessed.
    """
    digest = None if args.anyone else token_digest(read_token(args.token_file))
    store = Store(args.out)
    record = read_record(store)
    study = record.study
    known = [backbone.name for backbone in study.backbones]
    if unknown := [name for name in args.models if name not in known]:
        raise ConfigError(f"no model {unknown[0]!r}; the study has {', '.join(known)}")
    kept = read_runs(store).filter("selected")
    scorers: dict[str, serve.Application] = {}
    facts: dict[str, dict[str, Any]] = {}
    for backbone in study.backbones:
        for method in methods_of(study, backbone):
            rows = kept.filter(model=backbone.name, method=method.name)
            asked = not args.models or backbone.name in args.models
            if asked and method.reads == "probes" and rows.height:
                name = f"{backbone.name}-{method.name}"
                scorers[name] = _scorer(args, study, backbone, method, name)
                facts |= {row.pop("run_id"): row for row in rows.select(*_FACTS).to_dicts()}
    if not facts:
        raise OutputError(
            "holds no run that labels texts", where=store.uri, cure="run its study to the end first"
        )
    check_models(store, record, list(dict.fromkeys(row["model"] for row in facts.values())))
    return Offer(args, study, facts, digest), scorers


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
        return web(self, self.offer.args.limits, self.offer.digest)

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
        """See `http.Labeller.label`."""
        method = self.offer.facts[run]["method"]
        name = f"{self.offer.facts[run]['model']}-{method}"
        handle = self.deployments[name].options(multiplexed_model_id=model_id(method, run))
        lost: RayActorError | None = None
        self._count(1)
        try:
            # Where a replica is lost with its request, another has the same answer.
            for _ in range(min(2, self.running(name))):
                try:
                    return _results(
                        await self._asked(name, handle.label.remote(method, run, list(texts)))
                    )
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


def _results(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    logits_NL = np.asarray([each["scores"] for each in answers], np.float64)
    if not np.isfinite(logits_NL).all():
        raise WorkFailed("logits that are not finite", cure="serve a study in bfloat16 or float32")
    shares_NL = softmax(logits_NL, axis=1)
    return [
        {
            "label": None if each["pred"] is None else LABELS[each["pred"]],
            "probabilities": dict(zip(LABELS, shares.tolist(), strict=True)),
            "answer": each["answer"],
        }
        for each, shares in zip(answers, shares_NL, strict=True)
    ]


def _scorer(
    args: Serving, study: Study, backbone: Backbone, method: Method, name: str
) -> serve.Application:
    # With torch, which the command loads while Ray starts.
    from raybias.engine.backbone import ModelContext
    from raybias.engine.context import Execution

    resources = study.resources
    replicas = deployment(
        name,
        [method],
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": resources.cpus_per_worker, "num_gpus": args.gpus},
        health_check_period_s=_HEALTH_CHECK_S,
        graceful_shutdown_timeout_s=args.limits.timeout_s,
        max_queued_requests=args.limits.max_queued,
    )
    meter = Meter(study=study.name, stage="serve", model=backbone.name)
    device = "cuda" if args.gpus else "cpu"
    execution = Execution(
        resources.tokens_per_batch,
        device,
        resources.cpus_per_worker,
        deterministic=resources.deterministic,
    )
    context = ModelContext(backbone, study.verbalizer.words(), execution)
    return replicas.bind(context, (method,), Store(args.out).uri, meter)


def read_token(file: str | None) -> str:
    """Read the bearer token from a file or the environment; refuse one that can be guessed."""
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
