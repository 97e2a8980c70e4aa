"""Ray Data streams the missing shards of a probe through the Serve replicas.

A shard's file is committed whole by the replica that answers it, so whoever scores it twice
writes the same file, and a study that is run again scores only what is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import pyarrow as pa
import ray
from ray import serve
from ray.data import ActorPoolStrategy, DataContext

from raybias.methods.prediction import Shard
from raybias.planning.stage_plans import ScorePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import REQUESTS_PER_REPLICA, model_id
from raybias.storage import Store

#: Requests that one caller process keeps in flight.
_CALLS: Final = 16
#: Failures of the machine, not of the work: the shard is sent to another replica.
_REPLICA_LOST: Final = ["ActorDiedError", "ActorUnavailableError"]


def score_shards(
    app: str,
    shards: Sequence[Shard],
    plan: ScorePlan,
    store: Store,
    *,
    max_failures: int,
    meter: Meter,
) -> Iterator[dict[str, Any]]:
    """Have `shards`, whose files are absent, scored by the Serve application `app`.

    Yields, as shards finish: `file`, `rows`, `tokens`, `seconds` of compute, and `retries`, how
    often the shard was sent again.

    Parameters
    ----------
    max_failures: how often one shard may lose its replica.
    meter: counts what is sent again, and what still waits.
    """
    context = DataContext.get_current()
    context.retried_map_errors = _REPLICA_LOST
    context.max_map_retries = max_failures
    # Ray Data's own wrapper loses what it wraps on the way to the driver.
    context.raise_original_map_exception = True
    callers = math.ceil(plan.replicas_max * (REQUESTS_PER_REPLICA + 1) / _CALLS)
    # One block is one shard: what a lost replica or caller repeats is a single request.
    # Callers wait for answers and need no CPU of their own, so replicas can have them all.
    scored = ray.data.from_items(
        [asdict(shard) for shard in shards], override_num_blocks=len(shards)
    ).map(
        ShardCaller,
        fn_constructor_args=(app, store, meter),
        compute=ActorPoolStrategy(
            size=min(callers, len(shards)),
            max_tasks_in_flight_per_actor=_CALLS,
            max_concurrent_calls_per_actor=_CALLS,
            enable_true_multi_threading=True,
        ),
        num_cpus=0,
    )
    meter.set("raybias_queue_depth", len(shards))
    for done, row in enumerate(scored.iter_rows(), start=1):
        meter.set("raybias_queue_depth", len(shards) - done)
        yield dict(row)


class ShardCaller:
    """Reads a shard's items and has them scored."""

    def __init__(self, app: str, store: Store, meter: Meter) -> None:
        self.handle = serve.get_app_handle(app)
        self.store = store
        self.meter = meter
        self.items = cache(self._items)
        self.sent: Counter[str] = Counter()

    def _items(self, probe: str) -> pa.Table:
        return self.store.read_table(f"items/{probe}.parquet")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Have one shard answered; `row` holds the fields of `Shard`."""
        shard = Shard(**row)
        retries = self.sent[shard.file]
        done = {"file": shard.file, "rows": shard.rows, "retries": retries}
        if self.store.exists(shard.file):
            # A replica finished it after its caller had died.
            return {**done, "tokens": 0, "seconds": 0.0}
        # Ray Data calls the same process again for a shard whose replica was lost.
        self.sent[shard.file] += 1
        if retries:
            self.meter.add("raybias_retries_total", 1)
            self.meter.add("raybias_repeated_total", shard.rows)
        items = self.items(shard.probe).slice(shard.first_row, shard.rows)
        handle = self.handle.options(multiplexed_model_id=model_id(shard.method, shard.run_id))
        return {**done, **handle.score.remote(shard, items).result()}
