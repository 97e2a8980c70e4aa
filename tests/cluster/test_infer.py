"""Scoring on real Ray: the same predictions however it is spread, cut or killed (about 60 s)."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from raybias import config, methods
from raybias.config.parts import Verbalizer
from raybias.methods.base import Shard
from raybias.planning.machine import Layout, ResourceRequest
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.tasks import Task
from raybias.planning.workload import shards_of
from raybias.runtime.graph import Grant
from raybias.runtime.predict import replica
from raybias.runtime.predict.shards import Reading, ShardFiles
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Done, Meter, Reporter
from raybias.schema import ITEMS, PREDICTIONS, OutputSpec
from raybias.storage import Store
from support.tiny import Logits, save_model, save_prompts, texts

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

ITEM_COUNT, ROWS = 250, 32
RUNS = ("tiny.set.soft_prompt.lr0.001.s1", "tiny.set.soft_prompt.lr0.001.s2")

TUNED = OutputSpec("predictions", PREDICTIONS)


def filled_store(folder: Path, spec: config.Backbone) -> tuple[Store, Logits]:
    """Items of uneven lengths and two random adapters, and the logits of the engine alone."""
    store = Store(folder)
    rows = [
        {
            **dict.fromkeys(ITEMS.names, ""), "item_id": f"i{n:04d}", "label": n % 3, "text": text,
            "attribute": "colour", "group": "red" if n % 2 else "blue", "template_id": f"t{n % 7}",
        }
        for n, text in enumerate(texts(ITEM_COUNT, seed=3))
    ]  # fmt: skip
    store.write_table("items/mine.parquet", pa.Table.from_pylist(rows, schema=ITEMS))
    return store, save_prompts(store, spec, RUNS, [row["text"] for row in rows])


#: Two replicas, and few tokens a pass.
PLAN = ScorePlan(
    backbone="tiny", method="soft_prompt", replicas_min=2, replicas_max=2,
    need=ResourceRequest(cpus=1, gpus=0), replica_cpus=0.75, data_cpus=0.5, layout=Layout(64),
    rows_per_shard=ROWS, items={}, runs=len(RUNS), memory=(), device_memory=0,
)  # fmt: skip


def all_shards() -> list[Shard]:
    runs = [
        {"run_id": run_id, "model": "tiny", "method": "soft_prompt", "dataset": "set"}
        for run_id in RUNS
    ]
    return shards_of(runs, {"mine": ITEM_COUNT}, ROWS, TUNED)


APP = "raybias-test"


def reading_of(store: Store, spec: config.Backbone, shards: Sequence[Shard]) -> Reading:
    return Reading(
        name="test",
        context=PLAN.context(spec, Verbalizer().words()),
        methods=(methods.SoftPrompt(prompt_length=4),),
        plan=PLAN,
        store=store,
        todo=tuple(shards),
        meter=Meter(study="mine", stage="score", model="tiny"),
    )


def granted(slots: int) -> Grant:
    """What the graph grants a reading."""
    task = Task(key="read/tiny/soft_prompt", kind="read", backbone="tiny", seconds=1.0)
    return Grant(task, slots, slots, {}, frozenset(), threading.Event(), lambda task: None)


def test_a_killed_replica_is_made_good(tmp_path: Path) -> None:
    """In another order; one replica of two dies."""
    model = save_model(tmp_path / "tiny")
    spec = config.Backbone(id=str(model), name="tiny", dtype="float32", bos="prepend")
    store, expected = filled_store(tmp_path / "out", spec)
    order = np.random.default_rng(5).permutation(len(all_shards()))
    shards = [all_shards()[i] for i in order]
    reading = reading_of(store, spec, shards)
    replicas, done = Replicas(APP, reading), list[Done]()

    def kill_one(each: Done) -> None:
        done.append(each)
        if len(done) == 1:
            # The one that works by now, held first, so that requests are at it when it dies.
            found = map(psutil.Process, replicas_of(APP))
            working = max(found, key=lambda each: each.cpu_times().user)
            working.suspend()
            threading.Timer(0.5, working.kill).start()

    replicas.read(reading, granted(2), kill_one, max_failures=3)
    assert len(done) == len(shards)
    assert sum(each.retries for each in done) <= replica.REQUESTS_PER_REPLICA

    for name in ("rows_total", "tokens_total", "busy_seconds_total"):
        await_metric(f"raybias_{name}")
    replicas.close()
    # Nothing is left to read: what is there becomes one file a run.
    nothing: Any = None
    ShardFiles(store, all_shards(), TUNED).complete("test", nothing, Reporter(), starting="")
    # Every item once per run, in order, with the engine's own logits and labels.
    assert ShardFiles(store, all_shards(), TUNED).todo == []
    items = store.read_table("items/mine.parquet")
    for run_id in RUNS:
        rows = pl.DataFrame(store.read_table(f"predictions/mine/{run_id}.parquet"))
        for name in ("item_id", "label", "group", "template_id"):
            assert rows[name].to_list() == items[name].to_pylist()
        scores = np.array(rows["scores"].to_list())
        np.testing.assert_allclose(scores, expected[run_id], atol=2e-5)
        assert rows["pred"].to_list() == expected[run_id].argmax(axis=1).tolist()


def await_metric(name: str) -> None:
    """Wait until Ray's agent exports a metric of these replicas."""
    tags = {"study": "mine", "stage": "score", "model": "tiny"}
    (node,) = ray.nodes()
    place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    for _ in range(60):
        with urllib.request.urlopen(place) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [each for family in families for each in family.samples if each.value]
        named = [each.labels for each in samples if each.name == f"ray_{name}"]
        if any(tags.items() <= labels.items() for labels in named):
            return
        time.sleep(0.5)
    raise AssertionError(f"{name} is not exported")


def replicas_of(app: str) -> list[int]:
    """Processes of the replicas of an application; waits until there are some."""
    for _ in range(100):
        found = [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if (line := process.info["cmdline"]) and f"ray::ServeReplica:{app}-" in line[0]
        ]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("no replica is running")
