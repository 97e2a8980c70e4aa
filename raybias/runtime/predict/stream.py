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
from itertools import count
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
from raybias.runtime.graph import Grant
from raybias.runtime.predict.replica import (
    CONFIGS,
    REQUESTS_PER_REPLICA,
    deployed,
    deployment,
    model_id,
    wait_for_replica,
)
from raybias.runtime.predict.shards import Reading
from raybias.runtime.progress import Done

#: Shards whose rows Ray Data reads in one task, and tasks at one time: they only slice tables.
_TOGETHER: Final = 16
_READERS: Final = 2
#: Seconds between two looks at what is granted.
_LOOK_S: Final = 1.0
#: Seconds that replicas wait for another reading.
_LINGERS_S: Final = 2.0


def shard_rows(
    shards: Sequence[Shard], items: Mapping[str, pa.Table]
) -> Generator[tuple[Shard, pa.Table], None, None]:
    """Read the rows of shards with Ray Data; yields each shard with its rows, in order."""
    DataContext.get_current().execution_options.preserve_order = True
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


#: Numbers the applications of this process.
_STARTED: Final = count(1)


class Replicas:
    """A Serve application with one model, deployed while tasks use it and a moment longer."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name, self.first = name, reading
        self._grants: list[Grant] = []
        self._up: tuple[ExitStack, DeploymentHandle] | None = None
        self._changing, self._turn = Lock(), Lock()

    def read(
        self, reading: Reading, grant: Grant, add: Callable[[Done], None], *, max_failures: int
    ) -> None:
        """Compute shards, one task at a time; each may lose its replica `max_failures` times."""
        grant.enough = len(reading.todo)
        with self.held(grant) as handle, self._turn:
            asyncio.run(self._send_all(handle, reading, grant, add, max_failures))

    @contextmanager
    def held(self, grant: Grant) -> Iterator[DeploymentHandle]:
        """Hold the application up for what a reading was granted; its replicas may still start."""
        with self._changing:
            self._grants.append(grant)
            if self._up is None:
                # A new name each time, also of a study that is resumed in this process: Serve tells
                # the handle of a deleted one that it is gone.
                stack, name = ExitStack(), f"{self.name}-{next(_STARTED)}"
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

    @property
    def _granted(self) -> int:
        slots, plan = sum(grant.slots for grant in self._grants), self.first.plan
        return max(plan.replicas_min, min(plan.replicas_max, slots))

    def _app(self, grant: Grant) -> Any:
        reading, plan = self.first, self.first.plan
        wanted = min(grant.slots, grant.enough, plan.replicas_max)
        scaling = AutoscalingConfig(
            min_replicas=plan.replicas_min,
            initial_replicas=max(plan.replicas_min, wanted),
            max_replicas=plan.replicas_max,
            target_ongoing_requests=REQUESTS_PER_REPLICA,
            # Handles report every ten seconds, and Ray Data takes some to read the first rows.
            look_back_period_s=12.0,
            upscale_delay_s=1.0,
            downscale_delay_s=20.0,
            # The mean of shards that take moments is below what is under way.
            aggregation_function=AggregationFunction.MAX,
        )
        asked = {"num_cpus": plan.replica_cpus, "num_gpus": plan.gpus, **plan.requests}
        replicas = deployment(
            "Replica", reading.methods, autoscaling_config=scaling, ray_actor_options=asked
        )
        return replicas.bind(reading.context, reading.methods, reading.store, reading.meter)

    async def _send_all(
        self,
        handle: DeploymentHandle,
        reading: Reading,
        grant: Grant,
        add: Callable[[Done], None],
        max_failures: int,
    ) -> None:
        """Send all shards, as many at a time as is granted, and wait for what becomes of them.

        They wait for the first replicas at their handle, so that Serve keeps as many as they need.
        """
        meter, ended = reading.meter, Event()
        starting = asyncio.ensure_future(asyncio.to_thread(wait_for_replica, handle, ended))
        under_way: set[asyncio.Task[Done]] = set()

        async def send(shard: Shard, items: pa.Table) -> Done:
            """Have a shard computed; where its replica is lost with it, by another one."""
            run = handle.options(multiplexed_model_id=model_id(shard.method, shard.run_id))
            lost = 0
            while True:
                try:
                    tokens = await run.score.remote(shard, items)
                    return Done(rows=shard.rows, tokens=tokens, retries=lost, shard=shard)
                except DeploymentUnavailableError:
                    # Says why no replica starts, if none does.
                    await starting
                    raise
                except (ActorDiedError, ActorUnavailableError):
                    lost += 1
                    if lost > max_failures:
                        raise
                    meter.add("raybias_retries_total", 1)
                    meter.add("raybias_repeated_total", shard.rows)

        async def step() -> None:
            nonlocal under_way
            done, under_way = await asyncio.wait(
                under_way, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
            grant.check()
            if starting.done():
                starting.result()
            for task in done:
                add(task.result())
                grant.enough -= 1
                meter.set("raybias_queue_depth", grant.enough)

        meter.set("raybias_queue_depth", len(reading.todo))
        rows = shard_rows(reading.todo, reading.rows())
        try:
            while (following := await asyncio.to_thread(next, rows, None)) is not None:
                while len(under_way) >= REQUESTS_PER_REPLICA * self._granted:
                    await step()
                under_way.add(asyncio.create_task(send(*following)))
            while under_way:
                await step()
        finally:
            ended.set()
            for task in under_way:
                task.cancel()
            await asyncio.gather(starting, *under_way, return_exceptions=True)
            rows.close()
