"""Small studies one after another on one cluster, for as long as asked: does anything grow?

One process runs whole studies through the public API on a Ray that stays up. Beside them an
application with one replica lives through all of it and reads every study's probe once more, so
that a replica's memory is watched over its whole life and not only over a study's. After each
study: what the driver, the replica and Ray's own long-lived processes hold, open files and
threads of the driver, and what the study left behind.

Then, for a third of that time, the peer: on the same cluster, Ray alone does what a study asks of
it, with nothing in it. What Ray keeps of that, it keeps of a study too.

    python benchmarks/soak.py --minutes 30

Exits with 1 if a process grows by more than Ray alone makes it grow (the 95% interval of the
difference lies above zero, and an hour of it is more than a tenth of what the process holds) or
if anything was left.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import ray
import torch
import typer
import workload
import yaml
from ray import serve as ray_serve
from ray.data import ActorPoolStrategy
from ray.serve.config import AutoscalingConfig
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.config import LoggingConfig
from ray.util.queue import Queue
from scipy import stats

import raybias
from raybias.config import Study, parse_study
from raybias.methods import methods_of
from raybias.methods.base import PARTS
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.tasks import Task
from raybias.planning.workload import shards_of
from raybias.runtime.graph import Grant
from raybias.runtime.inventory import read_inventory
from raybias.runtime.predict.shards import Reading
from raybias.runtime.predict.stream import Replicas
from raybias.runtime.progress import Meter
from raybias.runtime.ray_session import connected
from raybias.storage import Store
from raybias.study_record import read_runs

#: The first of so many studies are not judged: what is loaded once is loaded in them, and the
#: allocator's free lists fill.
WARM: Final = 4
#: Growth matters when an hour of it is more than this part of the level.
GROWTH: Final = 0.1
MIB: Final = 2**20
HELD: Final = "soak"
METER: Final = Meter(study="soak", stage="score", model="planted")
#: What Ray calls processes that outlive a study, and the one that is held.
TITLES: Final = {
    "held replica": f"ray::ServeReplica:{HELD}-",
    "Serve controller": "ray::ServeController",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
}
#: Actors that Ray itself keeps for the life of a cluster.
KEPT: Final = (
    *("ServeController", "StatsActor", "TrainStateActor", "AutoscalingCoordinator"),
    "ActorLocationTracker",
)
#: Ray remembers the last 100,000 tasks, actors and workers that ended; with so few, filling that
#: memory is not taken for a leak.
SYSTEM: Final = {
    "maximum_gcs_destroyed_actor_cached_count": 20,
    "maximum_gcs_dead_worker_cached_count": 20,
    "task_events_max_num_task_in_gcs": 200,
}


@dataclass
class Slope:
    """Growth a step with its standard error."""

    value: float
    error: float
    freedom: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Slope:
        """By least squares on the number of the step."""
        if len(set(values)) == 1:
            return cls(0, 0, len(values) - 2)
        fit = stats.linregress(range(len(values)), values)
        return cls(fit.slope, fit.stderr, len(values) - 2)

    def __sub__(self, other: Slope) -> Slope:
        error = math.hypot(self.error, other.error)
        return Slope(self.value - other.value, error, min(self.freedom, other.freedom))

    @property
    def half(self) -> float:
        """Half of the 95% interval."""
        return float(self.error * stats.t.ppf(0.975, self.freedom))

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.value - self.half:+.3f}, {self.value + self.half:+.3f}]"


@dataclass
class Watch:
    """What was seen after each step, a study or what Ray alone does of one."""

    minutes: float
    steps: int = 0
    seen: dict[str, list[float]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    @property
    def goes_on(self) -> bool:
        """Whether there is time for another step."""
        return time.monotonic() - self.begun < 60 * self.minutes

    @property
    def judged(self) -> int:
        """The first step that is judged."""
        return math.ceil(self.steps / WARM)

    def look(self, name: str, out: Path) -> None:
        """Note everything once."""
        self.steps += 1
        me = psutil.Process()
        # Python frees what refers to itself when it likes.
        gc.collect()
        self._note("driver, MiB", _held(me))
        # What is in use of them: pages are also kept for what comes next.
        self._note("driver, C heap in use, MiB", _heap_in_use())
        self._note("driver, Python blocks", sys.getallocatedblocks())
        self._note("driver, open files", me.num_fds())
        self._note("driver, threads", me.num_threads())
        below = [(p, _title(p)) for p in me.children(recursive=True)]
        for title, part in TITLES.items():
            mine = [process for process, shown in below if part in shown]
            self._note(f"{title}, MiB", sum(map(_held, mine)))
        self._note("Ray's processes", len(below))
        self.left += [f"{name}: {each}" for each in leftovers(out)]
        print(f"{name}: {[f'{values[-1]:.1f}' for values in self.seen.values()]}", flush=True)

    def _note(self, name: str, value: float) -> None:
        self.seen.setdefault(name, []).append(value)

    def rows(self, peer: Watch) -> list[tuple[Any, ...]]:
        """Per quantity: first judged and last value, slopes of both, verdict."""
        an_hour = 60 / self.minutes * self.steps
        found = []
        for name, seen in self.seen.items():
            values = seen[self.judged :]
            ours, rays = Slope.of(values), Slope.of(peer.seen[name][peer.judged :])
            more = ours - rays
            matters = more.value * an_hour > GROWTH * statistics.mean(values)
            verdict = "grows" if matters and more.value > more.half else "flat"
            found.append((name, values[0], values[-1], str(ours), str(rays), verdict))
        return found


def _held(process: psutil.Process) -> float:
    """MiB that the process wrote itself: pages of libraries come and go with their other users."""
    with suppress(psutil.NoSuchProcess):
        return float(sum(each.anonymous for each in process.memory_maps()) / MIB)
    return 0.0


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _heap_in_use() -> float:
    """MiB that this process has asked malloc for and not freed; Python's small objects aside."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo
    found = ask()
    return float((found.uordblks + found.hblkhd) / MIB)


def _title(process: psutil.Process) -> str:
    try:
        return str((process.cmdline() or [""])[0])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def leftovers(out: Path) -> list[str]:
    """List what a finished study left in the cluster or in OUT, after a moment's patience."""
    for _ in range(40):
        groups = ray.util.placement_group_table().values()
        found = [f"placement group {each['name']}" for each in groups if each["state"] != "REMOVED"]
        live = ray._private.state.actors(actor_state_name="ALIVE").values()
        names = {str(actor["ActorClassName"]) for actor in live}
        found += [f"actor {n}" for n in names if HELD not in n and not any(k in n for k in KEPT)]
        apps = [name for name in ray_serve.status().applications if name != HELD]
        found += [f"application {name}" for name in apps]
        if not found:
            break
        time.sleep(0.5)
    states = [path for path in (out / "train").rglob("*") if path.is_file()]
    return found + [f"file {path.relative_to(out)}" for path in [*states, *out.rglob(".*.tmp")]]


def small_study() -> Study:
    """Return the demonstration's study, cut to seconds."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    study = yaml.safe_load(text)
    study["methods"][0] |= {
        "seeds": [1001, 1002], "keep": 2, "max_steps": 40, "early_stop": {"after_step": 40},
    }  # fmt: skip
    study["limit"] = 240
    study["resources"] = {"train_workers": 1, "replicas_max": 1, "rows_per_shard": 24}
    return parse_study(study)


def reading_of(study: Study, out: Path, scoring: ScorePlan) -> Reading:
    """Return the reading of a study's probe with the adapters that OUT holds."""
    store, methods = Store(out), methods_of(study, study.backbones[0])
    rows = read_runs(store).filter("selected").to_dicts()
    return Reading(
        name=HELD,
        context=scoring.context(study.backbones[0], study.verbalizer.words()),
        methods=tuple(methods),
        plan=scoring,
        store=store,
        todo=tuple(
            shards_of(rows, scoring.items, scoring.rows_per_shard, methods[0].output())
        ),
        meter=METER,
    )  # fmt: skip


def granted() -> Grant:
    """Return what a study's graph grants a reading that has one replica."""
    task = Task(key="read", kind="read", backbone="planted", seconds=1.0)
    return Grant(task, 1, 1, {}, frozenset(), threading.Event(), lambda task: None)


def read_again(held: Replicas, reading: Reading) -> None:
    """Have the held replica read a study's probe with its adapters."""
    held.read(reading, granted(), lambda *_, **__: None, max_failures=0)
    for name in ("predictions", PARTS):
        if reading.store.exists(name):
            reading.store.delete_folder(name)


class Nothing:
    """A replica that answers with what it is asked."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the same row."""
        return row


class Caller:
    """Asks the replicas of an application."""

    def __init__(self, app: str) -> None:
        self.handle = ray_serve.get_app_handle(app)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer as a replica does."""
        return dict(self.handle.remote(row).result())


def do_nothing(config: dict[str, Any]) -> None:
    """Work as a worker of the peer does."""


def ray_alone(name: str, rows: int, place: Path) -> None:
    """Have Ray do what a study asks of it: a queue, a worker, a replica and who calls it."""
    queue = Queue(actor_options={"num_cpus": 0})
    queue.put(name)
    queue.get()
    TorchTrainer(
        do_nothing,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=name, storage_path=str(place), logging_config=LoggingConfig(log_level="CRITICAL")
        ),
    ).fit()
    # Ray Train's own handler would keep its controller alive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    queue.shutdown(force=True)
    replicas = ray_serve.deployment(
        autoscaling_config=AutoscalingConfig(max_replicas=1), graceful_shutdown_wait_loop_s=0.2
    )
    ray_serve.run(replicas(Nothing).bind(), name=name, route_prefix=None)
    # As often as a study and the pass of the held replica begin callers.
    for _ in range(2):
        calls = ray.data.range(rows, override_num_blocks=rows).map(
            Caller, fn_constructor_args=(name,), compute=ActorPoolStrategy(size=1), num_cpus=0
        )
        if len(list(calls.iter_rows())) != rows:
            raise RuntimeError(f"{name}: rows are missing")
    ray_serve.delete(name)
    shutil.rmtree(place / name)


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    out: workload.OutOption = None,
) -> None:
    """Run studies until the time is up, then Ray alone, then judge."""
    torch.set_num_threads(1)
    logging.getLogger("ray").setLevel(logging.ERROR)
    study = small_study()
    # The held replica finds adapters where one link points: at the newest OUT.
    place = Path(tempfile.mkdtemp(prefix="soak"))
    newest = place / "newest"
    ray.init(
        address="local", num_cpus=4, log_to_driver=False, logging_level="ERROR",
        _system_config=SYSTEM,
    )  # fmt: skip
    with connected():
        scoring = plan(PreparedStudy.of(study), read_inventory()).scoring[0]
        newest.mkdir()
        held = Replicas(HELD, reading_of(study, newest, scoring))
        with held.held(granted()):
            watch = Watch(minutes)
            while watch.goes_on:
                fresh = place / f"out{watch.steps + 1}"
                raybias.run(study, out=fresh)
                for name in ("adapters", "items", "runs.parquet"):
                    _replace(newest / name, fresh / name)
                read_again(held, reading_of(study, newest, scoring))
                watch.look(fresh.name, fresh)
                shutil.rmtree(fresh)
            peer = Watch(minutes / 3)
            while peer.goes_on:
                name = f"peer{peer.steps + 1}"
                ray_alone(name, scoring.shards, place)
                peer.look(name, place / name)
    ray.shutdown()
    shutil.rmtree(place)
    sys.exit(tell(watch, peer, out=out))


def _replace(target: Path, source: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def tell(watch: Watch, peer: Watch, *, out: Path | None) -> int:
    """Publish the verdict; gives back the exit code."""
    if min(watch.steps - watch.judged, peer.steps - peer.judged) < 3:
        print(f"{watch.steps} studies and {peer.steps} without are too few", file=sys.stderr)
        return 2
    rows = watch.rows(peer)
    bad = watch.left + [f"{row[0]} grows" for row in rows if row[-1] == "grows"]
    columns = ("after each study", "first", "last", "a study", "Ray alone", "verdict")
    parts = [
        f"{watch.steps} studies, of which the first {watch.judged} are not judged, then "
        f"{peer.steps} times Ray alone, of which the first {peer.judged} are not.",
        workload.markdown(rows, columns),
        f"Left behind: {'; '.join(watch.left) or 'nothing'}.",
        f"Verdict: {'; '.join(bad) or 'flat, and nothing left'}.",
    ]
    workload.publish(
        f"{watch.minutes:g} minutes of small studies on one cluster", parts,
        device="cpu", peer="ray", out=out,
    )  # fmt: skip
    return int(bool(bad))


if __name__ == "__main__":
    typer.run(main)
