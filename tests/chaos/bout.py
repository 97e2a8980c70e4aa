"""One run of a small cut of the demonstration, killed at times that a seed decides."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import psutil
import yaml
from arena import PATIENCE_S, TITLES, Arena, until
from verdict import faults

from raybias.config import TrainingSet
from raybias.probes import training_sentences

SEEDS, EVERY, STEPS = (1001, 1002, 1003, 1004), 10, 150
#: Runs of each pack.
PACK = 2
PAUSE_S = 0.1
STAGES = {
    "tuning": ("worker", "driver", "node"),
    "scoring": ("replica", "driver", "node"),
}
#: How a driver is ended by each kind of kill of one.
DRIVERS = {
    "driver": signal.SIGKILL,
    "terminated": signal.SIGTERM,
    "interrupted": signal.SIGINT,
}
#: Seconds that a driver has for its end.
ENDS_S = 5.0
#: Seconds between what a kill waits for and the kill, at most.
LATEST_S = 1.5
SCRIPT = Path(__file__).with_name("counted_run.py")


@dataclass
class Kill:
    """One kill that was made."""

    kind: str
    stage: str
    at: float
    """Seconds of the epoch, before anything of it was done."""
    done: float = 0.0
    """And after."""
    actors: dict[str, int] = field(default_factory=dict)
    """How many of each kind of actor died by it."""
    repeated: int = 0
    """Shards that were begun again for it."""

    @property
    def bound(self) -> int:
        """Shards that may be: one for each actor that held one."""
        return self.actors.get("replica", 0)


@dataclass
class Bout:
    """What a bout came to."""

    number: int
    kills: list[Kill] = field(default_factory=list)
    steps_again: Counter[str] = field(default_factory=Counter)
    """By method."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def packs(self) -> int:
        """Packs whose worker was killed."""
        return sum(kill.actors.get("worker", 0) for kill in self.kills)

    def beyond(self) -> list[str]:
        """Repeated work over its bound: a shard an actor, an evaluation interval of a pack.

        The states of soft prompts alone are kept at each evaluation; larger ones when they are due.
        """
        found = [
            f"{kill.repeated} shards again after the kill of a {kill.kind} with {kill.actors}"
            for kill in self.kills
            if kill.repeated > kill.bound
        ]
        steps = self.steps_again["soft_prompt"]
        if steps > self.packs * EVERY * PACK:
            found.append(f"{steps} steps again after {self.packs} packs lost workers")
        return found


def write_study(folder: Path, *, limit: int = 240, arms: int = 2) -> Path:
    """The demonstration's study with three methods and so many backbones and training sets."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    study = yaml.safe_load(text)
    method = study["methods"][0]
    method |= {"seeds": list(SEEDS), "keep": 2, "eval_every": EVERY, "max_steps": STEPS}
    method |= {"validation_rows": 48, "early_stop": {"after_step": 90, "window": 5}}
    lora = {name: value for name, value in method.items() if name != "prompt_length"}
    study["methods"] += [lora | {"kind": "lora", "rank": 2}, {"kind": "zero_shot", "seeds": [7]}]
    bos = ("tokenizer", "prepend")[:arms]
    study["backbones"] = [study["backbones"][0] | {"name": f"{b}-bos", "bos": b} for b in bos]
    other = folder / "other"
    other.mkdir()
    for split, rows in training_sentences(TrainingSet(source="planted")).items():
        rows.reverse().write_csv(other / f"{split}.csv")
    study["training"] += [{"source": "file", "name": "other", "data": "other"}][: arms - 1]
    study["limit"] = limit
    study["resources"] = {"train_workers": 2, "rows_per_shard": 12, "max_failures": 50}
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(study), "utf-8")
    return path


def adapters_of(study: Path) -> int:
    """How many runs a study tunes."""
    content = yaml.safe_load(study.read_text("utf-8"))
    tuned = sum("prompt_length" in each or "rank" in each for each in content["methods"])
    return len(content["backbones"]) * len(content["training"]) * tuned * len(SEEDS)


class Run:
    """A driver that is started again when it is killed."""

    def __init__(self, address: str, study: Path, out: Path) -> None:
        self.address, self.study, self.out = address, study, out
        self.said, self.log = out.with_suffix(".said"), out.with_suffix(".log")
        self.log.touch()
        self.driver = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, SCRIPT, "run", self.study, "--out", self.out]
        settings = {"RAYBIAS_CHAOS_LOG": str(self.log), "RAYBIAS_CHAOS_PAUSE": str(PAUSE_S)}
        with self.said.open("a") as stream:
            return subprocess.Popen(
                [*command, "--address", self.address],
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=os.environ | settings | {"OMP_NUM_THREADS": "1"},
            )

    def restart(self, number: signal.Signals) -> None:
        """End the driver by a signal and give the same command again."""
        sent = time.monotonic()
        self.driver.send_signal(number)
        code = self.driver.wait()
        took = time.monotonic() - sent
        # Nobody can answer SIGKILL.
        if number != signal.SIGKILL and (code != 128 + number or took > ENDS_S):
            raise RuntimeError(f"code {code}, {took:.1f} s after {number.name}")
        self.driver = self._started()

    def end(self) -> None:
        """Wait for the driver's own end."""
        if self.driver.wait(timeout=PATIENCE_S) != 0:
            raise RuntimeError(f"the driver failed: {self.said.read_text()[-2000:]}")

    def begun(self) -> list[tuple[float, str]]:
        """When which shard was begun."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(float(at), name) for at, name in lines]

    def steps_again(self) -> Counter[str]:
        """Steps that were tuned twice, by method, as the drivers say."""
        said = re.findall(r", (\w+): .*resumed, (\d+) steps done twice", self.said.read_text())
        counts = Counter[str]()
        for method, steps in said:
            counts[method] += int(steps)
        return counts

    def progress(self, stage: str) -> int:
        """A number that grows while a stage goes on, and is 0 before."""
        if stage == "scoring":
            return len(self.begun())
        marks = list(self.out.glob("train/*/reached/*.json"))
        return max((path.stat().st_mtime_ns for path in marks), default=0)

    def over(self, stage: str) -> bool:
        """Whether a stage is behind."""
        if stage == "tuning":
            tuned = len(list(self.out.glob("adapters/*/raybias.json")))
            return tuned == adapters_of(self.study) or self.driver.poll() is not None
        return self.driver.poll() is not None or (self.out / "report.html").exists()


def undisturbed(study: Path, out: Path) -> None:
    """Run the study to its end in one process, whose results are those of any cluster."""
    Run("none", study, out).end()


def drawn(seed: int, number: int) -> list[tuple[str, str]]:
    """The stage and kind of each kill of a bout."""
    dice = random.Random(f"{seed} {number}")
    counts = {"tuning": dice.choice((1, 2, 3)), "scoring": dice.choice((4, 5, 6))}
    return [(stage, dice.choice(STAGES[stage])) for stage in STAGES for _ in range(counts[stage])]


def fight(
    arena: Arena,
    study: Path,
    out: Path,
    calm: Path,
    *,
    number: int,
    seed: int,
    kills: list[tuple[str, str]],
) -> Bout:
    """Run the study while its parts are killed, and judge what it leaves."""
    bout, begun = Bout(number), time.monotonic()
    dice = random.Random(f"{seed} {number} when")
    run = Run(arena.address, study, out)
    try:
        for stage, kind in kills:
            if (made := _kill(arena, run, stage, kind, dice)) is not None:
                bout.kills.append(made)
        run.end()
        bout.faults = faults(out, calm)
    except (TimeoutError, RuntimeError, subprocess.TimeoutExpired) as error:
        bout.faults = [f"{type(error).__name__}: {error}"]
    finally:
        if run.driver.poll() is None:
            run.driver.kill()
            run.driver.wait()
        arena.fill_up()
    bout.seconds = time.monotonic() - begun
    bout.steps_again = run.steps_again()
    bout.faults += attribute(bout.kills, run.begun())
    return bout


def _kill(arena: Arena, run: Run, stage: str, kind: str, dice: random.Random) -> Kill | None:
    """Kill one of `kind` once the stage has gone on; None where it ended before."""
    before, delay = run.progress(stage), dice.uniform(0, LATEST_S)

    def ready() -> bool:
        if run.driver.poll() not in (None, 0):
            raise RuntimeError(f"the driver failed: {run.said.read_text()[-2000:]}")
        return run.over(stage) or run.progress(stage) > before

    until(ready, f"{stage} goes on before the kill of a {kind}", patience_s=PATIENCE_S)
    time.sleep(delay)
    if run.over(stage):
        return None
    kill = Kill(kind, stage, time.time())
    if kind in DRIVERS:
        # Actors that it owns go with it, and the replicas then, or when the next one tidies.
        kill.actors = {each: len(arena.actors(each)) for each in TITLES}
        run.restart(DRIVERS[kind])
        kill.done = time.time()
    elif kind == "node":
        node = dice.choice(arena.nodes())
        kill.actors = {each: len(arena.actors(each, node)) for each in TITLES}
        arena.lose(node)
        kill.done = time.time()
        time.sleep(dice.uniform(0, LATEST_S))
        arena.fill_up()
    else:
        victims = arena.actors(kind)
        if not victims:
            return None
        kill.actors = {kind: 1}
        with suppress(psutil.NoSuchProcess):
            dice.choice(victims).send_signal(signal.SIGKILL)
        kill.done = time.time()
    return kill


def attribute(kills: list[Kill], begun: list[tuple[float, str]]) -> list[str]:
    """Count every shard that was begun again for a kill that came between.

    The first such kill whose dead actors do not account for others yet; a retry may wait until
    after the next kill. Gives back the shards that were begun again with no kill between.
    """
    last: dict[str, float] = {}
    unexplained = []
    for at, name in begun:
        if name in last:
            between = [kill for kill in kills if last[name] <= kill.done and kill.at <= at]
            free = [kill for kill in between if kill.repeated < kill.bound]
            if between:
                (free or between)[0].repeated += 1
            else:
                unexplained.append(f"begun again without a kill: {name}")
        last[name] = at
    return unexplained
