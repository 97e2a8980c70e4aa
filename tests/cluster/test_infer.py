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
import torch
from prometheus_client.parser import text_string_to_metric_families

from raybias import config, methods
from raybias.engine.adapters.soft_prompt import load_soft_prompt, save_soft_prompt
from raybias.engine.backbone import load_backbone
from raybias.engine.scoring.causal import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods.base import PARTS, Shard
from raybias.planning.machine import Layout, ResourceRequest
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.tasks import Task
from raybias.planning.workload import shards_of
from raybias.runtime.graph import Grant
from raybias.runtime.metrics import Meter
from raybias.runtime.predict import replica
from raybias.runtime.predict.files import ShardFiles
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Advance, Done, Reporter
from raybias.runtime.workers import Reading
from raybias.schema import ITEMS, PREDICTIONS, OutputSpec
from raybias.storage import Store
from support.tiny import save_model, texts

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

ITEM_COUNT, ROWS, PROMPT = 250, 32, 4
RUNS = ("tiny.set.soft_prompt.lr0.001.s1", "tiny.set.soft_prompt.lr0.001.s2")

TUNED = OutputSpec("predictions", PREDICTIONS)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> config.Backbone:
    """A random OPT."""
    folder = save_model(tmp_path_factory.mktemp("tiny"))
    return config.Backbone(id=str(folder), name="tiny", dtype="float32", bos="prepend")


def filled_store(folder: Path, spec: config.Backbone) -> Store:
    """Items of uneven lengths and two random adapters."""
    store = Store(folder)
    rows = [
        {
            "item_id": f"i{i:04d}",
            "label": i % 3,
            "attribute": "colour",
            "group": "red" if i % 2 else "blue",
            "text": text,
            "template_id": f"t{i % 7}",
            "term": "",
        }
        for i, text in enumerate(texts(ITEM_COUNT, seed=3))
    ]
    store.write_table("items/mine.parquet", pa.Table.from_pylist(rows, schema=ITEMS))
    for seed, run_id in enumerate(RUNS):
        prompt_PD = torch.randn(PROMPT, 32, generator=torch.Generator().manual_seed(seed))
        save_soft_prompt(store, f"adapters/{run_id}", prompt_PD, spec=spec, record={})
    return store


@pytest.fixture(scope="module")
def expected(
    tmp_path_factory: pytest.TempPathFactory, spec: config.Backbone
) -> dict[str, np.ndarray]:
    """Logits of the engine alone, item by item."""
    store = filled_store(tmp_path_factory.mktemp("expected"), spec)
    backbone = load_backbone(spec)
    scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, config.Verbalizer().words()))
    texts = store.read_table("items/mine.parquet")["text"].to_pylist()
    logits = {}
    for run_id in RUNS:
        prompt_PD = load_soft_prompt(store, f"adapters/{run_id}", width=backbone.width)
        parts = [scorer.score(backbone.encoder.encode([text]), prompt_PD).numpy() for text in texts]
        logits[run_id] = np.concatenate(parts)
    return logits


def plan_of(replicas: int, tokens: int = 4096) -> ScorePlan:
    return ScorePlan(
        backbone="tiny",
        method="soft_prompt",
        replicas_min=replicas,
        replicas_max=replicas,
        need=ResourceRequest(cpus=1, gpus=0),
        replica_cpus=0.75,
        data_cpus=0.5,
        layout=Layout(tokens),
        rows_per_shard=ROWS,
        items={},
        shards=0,
        runs=len(RUNS),
        memory=(),
        device_memory=0,
    )


def all_shards() -> list[Shard]:
    runs = [
        {"run_id": run_id, "model": "tiny", "method": "soft_prompt", "dataset": "set"}
        for run_id in RUNS
    ]
    return shards_of(runs, {"mine": ITEM_COUNT}, ROWS, TUNED)


APP = "raybias-test"
METER = Meter(study="mine", stage="score", model="tiny")


def reading_of(
    store: Store, spec: config.Backbone, plan: ScorePlan, shards: Sequence[Shard]
) -> Reading:
    return Reading(
        name="test",
        context=plan.context(spec, config.Verbalizer().words()),
        methods=(methods.SoftPrompt(prompt_length=PROMPT),),
        plan=plan,
        store=store,
        todo=tuple(shards),
        meter=METER,
    )


def granted(slots: int) -> Grant:
    """What the graph grants a reading."""
    task = Task(key="read/tiny/soft_prompt", kind="read", backbone="tiny", seconds=1.0)
    return Grant(task, slots, slots, {}, frozenset(), threading.Event(), lambda task, work: None)


def read(store: Store) -> pl.DataFrame:
    names = store.files("predictions", suffix=".parquet", recursive=True)
    tables = [store.read_table(name) for name in names]
    assert all(table.schema == PREDICTIONS for table in tables)
    frame = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame


def check(store: Store, expected: dict[str, np.ndarray]) -> None:
    """Every item once per run, in order, with the engine's own logits and labels."""
    assert ShardFiles(store, all_shards(), TUNED).todo == []
    frame = read(store)
    assert frame.height == ITEM_COUNT * len(RUNS)
    items = store.read_table("items/mine.parquet")
    for run_id in RUNS:
        rows = frame.filter(pl.col("run_id") == run_id)
        for name in ("item_id", "label", "group", "template_id"):
            assert rows[name].to_list() == items[name].to_pylist()
        scores = np.array(rows["scores"].to_list())
        np.testing.assert_allclose(scores, expected[run_id], atol=2e-5)
        assert rows["pred"].to_list() == expected[run_id].argmax(axis=1).tolist()


@pytest.mark.slow
def test_one_replica_gives_the_engines_predictions(
    tmp_path: Path, spec: config.Backbone, expected: dict[str, np.ndarray]
) -> None:
    """Its two runs are whole by the end, so each is one file; no part is left."""
    store, plan = filled_store(tmp_path, spec), plan_of(1)
    done = list[Done]()

    def read(shards: Sequence[Shard], advance: Advance) -> None:
        def told(count: int = 1, **what: Any) -> None:
            advance(count, **what)
            done.append(what["done"])

        reading = reading_of(store, spec, plan, shards)
        replicas = Replicas(APP, reading)
        with replicas.held(granted(1)):
            replicas.read(reading, granted(1), told, max_failures=3)
            assert metric("raybias_rows_total", least=ITEM_COUNT * len(RUNS))
            assert metric("raybias_tokens_total", least=sum(each.tokens for each in done))
            assert metric("raybias_busy_seconds_total", least=1e-6) > 0
        replicas.close()

    ShardFiles(store, all_shards(), TUNED).complete("test", read, Reporter(), starting="")
    assert [each.shard for each in done] == all_shards()
    assert len(store.files("predictions", recursive=True)) == len(RUNS)
    assert not store.files(PARTS, recursive=True)
    check(store, expected)


def test_killed_replica_and_broken_files_are_made_good(
    tmp_path: Path, spec: config.Backbone, expected: dict[str, np.ndarray]
) -> None:
    """Two replicas, few tokens a pass, another order; one dies, and what is whole is not redone."""
    store, plan = filled_store(tmp_path, spec), plan_of(2, 64)
    order = np.random.default_rng(5).permutation(len(all_shards()))
    shards = [all_shards()[i] for i in order]
    reading = reading_of(store, spec, plan, shards)
    replicas, done = Replicas(APP, reading), list[Done]()

    def kill_one(count: int = 1, **told: Any) -> None:
        done.append(told["done"])
        if len(done) == 1:
            # The one that works by now, held first, so that requests are at it when it dies.
            found = map(psutil.Process, replicas_of(APP))
            working = max(found, key=lambda each: each.cpu_times().user)
            working.suspend()
            threading.Timer(0.5, working.kill).start()

    replicas.read(reading, granted(2), kill_one, max_failures=3)
    assert len(done) == len(shards)
    assert sum(each.retries for each in done) <= replica.REQUESTS_PER_REPLICA

    torn, short, lost, whole = (shard.file for shard in shards[:4])
    store.write_bytes(torn, store.read_bytes(torn)[:-20])
    store.write_table(short, store.read_table(short).slice(0, 3))
    store.delete(lost)
    before = {name: times(tmp_path, name) for name in (shard.file for shard in shards)}
    todo = ShardFiles(store, shards, TUNED).todo
    assert [shard.file for shard in todo] == [torn, short, lost]
    assert not store.exists(torn)
    # With one that a replica finished after its driver had died.
    again = reading_of(store, spec, plan, [*todo, shards[3]])
    replicas.read(again, granted(2), lambda *_, **__: None, max_failures=3)
    touched = [name for name, then in before.items() if times(tmp_path, name) != then]
    assert touched == [torn, short, lost]
    assert times(tmp_path, whole) is not None
    replicas.close()
    ShardFiles(store, all_shards(), TUNED).complete("test", never, Reporter(), starting="")
    check(store, expected)


def never(shards: Sequence[Shard], advance: Advance) -> None:
    raise AssertionError(shards)


def metric(name: str, *, least: float) -> float:
    """The sum over processes that Ray's agent exports of a metric, once it is `least`."""
    tags = {"study": "mine", "stage": "score", "model": "tiny"}
    (node,) = ray.nodes()
    place = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    for _ in range(60):
        with urllib.request.urlopen(place) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"ray_{name}" and tags.items() <= sample.labels.items()
        ]
        if sum(found) >= least:
            return sum(found)
        time.sleep(0.5)
    raise AssertionError(f"{name} stays at {found}")


def times(folder: Path, name: str) -> int | None:
    path = folder / name
    return path.stat().st_mtime_ns if path.exists() else None


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
