"""A shard's way through caller and replica, with neither Ray nor a model."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from raybias.methods.base import Answered, Compute, Reader, Shard
from raybias.planning.shards import missing
from raybias.runtime.metrics import Meter
from raybias.runtime.predict.replica import Scorer
from raybias.runtime.predict.stream import ShardCaller, shards_per_block
from raybias.schema import OutputSpec
from raybias.storage import Store

SHARD = Shard("mine", "run", "m", "soft_prompt", "d", first_row=2, rows=3, folder="predictions")
SCHEMA = pa.schema([("item_id", pa.string())])


class Answers(Reader):
    def load(self, run_id: str) -> str:
        return run_id

    def prepare(self, run: str, items: pa.Table) -> Compute:
        return lambda: Answered(items.select(["item_id"]), tokens=7)


class Named:
    def output(self) -> OutputSpec:
        return OutputSpec("predictions", SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.write_table("items/mine.parquet", pa.table({"item_id": list("abcdef")}))
    return store


@pytest.fixture
def replica(store: Store) -> Scorer:
    """A scorer without its backbone."""
    made: Any = object.__new__(Scorer)
    made.store, made._reader = store, lambda method: Answers()
    made.methods = {SHARD.method: Named()}
    made.meter = Meter(study="s", stage="score", model="m")
    made._told = {SHARD.method}  # It has no backbone, and so no ways of reading.
    made.busy = made.meter.watched()
    made.ahead, made.turn = ThreadPoolExecutor(max_workers=1), ThreadPoolExecutor(max_workers=1)
    return made


class Handle:
    """Of an application with one replica; counts what it is asked."""

    def __init__(self, replica: Scorer) -> None:
        self.replica, self.asked = replica, 0
        self.fails: set[str] = set()
        self.score = SimpleNamespace(remote=self._score)

    def options(self, *, multiplexed_model_id: str) -> Handle:
        return self

    def _score(self, shard: Shard, items: pa.Table) -> Any:
        self.asked += 1
        return SimpleNamespace(result=lambda: self._result(shard, items))

    def _result(self, shard: Shard, items: pa.Table) -> int:
        if shard.file in self.fails:
            raise ConnectionError(shard.file)
        return asyncio.run(self.replica.score(shard, items))


def block_of(*shards: Shard) -> pa.Table:
    return pa.Table.from_pylist([vars(shard) for shard in shards])


def caller_of(store: Store, handle: Handle, monkeypatch: pytest.MonkeyPatch) -> ShardCaller:
    monkeypatch.setattr("ray.serve.get_app_handle", lambda app: handle)
    return ShardCaller("app", store, Meter(study="s", stage="score", model="m"))


def test_a_replica_commits_and_what_is_committed_is_not_asked_for(
    store: Store, replica: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a caller dies: what its replicas finished meanwhile is found by the next one."""
    block, handle = block_of(SHARD), Handle(replica)
    (first,) = caller_of(store, handle, monkeypatch)(block).to_pylist()
    assert (first["rows"], first["tokens"], first["retries"], handle.asked) == (3, 7, 0, 1)
    assert store.read_table(SHARD.file)["item_id"].to_pylist() == ["c", "d", "e"]
    (again,) = caller_of(store, handle, monkeypatch)(block).to_pylist()
    assert (again["file"], again["tokens"], handle.asked) == (SHARD.file, 0, 1)


def test_a_shard_that_lost_its_replica_is_counted_when_it_is_sent_again(
    store: Store, replica: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Handle(replica)
    caller = caller_of(store, handle, monkeypatch)
    caller(block_of(SHARD))
    store.delete(SHARD.file)
    assert caller(block_of(SHARD))["retries"].to_pylist() == [1]
    assert handle.asked == 2


def test_of_a_block_only_shards_that_failed_are_sent_again(
    store: Store, replica: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure comes once all have ended, so that none is computed twice at one time."""
    first, second, third = (replace(SHARD, first_row=row, rows=1) for row in range(3))
    handle = Handle(replica)
    handle.fails = {first.file, second.file}
    caller = caller_of(store, handle, monkeypatch)
    with pytest.raises(ConnectionError, match=first.file):
        caller(block_of(first, second, third))
    assert store.exists(third.file)
    handle.fails = set()
    done = caller(block_of(first, second, third)).to_pydict()
    assert done["file"] == [first.file, second.file, third.file]
    assert (done["tokens"], done["retries"], handle.asked) == ([7, 7, 0], [1, 1, 0], 5)


def test_blocks_hold_more_shards_where_more_replicas_wait_for_the_driver() -> None:
    assert [shards_per_block(n) for n in (1, 31, 32, 100, 1000)] == [1, 1, 2, 6, 16]


def test_a_broken_file_is_removed_so_that_it_is_asked_for_again(store: Store) -> None:
    reading = OutputSpec("predictions", SCHEMA)
    store.write_bytes(SHARD.file, b"torn")
    assert missing(store, [SHARD], reading) == [SHARD]
    assert not store.exists(SHARD.file)
    store.write_table(SHARD.file, pa.table({"item_id": list("cde")}, schema=SCHEMA))
    assert missing(store, [SHARD], reading) == []
