"""A shard's way into OUT and to its run's file, with neither Ray nor a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.methods.base import PARTS, Answered, Compute, Reader, Shard
from raybias.planning.workload import shards_of
from raybias.runtime.predict.replica import Replica
from raybias.runtime.predict.shards import (
    ShardFiles,
    ShardWorker,
    delete_empty_parts,
    stored_output,
)
from raybias.runtime.progress import Done, Meter, Reporter
from raybias.schema import LABELS, OutputSpec
from raybias.stats.classes import labels_of_metadata
from raybias.storage import Store

SCHEMA = pa.schema([("item_id", pa.string())])
STORED = OutputSpec("predictions", SCHEMA)
ITEMS = pa.table({"item_id": list("abcdefg")})
RUNS = [{"run_id": f"run{n}", "model": "m", "method": "soft", "dataset": "d"} for n in (1, 2)]
#: Three shards of each run.
SHARDS = shards_of(RUNS, {"mine": len(ITEMS)}, 3, STORED)


class Answers(Reader):
    def prepare(self, run: None, items: pa.Table) -> Compute:
        return lambda: Answered(items.select(["item_id"]), tokens=7)


class Answering:
    name, runs_per_replica = "soft", 2

    def output(self) -> OutputSpec:
        return STORED

    def reader(self, context: Any, store: Store) -> Reader:
        return Answers()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def worker(store: Store) -> ShardWorker:
    """One whose backbone has no ways of reading to tell of."""
    return worker_of(ModelContext(Backbone(id="m")), store)


def worker_of(context: ModelContext, store: Store) -> ShardWorker:
    made = ShardWorker(context, [Answering()], store)  # type: ignore[list-item]
    made._told = {"soft"}
    return made


def completed(store: Store, worker: ShardWorker, *, but: Sequence[Shard] = ()) -> list[Shard]:
    """Compute what OUT lacks but some shards, as a driver that is killed then; returns it."""
    files, done = ShardFiles(store, SHARDS, STORED), list[Shard]()

    def read(add: Callable[[Done], None]) -> None:
        for shard in files.todo:
            if shard not in but:
                done.append(shard)
                add(worker.compute(shard, ITEMS))
        if but:
            raise KeyboardInterrupt

    files.complete("score", read, Reporter(), starting="")
    delete_empty_parts(store)
    return done


def rows(store: Store) -> dict[str, list[str]]:
    names = store.files("predictions", recursive=True)
    return {name: store.read_table(name)["item_id"].to_pylist() for name in names}


WHOLE = {f"predictions/mine/{run['run_id']}.parquet": list("abcdefg") for run in RUNS}


def test_a_whole_run_is_one_file_and_no_part_is_left(store: Store, worker: ShardWorker) -> None:
    assert completed(store, worker) == SHARDS
    assert rows(store) == WHOLE
    assert not store.exists(PARTS)
    assert completed(store, worker) == []


@pytest.mark.parametrize("labels", [LABELS, ("harmless", "toxic")])
def test_a_joined_file_names_labels_that_are_not_sentiment(
    labels: tuple[str, ...], store: Store
) -> None:
    context = ModelContext(Backbone(id="m"), labels=labels)
    worker = worker_of(context, store)
    stored = stored_output(Answering(), labels)  # type: ignore[arg-type]
    files = ShardFiles(store, SHARDS, stored)

    def read(add: Callable[[Done], None]) -> None:
        for shard in files.todo:
            add(worker.compute(shard, ITEMS))

    files.complete("reading", read, Reporter(), starting="begins")
    assert ShardFiles(store, SHARDS, stored).todo == []
    for name in {shard.run_file for shard in SHARDS}:
        metadata = pq.read_metadata(store.path(name), filesystem=store.fs).metadata
        assert labels_of_metadata(metadata) == (() if labels == LABELS else labels)
        assert store.read_table(name).equals(ITEMS)


def test_a_shard_of_all_rows_is_the_runs_file_at_once(store: Store, worker: ShardWorker) -> None:
    (shard, _) = shards_of(RUNS, {"mine": len(ITEMS)}, 100, STORED)
    worker.compute(shard, ITEMS)
    assert shard.file == shard.run_file
    assert ShardFiles(store, [shard], STORED).todo == []


@pytest.mark.parametrize("killed", ["between shards", "before a join", "within a join"])
def test_what_a_killed_driver_leaves_is_neither_lost_nor_doubled(
    killed: str, store: Store, worker: ShardWorker
) -> None:
    lacking = [SHARDS[1]]
    with pytest.raises(KeyboardInterrupt):
        completed(store, worker, but=lacking)
    # The second run was whole; of the first one no row is among the results.
    assert rows(store) == dict(list(WHOLE.items())[1:])
    if killed != "between shards":
        worker.compute(SHARDS[1], ITEMS)
        lacking = []
    parts = [store.read_bytes(shard.file) for shard in SHARDS[:3] if shard not in lacking]
    assert completed(store, worker) == lacking
    assert rows(store) == WHOLE
    if killed == "within a join":
        # The run's file is there, and so are its parts again.
        for shard, content in zip(SHARDS, parts, strict=False):
            store.write_bytes(shard.file, content)
        assert completed(store, worker) == []
        assert rows(store) == WHOLE
        assert not store.exists(PARTS)


def test_broken_files_are_deleted_and_asked_for_again(store: Store, worker: ShardWorker) -> None:
    for shard in SHARDS[:3]:
        worker.compute(shard, ITEMS)
    store.write_bytes(SHARDS[0].file, b"torn")
    store.write_table(SHARDS[1].file, ITEMS.slice(0, 2))
    assert ShardFiles(store, SHARDS, STORED).todo == [SHARDS[0], SHARDS[1], *SHARDS[3:]]
    assert store.files(PARTS, recursive=True) == [SHARDS[2].file]
    completed(store, worker)
    store.write_table(SHARDS[0].run_file, ITEMS.slice(1))
    assert completed(store, worker) == SHARDS[:3]
    assert rows(store) == WHOLE
    # A rank asks for the shards of its reading alone, of which the run has more.
    assert ShardFiles(store, SHARDS[:2], STORED).todo == []


def test_a_replica_commits_and_computes_nothing_twice(store: Store, worker: ShardWorker) -> None:
    """As when a driver dies: what its replicas finished meanwhile is found by the next one."""
    replica: Any = object.__new__(Replica)
    replica.worker, replica.meter = worker, Meter(study="s", stage="score", model="m")
    replica.ahead, replica.turn = (ThreadPoolExecutor(max_workers=1) for _ in range(2))
    shard = replace(SHARDS[0], first_row=2)
    items = ITEMS.slice(2, 3)
    assert asyncio.run(replica.score(shard, items)) == 7
    assert store.read_table(shard.file)["item_id"].to_pylist() == ["c", "d", "e"]
    assert asyncio.run(replica.score(shard, items)) == 0
    assert worker.compute(shard, ITEMS) == Done(rows=3, tokens=7, shard=shard)
