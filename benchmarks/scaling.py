"""Weak scaling of scoring: measured on one machine, simulated for a thousand replicas.

Three parts. `real` has one and two replicas of one thread score the same work. `idle` runs the
whole pipeline with replicas that sleep instead of computing, and takes the processor seconds of
every process: what a shard costs the driver, a caller, a replica, and what a replica costs Serve's
controller. A replica is a process, as many as this machine bears, or one of many that a process
stands for (`--declared`), up to a thousand. `simulated` puts these costs into a queueing network of
up to a thousand replicas, which shows what is the limit and what mends it.

    python benchmarks/scaling.py --idle 4 --idle 16 --declared 1000

Beside other work, RAY_worker_niceness=0 gives Ray's processes their share of the processors.

The simulation wants simpy (`pip install -c constraints.txt '.[bench]'`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import psutil
import pyarrow as pa
import simpy
import torch
import typer
import workload
from pipeline import PROMPT, fill
from ray import serve as ray_serve

from raybias.config import Backbone, Verbalizer
from raybias.methods import SoftPrompt
from raybias.methods.base import Shard
from raybias.planning.shards import shards_of
from raybias.planning.stage_plans import ScorePlan
from raybias.runtime.metrics import Meter
from raybias.runtime.predict import replica, stream
from raybias.runtime.predict.stream import score_shards
from raybias.runtime.ray_session import connected
from raybias.schema import PREDICTIONS, OutputSpec
from raybias.storage import Store

#: Rows of a shard in all parts.
ROWS: Final = 256
METER: Final = Meter(study="bench", stage="score", model="m")
#: Seconds that a put to an object store takes, and puts a second that a prefix of S3 takes
#: (docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html).
PUT_S: Final = 0.05
PUTS_PER_S: Final = 3500
#: Shards of the simulation for each replica.
DEPTH: Final = 20
#: How Ray titles the processes that a shard or a replica costs something.
TITLES: Final = {
    "replica": "ray::ServeReplica",
    "caller": "ray::MapWorker",
    "controller": "ray::ServeController",
    "gcs": "gcs_server",
    "raylet": "raylet/raylet",
}


@dataclass(frozen=True)
class Costs:
    """Processor seconds, of a shard where nothing else is said."""

    driver: float
    caller: float
    replica: float
    """Beside its computing."""
    ray: float
    """Of the head's own processes, GCS and raylet."""
    controller: float
    """Of Serve's controller, a second and replica."""
    put: float = PUT_S
    """Seconds of one put; the replica computes the next shard meanwhile."""


class Idle:
    """A replica that sleeps, or `slots` of them, and commits rows as wide as real ones."""

    def __init__(self, seconds: float, out: str, slots: int) -> None:
        self.seconds, self.store = seconds, Store(out)
        self.turn = asyncio.Semaphore(slots)

    async def score(self, shard: Shard, items: pa.Table) -> int:
        """As `serve.Scorer.score`."""
        async with self.turn:
            await asyncio.sleep(self.seconds)
        n = items.num_rows
        of_shard = {"style": "", "pred": 0, "parsed": True, "answer": "", **asdict(shard)}
        columns = {name: [of_shard[name]] * n for name in PREDICTIONS.names if name in of_shard}
        columns |= {name: items[name].to_pylist() for name in items.schema.names}
        columns["scores"] = np.random.default_rng(0).normal(size=(n, 3)).tolist()
        made = {name: columns[name] for name in PREDICTIONS.names}
        table = pa.table(made, schema=PREDICTIONS)
        await asyncio.to_thread(self.store.write_table, shard.file, table)
        return 0


def plan_of(replicas: int, *, cpus: float, tokens: int = 4096) -> ScorePlan:
    """Make a plan of so many replicas from the start."""
    return ScorePlan(
        backbone="m", method="soft_prompt", replicas_min=replicas, replicas_max=replicas,
        threads=1, replica_cpus=cpus, gpus=0, data_cpus=0.5, tokens_per_batch=tokens,
        rows_per_shard=ROWS, items={}, runs=0, shards=0, memory=(), device_memory=0,
    )  # fmt: skip


def real(place: Path, *, shape: str, items: int, runs: int) -> list[tuple[int, float]]:
    """Rows a second with one and with two replicas."""
    folder = workload.save_model(
        place / "model", shape=shape, dtype="float32", device="cpu", merges=None
    )
    spec = Backbone.model_validate({"id": str(folder), "dtype": "float32"})
    width = workload.SHAPES[shape][0]
    found = []
    for replicas in (1, 2):
        store = Store(place / f"real{replicas}")
        shards = fill(
            store, spec, texts=workload.items(None, items), runs=runs * replicas, width=width
        )
        plan = plan_of(replicas, cpus=0.75)
        held = replica.scorers(
            "bench", plan, plan.context(spec, Verbalizer().words()),
            [SoftPrompt(prompt_length=PROMPT)], out=store.uri, meter=METER,
        )  # fmt: skip
        with held as app:
            seconds = _seconds(app, shards, plan, store)
        found.append((replicas, sum(shard.rows for shard in shards) / seconds))
    return found


def _seconds(app: str, shards: list[Shard], plan: ScorePlan, store: Store) -> float:
    begun = time.perf_counter()
    for _ in score_shards(app, shards, plan, store, max_failures=0, meter=METER):
        pass
    return time.perf_counter() - begun


@contextmanager
def idle_replicas(plan: ScorePlan, seconds: float, out: str, slots: int) -> Iterator[str]:
    """Make an application of replicas that sleep, `slots` of them a process."""
    deployment = replica.scorer_deployment(
        "Scorer", cpus=plan.replica_cpus, gpus=plan.gpus, replicas=plan.replicas_max // slots
    )
    idle = deployment(Idle).options(max_ongoing_requests=replica.REQUESTS_PER_REPLICA * slots)
    app = idle.bind(seconds, out, slots)
    ray_serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    try:
        replica.deploy(app, "idle")
        yield "idle"
    finally:
        ray_serve.delete("idle")


def busy() -> dict[str, float]:
    """Processor seconds of this process and of Ray's, by kind."""
    found: dict[str, float] = defaultdict(float)
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            title = (process.cmdline() or [""])[0]
            kinds = [kind for kind, part in TITLES.items() if part in title]
            kind = "driver" if process == me else (kinds or ["other"])[0]
            times = process.cpu_times()
            found[kind] += times.user + times.system
    return found


@dataclass(frozen=True)
class Measured:
    """What replicas that sleep cost.

    Attributes
    ----------
    begin: seconds until callers are there.
    rate: shards a second, of the middle half of them.
    loads: processors that each kind of process keeps busy meanwhile.
    """

    replicas: int
    seconds: float
    begin: float
    rate: float
    costs: Costs
    loads: Mapping[str, float]

    def row(self) -> tuple[object, ...]:
        """Return the table's row; milliseconds of processor."""
        costs = self.costs
        each = (costs.driver, costs.caller, costs.replica, costs.ray, costs.controller)
        asleep = 100 * self.rate * self.seconds / self.replicas
        return self.replicas, self.seconds, self.rate, asleep, *(1000 * cost for cost in each)


def idle(place: Path, replicas: int, *, seconds: float, shards_each: int, slots: int) -> Measured:
    """Measure a shard's cost and shards a second, with so many replicas that sleep `seconds`.

    What callers cost to begin with is in a first pass over few shards, and taken off.
    """
    store = Store(place / f"idle{replicas}")
    spec = Backbone(id="planted", name="m", dtype="float32")
    fill(store, spec, texts=workload.items(None, ROWS), runs=0, width=16)
    runs = [
        {"run_id": f"r{n}", "model": "m", "method": "soft_prompt", "dataset": "d"}
        for n in range(replicas * shards_each)
    ]
    shards = shards_of(runs, {"probe": ROWS}, ROWS, OutputSpec("predictions", PREDICTIONS))
    plan, few = plan_of(replicas, cpus=0.01), replicas // slots
    with idle_replicas(plan, seconds, store.uri, slots) as app:
        passes = []
        for part in (shards[:few], shards[few:]):
            before = busy()
            taken = _seconds(app, part, plan, store)
            after = busy()
            passes.append((taken, {kind: after[kind] - before[kind] for kind in after}))
        before = busy()
        time.sleep(10)
        at_rest = (busy()["controller"] - before["controller"]) / 10
    (begin, first), (taken, second) = passes
    controller = max(at_rest, second["controller"] / taken)
    begin -= seconds
    taken -= begin
    spent = {kind: max(0.0, second[kind] - first[kind]) for kind in second}
    each = {kind: spent[kind] / (len(shards) - 2 * few) for kind in spent}
    costs = Costs(
        driver=each["driver"],
        caller=each["caller"],
        replica=each["replica"],
        ray=each["gcs"] + each["raylet"],
        controller=controller / (replicas // slots),
    )
    loads = {kind: spent[kind] / taken for kind in ("driver", "caller", "replica", "gcs", "raylet")}
    loads |= {"controller": controller}
    return Measured(replicas, seconds, begin, _middle_rate(store), costs, loads)


def _middle_rate(store: Store) -> float:
    """Shards a second, from when the files were written, of the middle half of them."""
    ends = sorted(
        file.stat().st_mtime for file in Path(store.uri).rglob("predictions/**/*.parquet")
    )
    quarter = len(ends) // 4
    return (len(ends) - 2 * quarter) / (ends[-quarter - 1] - ends[quarter])


def put_seconds(place: Path) -> float:
    """Seconds of one atomic write of a shard's file into a local folder."""
    store = Store(place / "puts")
    table = pa.table({"scores": np.random.default_rng(0).normal(size=ROWS)})
    begun = time.perf_counter()
    for n in range(100):
        store.write_table(f"{n}.parquet", table)
    return (time.perf_counter() - begun) / 100


@dataclass(frozen=True)
class Outcome:
    """A simulated run."""

    efficiency: float
    """Part of the replicas' time that they computed."""
    limit: str
    """What was busiest beside the replicas, and how busy."""


def simulate(costs: Costs, *, replicas: int, seconds: float, drivers: int = 1) -> Outcome:
    """Simulate a closed queueing network: driver, callers, replicas, storage, and back.

    Each of `drivers` has its share of the replicas, as studies or backbones side by side have.
    A shard waits for its driver's one thread, a caller's thread and interpreter, a replica, and
    the storage; computing takes `seconds` with a standard deviation of a fifth.
    """
    mine = replicas // drivers
    env = simpy.Environment()
    storage = simpy.Resource(env)
    random = np.random.default_rng(replicas)
    spent: dict[str, float] = defaultdict(float)
    calls = stream._CALLS * stream.shards_per_block(mine)
    callers = math.ceil(mine * (replica.REQUESTS_PER_REPLICA + 1) / calls)

    def use(place: simpy.Resource, kind: str, took: float) -> Generator[Any, Any, None]:
        with place.request() as turn:
            yield turn
            yield env.timeout(took)
        spent[kind] += took

    def call(driver: simpy.Resource, python: simpy.Resource, pool: simpy.Resource,
             todo: Iterator[int]) -> Generator[Any, Any, None]:  # fmt: skip
        for _ in todo:
            yield from use(driver, "driver", costs.driver)
            yield from use(python, "caller", costs.caller)
            computing = max(0.1 * seconds, random.normal(seconds, seconds / 5))
            yield from use(pool, "replica", costs.replica + computing)
            spent["computing"] += computing
            yield from use(storage, "storage", 1 / PUTS_PER_S)
            yield env.timeout(costs.put)

    for _ in range(drivers):
        driver, pool = simpy.Resource(env), simpy.Resource(env, capacity=mine)
        todo = iter(range(mine * DEPTH))
        for _ in range(callers):
            python = simpy.Resource(env)
            for _ in range(calls):
                env.process(call(driver, python, pool, todo))
    env.run()
    loads = {
        "driver": spent["driver"] / drivers / env.now,
        "caller": spent["caller"] / (drivers * callers) / env.now,
        "controller": costs.controller * replicas,
        "storage": spent["storage"] / env.now,
    }
    kind = max(loads, key=loads.__getitem__)
    return Outcome(spent["computing"] / (env.now * mine * drivers), f"{kind} {loads[kind]:.0%}")


def simulated(few: Costs, many: Costs) -> str:
    """Format the table: efficiency by replicas and seconds of a shard.

    Parameters
    ----------
    few, many: costs where a block holds one shard, and several.
    """
    rows: list[tuple[object, ...]] = []
    for seconds in (0.5, 2.0, 8.0, 32.0):
        found = [
            simulate(replace(costs, put=PUT_S), replicas=n, seconds=seconds)
            for n, costs in ((10, few), (100, many), (1000, many))
        ]
        rows.append((f"{seconds:g} s", *(f"{o.efficiency:.0%} ({o.limit})" for o in found)))
    return workload.markdown(rows, ("a shard computes", "10 replicas", "100", "1,000"))


def main(
    *,
    shape: workload.ShapeOption = "125m",
    items: Annotated[int, typer.Option(help="Items of the real part.")] = 1024,
    runs: Annotated[int, typer.Option(help="Runs a replica of the real part.")] = 3,
    many: Annotated[list[int], typer.Option("--idle", help="Sleeping replicas.")] = [4, 16],  # noqa: B006
    seconds: Annotated[float, typer.Option(help="What a sleeping replica sleeps.")] = 0.5,
    declared: Annotated[int, typer.Option(help="Replicas, many to a process.")] = 1000,
    slots: Annotated[int, typer.Option(help="Of them in a process.")] = 100,
    long: Annotated[float, typer.Option(help="What each of these sleeps.")] = 30.0,
    out: workload.OutOption = None,
) -> None:
    """Measure, then simulate."""
    torch.set_num_threads(1)
    logging.getLogger("ray").setLevel(logging.ERROR)
    place = Path(tempfile.mkdtemp())
    with connected():
        speeds = real(place, shape=shape, items=items, runs=runs)
        print(f"real: {speeds}")
        measured = [idle(place, n, seconds=seconds, shards_each=40, slots=1) for n in many]
        crowd = idle(place, declared, seconds=long, shards_each=4, slots=slots)
    local_put = put_seconds(place)
    shutil.rmtree(place)
    loads = ", ".join(f"{kind} {load:.2f}" for kind, load in crowd.loads.items())
    parts = [
        workload.markdown(
            [(n, rate, rate / n / speeds[0][1]) for n, rate in speeds],
            ("replicas of one thread", "rows/s", "of one replica's, each"),
        ),
        f"Replicas that sleep for a shard of {ROWS} rows, on this machine's cores; milliseconds of"
        " processor a shard, for the controller a second and process:",
        workload.markdown(
            [each.row() for each in (*measured, crowd)],
            ("replicas", "sleep, s", "shards/s", "% asleep", "driver", "caller", "replica",
             "gcs + raylet", "controller"),
        ),
        f"The last line's are {slots} to a process, its blocks {stream.shards_per_block(declared)}"
        f" shards each; processors that it keeps busy: {loads}. {crowd.begin:.0f} s until its"
        " callers are there.",
        f"A shard's file takes {1000 * local_put:.1f} ms into a local folder. Simulated with these"
        f" costs and puts of {1000 * PUT_S:.0f} ms, {PUTS_PER_S} a second at most: part of the time"
        " that replicas compute, and what is busiest beside them.",
        simulated(measured[-1].costs, crowd.costs),
    ]  # fmt: skip
    workload.publish("Weak scaling of scoring", parts, device="cpu", peer="ray", out=out)


if __name__ == "__main__":
    typer.run(main)
