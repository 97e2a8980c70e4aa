"""Serve one model in Ray Serve replicas that its methods and their runs share.

A request of a study is one shard: rows of a probe, and the run that predicts them. The replica
commits the result itself, so that it is not lost with a driver that dies meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from ray import serve
from ray.exceptions import ActorAlreadyExistsError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from raybias.errors import WorkFailed
from raybias.methods.base import Answered, Compute, Shard, text_items
from raybias.runtime.graph import Stopped
from raybias.runtime.progress import Meter
from raybias.runtime.ray_internals import end_with_driver
from raybias.seeding import key
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.runtime.predict.shards import Served

#: One request computes while the next is prepared and waits at the replica, so that none stands
#: idle.
REQUESTS_PER_REPLICA: Final = 2
#: Seconds between two looks whether a handle knows a replica, which cost nothing, and between two
#: questions to Serve whether the application failed, which pickle a request router.
_POLL_S: Final = 0.1
_ASK_EVERY_S: Final = 2.0
#: Held while Serve makes a config: a deployment, an AutoscalingConfig, `serve.status`. Serve 2.60
#: registers and forgets a module of its own around each, which fails if another thread does too.
CONFIGS: Final = threading.Lock()


class Replica:
    """One model in one replica, for shards of `methods` that share its weights."""

    def __init__(
        self, context: ModelContext, methods: Sequence[Served], store: Store, meter: Meter
    ) -> None:
        from raybias.runtime.predict.shards import ShardWorker

        # First, since its driver may end while a model is loaded.
        end_with_driver()
        self.worker = ShardWorker(context.here(), methods, store)
        self.meter = meter
        # Two threads in which one request at a time is prepared, and one computed. What its caller
        # gives up while it waits for either is done by neither.
        self.ahead, self.turn = (ThreadPoolExecutor(max_workers=1) for _ in range(2))

    async def run(self, model_id: str) -> Any:
        """Load a run by its `model_id`; subclasses keep some runs loaded."""
        method, run_id = model_id.split("/")
        return await asyncio.to_thread(lambda: self.worker.reader(method).load(run_id))

    async def score(self, shard: Shard, items: pa.Table) -> int:
        """Compute a shard's rows and commit its file; return the tokens read and written."""
        if await asyncio.to_thread(self.worker.store.exists, shard.file):
            # A driver that was killed had asked for it too.
            return 0
        run = await self.run(model_id(shard.method, shard.run_id))
        # What the host does for it is done while the device computes the one before.
        compute = await asyncio.get_running_loop().run_in_executor(
            self.ahead, self.worker.prepare, run, shard, items
        )
        result = await self._computed(compute, len(items))
        # The next request computes while this one's file is written.
        await asyncio.to_thread(self.worker.commit, shard, result.table)
        return int(result.tokens)

    async def label(self, method: str, run_id: str, texts: list[str]) -> list[dict[str, Any]]:
        """Label texts that are no items of a probe with one run; returns a row of answers each."""
        reader = self.worker.reader(method)
        reader.check(texts)
        run = await self.run(model_id(method, run_id))
        # A sampled answer is keyed by its text, so that asking again gives it again.
        items = text_items([f"served-{key(text):016x}" for text in texts], texts)
        compute = await asyncio.to_thread(reader.prepare, run, items)
        answered = await self._computed(compute, len(texts))
        rows: list[dict[str, Any]] = answered.table.to_pylist()
        return rows

    async def _computed(self, compute: Compute, rows: int) -> Answered:
        """Compute one request at a time, off the event loop."""

        def answer() -> Answered:
            with self.meter.computing():
                return compute()

        answered = await asyncio.get_running_loop().run_in_executor(self.turn, answer)
        self.meter.add("raybias_rows_total", rows)
        self.meter.add("raybias_tokens_total", answered.tokens)
        return answered


def model_id(method: str, run_id: str) -> str:
    """Return Serve's multiplexed model id of a run."""
    return f"{method}/{run_id}"


def deployment(name: str, methods: Sequence[Served], **options: Any) -> serve.Deployment:
    """Return the Serve deployment of replicas for methods that share weights."""
    set_here: dict[str, Any] = {
        "max_ongoing_requests": REQUESTS_PER_REPLICA,
        "health_check_period_s": 10,
        "graceful_shutdown_wait_loop_s": 0.2,
        "graceful_shutdown_timeout_s": 5,
    }
    runs = min(method.runs_per_replica for method in methods)
    return serve.deployment(name=name, **(set_here | options))(_multiplexed(runs))


@cache
def _multiplexed(runs: int) -> type[Replica]:
    class MultiplexedReplica(Replica):
        @serve.multiplexed(max_num_models_per_replica=runs)  # type: ignore[untyped-decorator]
        async def run(self, model_id: str) -> Any:
            return await Replica.run(self, model_id)

    return MultiplexedReplica


@contextmanager
def deployed(app: serve.Application, name: str) -> Iterator[DeploymentHandle]:
    """Run a Serve application until the context ends; its replicas start meanwhile."""
    handle: DeploymentHandle | None = None
    try:
        with CONFIGS:
            start = partial(
                serve.start, proxy_location="Disabled", logging_config={"log_level": "WARNING"}
            )
            try:
                start()
            except ActorAlreadyExistsError:
                # Another study started Serve at the same moment; it is found now.
                start()
            target = serve.RunTarget(app, name, route_prefix=None)
            [found] = serve.run_many([target], wait_for_applications_running=False)
        handle = found.options()
        yield handle
    finally:
        if handle is not None:
            # It reports to Serve by itself, and would start a Ray where this one has ended.
            handle.shutdown()
        serve.delete(name)


def wait_for_replica(
    handle: DeploymentHandle, stopped: threading.Event, *, every: bool = False
) -> None:
    """Wait until a handle knows a replica, or `every` one of them runs.

    WorkFailed: none starts, or the application was deleted. Stopped: `stopped` was set before.
    """
    states = ApplicationStatus
    # Serve will start no replica of these; NOT_STARTED where it has none.
    ended = {states.DEPLOY_FAILED, states.DELETING, states.NOT_STARTED}
    name, asked = handle.deployment_id.app_name, time.monotonic()
    while every or not handle.running_replicas_populated():
        if stopped.wait(_POLL_S):
            raise Stopped("stopped before its end")
        if time.monotonic() - asked < _ASK_EVERY_S:
            continue
        asked = time.monotonic()
        with CONFIGS:
            found = serve.status().applications.get(name)
        if found is not None and found.status == ApplicationStatus.RUNNING:
            return
        if found is None or found.status in ended:
            messages = [each.message for each in found.deployments.values()] if found else []
            # Serve keeps the constructor's trace as text; its last line says what happened.
            lines = [line for text in messages for line in text.splitlines() if line.strip()]
            raise WorkFailed(
                f"no replica starts ({lines[-1].strip() if lines else 'it was deleted'})",
                where=name,
                cure="`raybias plan` shows what a replica needs",
            )
