"""Serve one model in Ray Serve replicas that its methods and their runs share.

A request is one shard: rows of a probe, and the run that predicts them. The replica commits the
result itself, so that it is not lost with a caller or driver that dies meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ApplicationStatus

from raybias.errors import WorkFailed
from raybias.methods.base import shard_of, text_items
from raybias.planning.stage_plans import RewritePlan, ScorePlan
from raybias.runtime.graph import Grant
from raybias.runtime.metrics import Meter
from raybias.runtime.owners import end_with_driver
from raybias.runtime.ray_internals import scale, serve_client
from raybias.runtime.workers import Served, keep_ways
from raybias.seeding import key
from raybias.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.serve.handle import DeploymentHandle

    from raybias.engine.backbone import ModelContext
    from raybias.methods.base import Compute, Shard


T = TypeVar("T")

_NAME: Final = "Scorer"
#: Seconds between two looks whether a handle knows a replica, which cost nothing, and between two
#: questions to Serve whether the application failed.
_POLL_S: Final = 0.1
_ASK_EVERY_S: Final = 1.0
#: Serve 2.60 registers and forgets a module of its own around each config that it makes, also those
#: of `serve.status`, and fails where another thread does so at the same time.
_CONFIGS: Final = Lock()
#: What Serve says of an application that will have no replica; NOT_STARTED where it has none.
_ENDED: Final = {
    ApplicationStatus.DEPLOY_FAILED,
    ApplicationStatus.DELETING,
    ApplicationStatus.NOT_STARTED,
}
#: One request computes while the next is prepared and waits at the replica, so that none stands
#: idle.
REQUESTS_PER_REPLICA: Final = 2


class Scorer:
    """One model in one replica.

    Parameters
    ----------
    methods: whose shards may come; they share the weights.
    out: URI of the study's OUT, which holds the runs' adapters or prompts.
    meter: counts rows and tokens.
    """

    def __init__(
        self, context: ModelContext, methods: Sequence[Served], out: str, meter: Meter
    ) -> None:
        from raybias.runtime.workers import ReaderCache

        # First, since its driver may end while a model is loaded.
        end_with_driver()
        self.store = Store(out)
        self.readers = ReaderCache(context.here(), self.store)
        self.methods = {method.name: method for method in methods}
        self.readers.of(methods[0])  # A replica is ready when its backbone is loaded.
        self.meter, self.busy = meter, meter.watched()
        self._told: set[str] = set()
        # Two threads in which one request at a time is prepared, and one computed. What its caller
        # gives up while it waits for either is done by neither.
        self.ahead, self.turn = (ThreadPoolExecutor(max_workers=1) for _ in range(2))

    async def run(self, model_id: str) -> Any:
        """Load a run by its `model_id`; subclasses keep some runs loaded."""
        method, run_id = model_id.split("/")
        return await asyncio.to_thread(lambda: self._reader(method).load(run_id))

    def _reader(self, method: str) -> Any:
        return self.readers.of(self.methods[method])

    async def score(self, shard: Shard, items: pa.Table) -> int:
        """Compute a shard's rows and commit its file; return the tokens read and written."""
        run = await self.run(model_id(shard.method, shard.run_id))
        # What the host does for it is done while the device computes the one before.
        compute = await asyncio.get_running_loop().run_in_executor(
            self.ahead, self.prepared, run, shard, items
        )
        result = await self._in_turn(compute)
        self._count(len(items), result.tokens)
        # The next request computes while this one's file is written.
        await asyncio.to_thread(self.store.write_table, shard.file, result.table)
        if shard.method not in self._told:
            self._told.add(shard.method)
            await asyncio.to_thread(keep_ways, self.store, self.readers.context)
        return int(result.tokens)

    def prepared(self, run: Any, shard: Shard, items: pa.Table) -> Compute:
        """Do the host's part of a shard; return what computes the rows of its file."""
        schema = self.methods[shard.method].output().schema
        return shard_of(self._reader(shard.method), run, shard, items, schema)

    async def label(self, method: str, run_id: str, texts: list[str]) -> list[dict[str, Any]]:
        """Label texts that are no items of a probe with one run; a row of answers each.

        Raises
        ------
        ModelError: a text that the model cannot read.
        """
        self._reader(method).check(texts)
        run = await self.run(model_id(method, run_id))
        # A sampled answer is keyed by its text, so that asking again gives it again.
        items = text_items([f"served-{key(text):016x}" for text in texts], texts)
        compute = await asyncio.to_thread(self._reader(method).prepare, run, items)
        answered = await self._in_turn(compute)
        self._count(len(texts), answered.tokens)
        rows: list[dict[str, Any]] = answered.table.to_pylist()
        return rows

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Compute one request at a time, off the event loop."""

        def computed() -> T:
            with self.busy.computing():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self.turn, computed)

    def _count(self, rows: int, tokens: int) -> None:
        self.meter.add("raybias_rows_total", rows)
        self.meter.add("raybias_tokens_total", tokens)


def model_id(method: str, run_id: str) -> str:
    """Return Serve's multiplexed model id of a run."""
    return f"{method}/{run_id}"


@contextmanager
def scorers(
    name: str,
    plan: ScorePlan | RewritePlan,
    context: ModelContext,
    methods: Sequence[Served],
    *,
    out: str,
    meter: Meter,
    replicas: int | None = None,
) -> Iterator[str]:
    """Run the Serve application `name` of replicas; it is reached by handle alone.

    It is ready with its first replica; `ray_internals.scale` changes how many there are.

    Parameters
    ----------
    methods: that share weights, and whose plans ask for the same replicas.
    replicas: how many to start; the plan's most by default.

    Raises
    ------
    WorkFailed: the replicas do not start.
    """
    try:
        with _CONFIGS:
            serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
            deployment = scorer_deployment(
                _NAME,
                cpus=plan.replica_cpus,
                gpus=plan.gpus,
                replicas=replicas or plan.replicas_max,
                requests=plan.requests,
            )
            app = deployment(scorer_of(methods)).bind(context, tuple(methods), out, meter)
            target = serve.RunTarget(app, name, route_prefix=None, external_scaler_enabled=True)
            [handle] = serve.run_many([target], wait_for_applications_running=False)
        _wait_for_replica(handle.options(), name)
        yield name
    finally:
        serve.delete(name)


def scorer_of(methods: Sequence[Served]) -> type[Scorer]:
    """Return the class of replicas for methods that share weights."""
    return _multiplexed(min(method.runs_per_replica for method in methods))


def scorer_deployment(
    name: str,
    *,
    cpus: float,
    gpus: int,
    replicas: int | tuple[int, int],
    requests: Mapping[str, Any] | None = None,
    shutdown_s: float = 5,
    max_queued: int = -1,
    health_check_s: float = 10,
) -> Any:
    """Return the Serve deployment that a class of `scorer_of` is bound to.

    Parameters
    ----------
    cpus, gpus, requests: what a replica asks Ray for.
    replicas: how many, or the fewest and most between which Serve chooses by what waits.
    shutdown_s: seconds that a stopped replica has for the requests under way.
    max_queued: requests that may wait for a replica; -1 sets no limit.
    health_check_s: seconds between two looks at whether a replica lives.
    """
    scaling: dict[str, Any] = {"num_replicas": replicas}
    if isinstance(replicas, tuple):
        least, most = replicas
        between = AutoscalingConfig(
            min_replicas=least, max_replicas=most, target_ongoing_requests=REQUESTS_PER_REPLICA
        )
        scaling = {"autoscaling_config": between}
    return serve.deployment(
        name=name,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus, **(requests or {})},
        **scaling,
        max_ongoing_requests=REQUESTS_PER_REPLICA,
        max_queued_requests=max_queued,
        health_check_period_s=health_check_s,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=shutdown_s,
    )


@cache
def _multiplexed(runs: int) -> type[Scorer]:
    """Return a scorer class that keeps `runs` runs loaded."""

    class MultiplexedScorer(Scorer):
        @serve.multiplexed(max_num_models_per_replica=runs)  # type: ignore[untyped-decorator]
        async def run(self, model_id: str) -> Any:
            return await Scorer.run(self, model_id)

    return MultiplexedScorer


def deploy(app: serve.Application, name: str, *, route_prefix: str | None = None) -> None:
    """Run a Serve application and wait until it is ready; without a route, for handles alone.

    Raises
    ------
    WorkFailed: a replica does not start.
    """
    try:
        serve.run(app, name=name, route_prefix=route_prefix)
    except RuntimeError as error:
        raise _no_replica(name, str(error)) from error


def _wait_for_replica(handle: DeploymentHandle, name: str) -> None:
    """Wait until an application has a replica that is ready.

    Serve tells its handles by itself. `serve.status` would pickle a request router at each look,
    with processor time that replicas on this machine need to start.

    Raises
    ------
    WorkFailed: none starts, or the application was deleted.
    """
    client, asked = serve_client(), 0.0
    while not handle.running_replicas_populated():
        if time.monotonic() - asked > _ASK_EVERY_S:
            if client.get_serve_status(name).app_status.status in _ENDED:
                raise _no_replica(name, "it was deleted")
            asked = time.monotonic()
        time.sleep(_POLL_S)


def _no_replica(name: str, problem: str) -> WorkFailed:
    # Serve keeps the constructor's trace as text; its last line says what happened.
    statuses = serve_client().get_serve_status(name).deployment_statuses
    said = [each.message for each in statuses]
    lines = [line for text in said for line in text.splitlines() if line.strip()]
    return WorkFailed(
        f"no replica starts ({lines[-1].strip() if lines else problem})",
        where=name,
        cure="`raybias plan` shows what a replica needs",
    )


#: Seconds that replicas wait for another reading.
_LINGERS_S: Final = 2.0


class Readers:
    """A Serve application that is up while readings use it, and a moment longer.

    Parameters
    ----------
    start: `replica.scorers` for so many replicas.
    most: replicas.
    """

    def __init__(
        self, name: str, start: Callable[[int], AbstractContextManager[str]], *, most: int
    ) -> None:
        self.name, self._start, self._most = name, start, most
        self._grants: list[Grant] = []
        self._up: AbstractContextManager[str] | None = None
        self._replicas = 0
        self._changing, self._turn = Lock(), Lock()

    @contextmanager
    def reading(self, grant: Grant) -> Iterator[None]:
        """Hold the replicas up, one reading after another: a replica keeps what one method needs.

        Raises
        ------
        WorkFailed: the replicas do not start.
        """
        grant.on_stop(lambda: serve.delete(self.name))
        with self._changing:
            if self._up is None:
                up = self._start(grant.slots)
                up.__enter__()
                self._up, self._replicas = up, grant.slots
            self._grants.append(grant)
        try:
            with self._turn:
                self.fit()
                yield
        finally:
            with self._changing:
                self._grants.remove(grant)
            timer = Timer(0.0 if grant.stopped.is_set() else _LINGERS_S, self.close)
            timer.daemon = True
            timer.start()

    def fit(self) -> None:
        """Have as many replicas as the readings are granted now."""
        with self._changing:
            replicas = min(self._most, sum(grant.slots for grant in self._grants))
            if replicas != self._replicas:
                scale(self.name, _NAME, replicas)
                self._replicas = replicas

    def close(self) -> None:
        """End the replicas if no reading uses them."""
        with self._changing:
            if self._up is not None and not self._grants:
                up, self._up = self._up, None
                up.__exit__(None, None, None)
