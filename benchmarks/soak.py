"""Small studies one after another on one cluster, for as long as asked: does anything grow?

One process runs whole studies through the public API on a Ray that stays up. Beside them one
replica lives through all of it and reads every study's probe once more. After each study: what the
driver, the replica and Ray's own processes hold, open files and threads of the driver, and what
the study left behind.

    python benchmarks/soak.py --minutes 30

Exits with 1 if the driver or the replica grows (the 95% interval of its slope lies above zero, and
an hour of it is more than a tenth of what it holds) or if anything was left. Growth of Ray's own
processes is told.
"""

from __future__ import annotations

import gc
import logging
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import psutil
import ray
import torch
import typer
import yaml
from harness import OutOption, markdown, publish
from pipeline import granted
from ray import serve as ray_serve
from scipy import stats

import raybias
from raybias.config import Study, parse_study
from raybias.methods import methods_of
from raybias.methods.base import PARTS
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import ScorePlan
from raybias.planning.workload import shards_of
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
HELD: Final = "soak"
DRIVER: Final = "driver, MiB"
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
class Watch:
    """What was seen after each study."""

    seen: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    left: list[str] = field(default_factory=list)

    def look(self, out: Path) -> None:
        """Note everything once."""
        me = psutil.Process()
        # Python frees what refers to itself when it likes.
        gc.collect()
        below = me.children(recursive=True)
        noted = {DRIVER: _held(me), "driver, open files": me.num_fds(),
                 "driver, threads": me.num_threads(), "Ray's processes": len(below)}  # fmt: skip
        titled = [(process, _title(process)) for process in below]
        for title, part in TITLES.items():
            mine = [process for process, shown in titled if part in shown]
            noted[f"{title}, MiB"] = sum(map(_held, mine))
        for what, value in noted.items():
            self.seen[what].append(value)
        self.left += [f"{out.name}: {each}" for each in leftovers(out)]
        print(f"{out.name}: {[f'{value:.1f}' for value in noted.values()]}", flush=True)

    def rows(self, an_hour: float) -> list[tuple[str, float, float, str, str]]:
        """Per quantity: first judged and last value, slope, and whether it grows."""
        found = []
        for name, seen in self.seen.items():
            values = seen[math.ceil(len(seen) / WARM) :]
            fit = stats.linregress(range(len(values)), values)
            half = fit.stderr * stats.t.ppf(0.975, len(values) - 2)
            matters = fit.slope * an_hour > GROWTH * statistics.mean(values)
            grows = "grows" if matters and fit.slope > half else "flat"
            slope = f"{fit.slope:+.3f} [{fit.slope - half:+.3f}, {fit.slope + half:+.3f}]"
            found.append((name, values[0], values[-1], slope, grows))
        return found


def _held(process: psutil.Process) -> float:
    """MiB that the process wrote itself: pages of libraries come and go with their other users."""
    with suppress(psutil.NoSuchProcess):
        return float(sum(each.anonymous for each in process.memory_maps()) / 2**20)
    return 0.0


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return str((process.cmdline() or [""])[0])
    return ""


def leftovers(out: Path) -> list[str]:
    """List what a finished study left in the cluster or in OUT, after a moment's patience."""
    for _ in range(40):
        groups = ray.util.placement_group_table().values()
        found = [f"placement group {each['name']}" for each in groups if each["state"] != "REMOVED"]
        live = ray._private.state.actors(actor_state_name="ALIVE").values()
        names = {str(actor["ActorClassName"]) for actor in live}
        found += [f"actor {n}" for n in names if HELD not in n and not any(k in n for k in KEPT)]
        apps = [name for name in ray_serve.status().applications if not name.startswith(HELD)]
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
        context=scoring.context(study.backbones[0], study),
        methods=tuple(methods),
        plan=scoring,
        store=store,
        todo=tuple(
            shards_of(rows, scoring.items, scoring.rows_per_shard, methods[0].output())
        ),
        meter=Meter(study=HELD, stage="score", model="planted"),
    )  # fmt: skip


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    out: OutOption = None,
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
    watch, begun = Watch(), time.monotonic()
    with connected():
        scoring = plan(PreparedStudy.of(study), read_inventory()).scoring[0]
        newest.mkdir()
        held = Replicas(HELD, reading_of(study, newest, scoring))
        with held.held(granted(1)):
            while (spent := time.monotonic() - begun) < 60 * minutes:
                fresh = place / f"out{len(watch.seen[DRIVER]) + 1}"
                raybias.run(study, out=fresh)
                shutil.rmtree(newest)
                shutil.copytree(fresh, newest, ignore=shutil.ignore_patterns("predictions", PARTS))
                reading = reading_of(study, newest, scoring)
                held.read(reading, granted(1), lambda *_, **__: None, max_failures=0)
                watch.look(fresh)
                shutil.rmtree(fresh)
    ray.shutdown()
    shutil.rmtree(place)
    studies = len(watch.seen[DRIVER])
    if studies < 5:
        sys.exit(f"{studies} studies are too few")
    rows = watch.rows(studies * 3600 / spent)
    ours = [row for row in rows if row[0].startswith(("driver", "held"))]
    bad = watch.left + [f"{row[0]} grows" for row in ours if row[-1] == "grows"]
    parts = [
        f"{studies} studies, of which the first {math.ceil(studies / WARM)} are not judged.",
        markdown(rows, ("after each study", "first", "last", "a study", "by a tenth an hour")),
        f"Left behind: {'; '.join(watch.left) or 'nothing'}.",
        f"Verdict: {'; '.join(bad) or 'flat, and nothing left'}.",
    ]
    publish(f"{minutes:g} minutes of small studies on one cluster", parts, device="cpu", out=out)
    sys.exit(int(bool(bad)))


if __name__ == "__main__":
    typer.run(main)
