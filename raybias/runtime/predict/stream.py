"""Stream the rows of missing shards with Ray Data to Serve replicas.

Ray Data reads the rows, in the order of the shards. Each shard is one request, and the replica that
computes it commits its file, so computing it twice leaves the same file. Requests under way are
bounded by the devices that the study's graph grants, and Serve's autoscaler follows the requests:
it brings replicas where devices are free, and gives them back to a task that waits for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event, Lock, Timer
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import DataContext, TaskPoolStrategy
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.config import AggregationFunction, AutoscalingConfig
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from raybias.methods.base import Shard
from raybias.runtime.graph import Grant, Stopped
from raybias.runtime.predict.replica import (
    CONFIGS,
    REQUESTS_PER_REPLICA,
    deployed,
    deployment,
    model_id,
    wait_for_replica,
)
from raybias.runtime.progress import Advance, Done
from raybias.runtime.workers import Reading

#: Shards whose rows Ray Data reads in one task, and tasks at one time: they only slice tables.
_TOGETHER: Final = 16
_READERS: Final = 2
#: Seconds between two looks at what is granted.
_LOOK_S: Final = 1.0
#: Seconds that replicas wait for another reading.
_LINGERS_S: Final = 2.0
#: Seconds of requests that Serve looks back on, which handles tell it every ten, and for which they
#: must ask for more, or fewer, replicas before there are. Ray Data takes some seconds to read the
#: first rows, in which nothing is asked.
_LOOK_BACK_S: Final = 12.0
_UPSCALE_S: Final = 1.0
_DOWNSCALE_S: Final = 20.0


def shard_rows(
    shards: Sequence[Shard], items: Mapping[str, pa.Table]
) -> Generator[tuple[Shard, pa.Table], None, None]:
    """Read the rows of shards with Ray Data; yields each shard with its rows, in order."""
    context = DataContext.get_current()
    context.execution_options.preserve_order = True
    tables = {probe: ray.put(table) for probe, table in items.items()}

    # Sent by value, as a function in a function is, so that Ray's workers import nothing of ours.
    def rows(places: pa.Table, tables: Mapping[str, ray.ObjectRef[pa.Table]]) -> Iterator[pa.Table]:
        for place in places.to_pylist():
            yield ray.get(tables[place["probe"]]).slice(place["first_row"], place["rows"])

    places = [{"probe": s.probe, "first_row": s.first_row, "rows": s.rows} for s in shards]
    blocks = math.ceil(len(shards) / _TOGETHER)
    read = ray.data.from_items(places, override_num_blocks=blocks).map_batches(
        rows,
        fn_kwargs={"tables": tables},
        batch_size=None,
        batch_format="pyarrow",
        # Replicas can have all CPUs.
        num_cpus=0,
        compute=TaskPoolStrategy(size=min(_READERS, blocks)),
    )
    rest: list[pa.Table] = []
    done = 0
    for batch in read.iter_batches(batch_size=None, batch_format="pyarrow"):
        table = pa.concat_tables([*rest, batch])
        while done < len(shards) and table.num_rows >= shards[done].rows:
            yield shards[done], table.slice(0, shards[done].rows)
            table, done = table.slice(shards[done].rows), done + 1
        rest = [table]


class Replicas:
    """A Serve application with one model, up while readings use it and a moment longer."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name, self.first = name, reading
        self._grants: list[Grant] = []
        self._up: tuple[ExitStack, DeploymentHandle] | None = None
        self._started = 0
        self._changing, self._turn = Lock(), Lock()

    def read(self, reading: Reading, grant: Grant, advance: Advance, *, max_failures: int) -> None:
        """Compute shards, after other readings: a replica keeps what one method needs.

        A shard may lose its replica `max_failures` times.
        """
        grant.enough = len(reading.todo)
        with self.held(grant) as handle, self._turn:
            sender = _Sender(handle, reading, grant, advance, max_failures)
            asyncio.run(sender.send_all(self._at_once))

    @contextmanager
    def held(self, grant: Grant) -> Iterator[DeploymentHandle]:
        """Hold the application up for what a reading was granted; its replicas may still start."""
        with self._changing:
            self._grants.append(grant)
            if self._up is None:
                # A new name each time: Serve tells the handle of a deleted one that it is gone.
                stack, self._started = ExitStack(), self._started + 1
                name = f"{self.name}-{self._started}"
                with CONFIGS:
                    app = self._app(grant)
                self._up = stack, stack.enter_context(deployed(app, name))
            handle = self._up[1]
        try:
            yield handle
        finally:
            with self._changing:
                self._grants.remove(grant)
            timer = Timer(0.0 if grant.stopped.is_set() else _LINGERS_S, self.close)
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """End the replicas if no reading uses them."""
        with self._changing:
            if self._up is not None and not self._grants:
                (stack, _), self._up = self._up, None
                stack.close()

    def _at_once(self) -> int:
        granted = sum(grant.slots for grant in self._grants)
        plan = self.first.plan
        return REQUESTS_PER_REPLICA * max(plan.replicas_min, min(plan.replicas_max, granted))

    def _app(self, grant: Grant) -> Any:
        reading, plan = self.first, self.first.plan
        wanted = min(grant.slots, grant.enough, plan.replicas_max)
        scaling = AutoscalingConfig(
            min_replicas=plan.replicas_min,
            initial_replicas=max(plan.replicas_min, wanted),
            max_replicas=plan.replicas_max,
            target_ongoing_requests=REQUESTS_PER_REPLICA,
            look_back_period_s=_LOOK_BACK_S,
            upscale_delay_s=_UPSCALE_S,
            downscale_delay_s=_DOWNSCALE_S,
            # The mean of shards that take moments is below what is under way.
            aggregation_function=AggregationFunction.MAX,
        )
        asked = {"num_cpus": plan.replica_cpus, "num_gpus": plan.gpus, **plan.requests}
        replicas = deployment(
            "Replica", reading.methods, autoscaling_config=scaling, ray_actor_options=asked
        )
        return replicas.bind(reading.context, reading.methods, reading.store.uri, reading.meter)


class _Sender:
    """Sends the shards of one reading to replicas."""

    def __init__(
        self, handle: DeploymentHandle, reading: Reading, grant: Grant, advance: Advance, lost: int
    ) -> None:
        self.handle, self.reading, self.grant, self.advance = handle, reading, grant, advance
        self.may_be_lost = lost
        self.under_way: set[asyncio.Task[Done]] = set()

    async def send_all(self, at_once: Callable[[], int]) -> None:
        """Send all shards, `at_once()` at a time, and wait for what becomes of them.

        They wait for the first replicas at their handle, so that Serve keeps as many as they need.
        """
        self.reading.meter.set("raybias_queue_depth", len(self.reading.todo))
        ended = Event()
        starting = asyncio.to_thread(wait_for_replica, self.handle, ended)
        self.starting = asyncio.ensure_future(starting)
        rows = shard_rows(self.reading.todo, self.reading.rows())
        try:
            while (following := await asyncio.to_thread(next, rows, None)) is not None:
                while len(self.under_way) >= at_once():
                    await self._step()
                self.under_way.add(asyncio.create_task(self._send(*following)))
            while self.under_way:
                await self._step()
        finally:
            ended.set()
            for task in self.under_way:
                task.cancel()
            await asyncio.gather(self.starting, *self.under_way, return_exceptions=True)
            rows.close()

    async def _step(self) -> None:
        ended, self.under_way = await asyncio.wait(
            self.under_way, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self.grant.stopped.is_set():
            raise Stopped("stopped before its end")
        if self.starting.done():
            self.starting.result()
        for task in ended:
            self.advance(done=task.result())
            self.grant.enough -= 1
            self.reading.meter.set("raybias_queue_depth", self.grant.enough)

    async def _send(self, shard: Shard, items: pa.Table) -> Done:
        """Have a shard computed; where its replica is lost with it, by another one."""
        handle = self.handle.options(multiplexed_model_id=model_id(shard.method, shard.run_id))
        lost = 0
        while True:
            try:
                tokens = await handle.score.remote(shard, items)
                return Done(rows=shard.rows, tokens=tokens, retries=lost, shard=shard)
            except DeploymentUnavailableError:
                # Says why no replica starts, if none does.
                await self.starting
                raise
            except (ActorDiedError, ActorUnavailableError):
                lost += 1
                if lost > self.may_be_lost:
                    raise
                self.reading.meter.add("raybias_retries_total", 1)
                self.reading.meter.add("raybias_repeated_total", shard.rows)
