"""Small studies one after another on one cluster, for as long as asked: does anything grow?

One process runs whole studies through the public API on a Ray that stays up. Beside them an
application with one replica lives through all of it and reads every study's probe once more, so
that a replica's memory is watched over its whole life and not only over a study's. After each
study: what the driver, the replica and Ray's own long-lived processes hold, open files and
threads of the driver, and what the study left behind.

    python benchmarks/soak.py --minutes 30

Exits with 1 if a process grows (the slope's 95% interval lies above zero and an hour of it is
more than a tenth of what the process holds) or if anything was left.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
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
from scipy import stats

import raybias
from raybias.config import Study, parse_study
from raybias.runtime import serve
from raybias.runtime.cluster import connected
from raybias.runtime.infer import score_shards
from raybias.runtime.inventory import read_inventory
from raybias.runtime.metrics import Meter
from raybias.runtime.plan import plan
from raybias.runtime.shards import reading_of, shards_of
from raybias.runtime.stages import ScorePlan
from raybias.storage import Store

#: Studies whose numbers are not judged: what is loaded once is loaded in them.
WARM: Final = 3
#: A slope matters when an hour of it is more than this part of the level.
GROWTH: Final = 0.1
MIB: Final = 2**20
HELD: Final = "soak"
METER: Final = Meter(study="soak", stage="score", model="planted")
#: What Ray calls processes that outlive a study, and the one that is held.
TITLES: Final = {
    "held replica": f"ray::ServeReplica:{HELD}:",
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

    hours: list[float] = field(default_factory=list)
    seen: dict[str, list[float]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def look(self, out: Path) -> None:
        """Note everything once."""
        self.hours.append((time.monotonic() - self.begun) / 3600)
        me = psutil.Process()
        self._note("driver, MiB", _private(me))
        self._note("driver, open files", me.num_fds())
        self._note("driver, threads", me.num_threads())
        below = [(p, _title(p)) for p in me.children(recursive=True)]
        for name, part in TITLES.items():
            mine = [process for process, title in below if part in title]
            self._note(f"{name}, MiB", sum(map(_private, mine)))
        self._note("Ray's processes", len(below))
        self.left += [f"{out.name}: {each}" for each in leftovers(out)]

    def _note(self, name: str, value: float) -> None:
        self.seen.setdefault(name, []).append(value)

    def rows(self) -> list[tuple[Any, ...]]:
        """Per quantity: first judged and last value, slope an hour with interval, verdict."""
        return [(name, *judged(self.hours[WARM:], seen[WARM:])) for name, seen in self.seen.items()]


def judged(hours: Sequence[float], values: Sequence[float]) -> tuple[float, float, str, str]:
    """First and last value, the slope an hour with its 95% interval, and a verdict."""
    if len(set(values)) == 1:
        return values[0], values[-1], "0", "flat"
    fit = stats.linregress(hours, values)
    half = fit.stderr * stats.t.ppf(0.975, len(values) - 2)
    level = sum(values) / len(values)
    grows = fit.slope - half > 0 and fit.slope > GROWTH * level
    slope = f"{fit.slope:+.1f} [{fit.slope - half:+.1f}, {fit.slope + half:+.1f}]"
    return values[0], values[-1], slope, "grows" if grows else "flat"


def _private(process: psutil.Process) -> float:
    """MiB that would be free if the process ended."""
    with suppress(psutil.NoSuchProcess):
        return float(process.memory_full_info().uss / MIB)
    return 0.0


def _title(process: psutil.Process) -> str:
    try:
        return str((process.cmdline() or [""])[0])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def leftovers(out: Path) -> list[str]:
    """What a finished study left in the cluster or in OUT, after a moment's patience."""
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
    """The demonstration's study, cut to seconds."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    study = yaml.safe_load(text)
    study["methods"][0] |= {
        "seeds": [1001, 1002], "keep": 2, "max_steps": 40, "early_stop": {"after_step": 40},
    }  # fmt: skip
    study["limit"] = 240
    study["resources"] = {"train_workers": 1, "replicas_max": 1, "rows_per_shard": 24}
    return parse_study(study).resolve()


def read_again(study: Study, out: Path, scoring: ScorePlan) -> None:
    """Have the held replica read a study's probe with its adapters."""
    store = Store(out)
    rows = [row for row in store.read_table("runs.parquet").to_pylist() if row["selected"]]
    shards = shards_of(rows, scoring.items, scoring.rows_per_shard, reading_of(study.methods[0]))
    for _ in score_shards(HELD, shards, scoring, store, max_failures=0, meter=METER):
        pass
    store.delete_folder("predictions")


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    out: workload.OutOption = None,
) -> None:
    """Run studies until the time is up, then judge."""
    torch.set_num_threads(1)
    logging.getLogger("ray").setLevel(logging.ERROR)
    study, watch = small_study(), Watch()
    # The held replica finds adapters where one link points: at the newest OUT.
    place = Path(tempfile.mkdtemp(prefix="soak"))
    newest = place / "newest"
    ray.init(
        address="local", num_cpus=4, log_to_driver=False, logging_level="ERROR",
        _system_config=SYSTEM,
    )  # fmt: skip
    with connected():
        scoring = plan(study, read_inventory()).scoring[0]
        held = serve.scorers(
            HELD, scoring, spec=study.backbones[0], methods=study.methods,
            verbalizer=study.verbalizer, out=str(newest), meter=METER,
        )  # fmt: skip
        newest.mkdir()
        with held:
            while time.monotonic() - watch.begun < 60 * minutes:
                number = len(watch.hours) + 1
                fresh = place / f"out{number}"
                raybias.run(study, out=fresh)
                for name in ("adapters", "items", "runs.parquet"):
                    _replace(newest / name, fresh / name)
                read_again(study, newest, scoring)
                watch.look(fresh)
                shutil.rmtree(fresh)
                print(f"{number}: {[f'{v[-1]:.0f}' for v in watch.seen.values()]}", flush=True)
    ray.shutdown()
    shutil.rmtree(place)
    sys.exit(tell(watch, minutes=minutes, out=out))


def _replace(target: Path, source: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def tell(watch: Watch, *, minutes: float, out: Path | None) -> int:
    """Publish the verdict; gives back the exit code."""
    if len(watch.hours) < WARM + 3:
        print(f"{len(watch.hours)} studies are too few to judge", file=sys.stderr)
        return 2
    rows = watch.rows()
    bad = watch.left + [f"{row[0]} grows" for row in rows if row[-1] == "grows"]
    parts = [
        f"{len(watch.hours)} studies; the first {WARM} are not judged.",
        workload.markdown(rows, ("after each study", "first", "last", "slope an hour", "verdict")),
        f"Left behind: {'; '.join(watch.left) or 'nothing'}.",
        f"Verdict: {'; '.join(bad) or 'flat, and nothing left'}.",
    ]
    workload.publish(
        f"{minutes:g} minutes of small studies on one cluster", parts,
        device="cpu", peer="ray", out=out,
    )  # fmt: skip
    return int(bool(bad))


if __name__ == "__main__":
    typer.run(main)
