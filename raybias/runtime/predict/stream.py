"""Stream missing shards with Ray Data through Serve replicas.

The replica that computes a shard commits its whole file, so computing it twice leaves the same
file, and a study that is run again computes only what is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import pyarrow as pa
import ray
from ray import serve
from ray.data import ActorPoolStrategy, DataContext
from ray.serve.handle import DeploymentResponse

from raybias.methods.base import Shard
from raybias.planning.stage_plans import RewritePlan, ScorePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import REQUESTS_PER_REPLICA, model_id
from raybias.storage import Store

#: Blocks that one caller process keeps under way.
_CALLS: Final = 16
#: Shards of a block at most. A block takes some milliseconds of the driver's one thread, for which
#: hundreds of replicas would wait.
_MOST_SHARDS: Final = 16
#: Failures of the machine, not of the work: the shard is sent to another replica.
_REPLICA_LOST: Final = ["ActorDiedError", "ActorUnavailableError"]


def score_shards(
    app: str,
    shards: Sequence[Shard],
    plan: ScorePlan | RewritePlan,
    store: Store,
    *,
    max_failures: int,
    meter: Meter,
    items: Mapping[str, pa.Table] | None = None,
) -> Iterator[dict[str, Any]]:
    """Compute `shards`, whose files are absent, on the Serve application `app`.

    Yields, as shards finish: `file`, `rows`, `tokens`, and `retries`, how often the shard was sent
    again.

    Parameters
    ----------
    shards: all of one class.
    max_failures: how often one shard may lose its replica.
    meter: counts retries and what still waits.
    items: rows by probe; read from OUT/items by default.
    """
    context = DataContext.get_current()
    context.retried_map_errors = _REPLICA_LOST
    context.max_map_retries = max_failures
    # Ray Data's own wrapper loses what it wraps on the way to the driver.
    context.raise_original_map_exception = True
    each = shards_per_block(plan.replicas_max)
    blocks = math.ceil(len(shards) / each)
    callers = math.ceil(plan.replicas_max * (REQUESTS_PER_REPLICA + 1) / (_CALLS * each))
    # Callers wait for replies and need no CPU of their own, so replicas can have them all.
    finished = ray.data.from_items(
        [asdict(shard) for shard in shards], override_num_blocks=blocks
    ).map_batches(
        ShardCaller,
        fn_constructor_args=(app, store, meter, type(shards[0]), items),
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            size=min(callers, blocks),
            max_tasks_in_flight_per_actor=_CALLS,
            max_concurrent_calls_per_actor=_CALLS,
            enable_true_multi_threading=True,
        ),
        num_cpus=0,
    )
    meter.set("raybias_queue_depth", len(shards))
    for done, row in enumerate(finished.iter_rows(), start=1):
        meter.set("raybias_queue_depth", len(shards) - done)
        yield dict(row)


def shards_per_block(replicas: int) -> int:
    """Choose how many shards Ray Data sends, and repeats, at a time: one up to 31 replicas."""
    return min(_MOST_SHARDS, max(1, replicas // 16))


class ShardCaller:
    """Send the items of shards to replicas.

    Parameters
    ----------
    shard: the class of the shards.
    items: as for `score_shards`.
    """

    def __init__(
        self,
        app: str,
        store: Store,
        meter: Meter,
        shard: type[Shard] = Shard,
        items: Mapping[str, pa.Table] | None = None,
    ) -> None:
        self.handle = serve.get_app_handle(app)
        self.store, self.meter, self.shard = store, meter, shard
        self.items = cache(self._items) if items is None else items.__getitem__
        self.sent: Counter[str] = Counter()

    def _items(self, probe: str) -> pa.Table:
        return self.store.read_table(f"items/{probe}.parquet")

    def __call__(self, block: pa.Table) -> pa.Table:
        """Have shards computed, all at one time; a row of `block` holds the fields of one.

        Raises
        ------
        Exception: what became of the first that failed, once all have ended.
        """
        shards = [self.shard(**row) for row in block.to_pylist()]
        replies = [self._send(shard) for shard in shards]
        failures, tokens = list[Exception](), list[int]()
        for reply in replies:
            try:
                tokens.append(reply.result() if reply is not None else 0)
            except Exception as error:  # Ray Data knows which to retry.
                failures.append(error)
        if failures:
            raise failures[0]
        return pa.table(
            {
                "file": [shard.file for shard in shards],
                "rows": [shard.rows for shard in shards],
                "retries": [max(0, self.sent[shard.file] - 1) for shard in shards],
                "tokens": tokens,
            }
        )

    def _send(self, shard: Shard) -> DeploymentResponse[int] | None:
        """Send a shard, unless a replica finished it after its caller had died, or another failed.

        Ray Data calls the same process again for shards whose replica was lost.
        """
        if self.store.exists(shard.file):
            return None
        if self.sent[shard.file]:
            self.meter.add("raybias_retries_total", 1)
            self.meter.add("raybias_repeated_total", shard.rows)
        self.sent[shard.file] += 1
        items = self.items(shard.probe).slice(shard.first_row, shard.rows)
        handle = self.handle.options(multiplexed_model_id=model_id(shard.method, shard.run_id))
        return handle.score.remote(shard, items)
