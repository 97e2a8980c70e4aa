"""What does the tasks of a study: the interface of a Ray cluster and of this process alone.

Each says in OUT how it read its backbone and on what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import torch

from raybias.config import Backbone
from raybias.engine.adapters.tuning import Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.checkpoint import quantisation
from raybias.methods.base import Shard
from raybias.planning.stage_plans import ScorePlan
from raybias.runtime.graph import Grant, Places
from raybias.runtime.progress import Advance, Meter
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.runtime.predict.worker import Served
    from raybias.runtime.tuning import TuningStage


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Shards that one model must still compute.

    Readings of one `name` can share replicas, which are sent shards of `methods`. `items` are rows
    by probe, by default those of OUT/items.
    """

    name: str
    context: ModelContext
    methods: tuple[Served, ...]
    plan: ScorePlan
    store: Store
    todo: tuple[Shard, ...]
    meter: Meter
    items: Mapping[str, pa.Table] | None = None

    def rows(self) -> Mapping[str, pa.Table]:
        """Return the rows of each probe that is still to be read."""
        if self.items is not None:
            return self.items
        probes = dict.fromkeys(shard.probe for shard in self.todo)
        return {probe: self.store.read_table(f"items/{probe}.parquet") for probe in probes}


class Workers(Places, Protocol):
    """Those that tune packs and compute shards, for one study.

    Each verb raises Stopped where the study was stopped, and RaybiasError or RayError where the
    work cannot be done.
    """

    @property
    def starting(self) -> str:
        """What a stage waits for before its first row or step, in words for a user."""

    def fetch(self, backbone: Backbone) -> None:
        """Bring a model of the hub to where it will be loaded."""

    def tune(self, stage: TuningStage, trials: Sequence[Trial], grant: Grant) -> None:
        """Tune a pack of a stage's trials to its end."""

    def read(self, reading: Reading, grant: Grant, advance: Advance) -> None:
        """Compute shards and commit their files; `advance` is called for each."""

    def close(self) -> None:
        """End what is held; waits for what still computes."""


#: One file for each backbone and purpose.
FOLDER: Final = "readers"


def device_name(device: torch.device) -> str:
    """Return the kind of a GPU, as its maker names it, or what else a device is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def keep_ways(store: Store, context: ModelContext) -> None:
    """Write how a model that is in use is read, where OUT does not have it yet."""
    on = device_name(torch.device(context.execution.device))
    for purpose, way in context.execution.ways.items():
        name = f"{FOLDER}/{context.spec.name}.{purpose.replace(' ', '_')}.json"
        if not store.exists(name):
            how = quantisation(context.spec)
            record = {
                "backbone": context.spec.name,
                "purpose": purpose,
                "way": way.how,
                "fastest": way.fastest,
                "dtype": context.spec.dtype,
                "quantised": how.method if how is not None else None,
                "device": on,
                "torch": torch.__version__,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }
            store.write_text(name, json.dumps(record, indent=1))


def slow_ways(store: Store) -> Iterator[str]:
    """Yield a line for each backbone of OUT that is read in a slower way than others."""
    for name in store.files(FOLDER, suffix=".json"):
        record = json.loads(store.read_text(name))
        if not record["fastest"]:
            yield (
                f"warning: {record['backbone']} is read slowly for {record['purpose']}"
                f" ({record['way']}): a short cut gave other values than the model"
                f" in {record['dtype']} on {record['device']}"
            )
