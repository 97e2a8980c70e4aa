"""Signals and rivals of a study on a cluster: one line each, and nothing of it is left running."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve

from raybias.runtime import owners
from support.rewriters import save_judge, save_pairs, save_t5

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

RAYBIAS = (sys.executable, "-c", "from raybias.cli import main; main()")
#: A command whose report is written again and again.
REPORTING = """
import sys
from pathlib import Path
from raybias.cli import main
from raybias.report import page

work, mark = page._write_report, Path(sys.argv.pop(1))

def again(*arguments):
    mark.touch()
    while True:
        work(*arguments)

page._write_report = again
main(sys.argv[1:])
"""
STOPPED = "raybias: stopped; the same command goes on with what is there\n"


def study(folder: Path, *, steps: int, more: Mapping[str, Any] | None = None) -> Path:
    """The demonstration's with a tuning of so many steps, and with more of a study."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    content["methods"][0] |= {"seeds": [1], "keep": 1, "max_steps": steps, "eval_every": 20}
    content["methods"][0] |= {"early_stop": {"after_step": steps - 40, "window": 2}}
    content |= {"limit": 30, "resources": {"train_workers": 1, "replicas_max": 1}}
    for section, value in (more or {}).items():
        content[section] = content.get(section, []) + value if isinstance(value, list) else value
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def command_of(folder: Path, study: Path) -> list[Any]:
    return [*RAYBIAS, "run", study, "--out", folder / "out", "--address", address()]


def left() -> list[str]:
    """Actors and Serve applications of studies."""
    # An error that another test of this process looked at holds Ray Data's actors.
    gc.collect()
    ours = ("PackWorker", "MapWorker", "ServeReplica:raybias")
    live = ray._private.state.actors(actor_state_name="ALIVE").values()
    names = [str(actor["ActorClassName"]) for actor in live]
    found = [name for name in names if any(part in name for part in ours)]
    return found + [name for name in serve.status().applications if name.startswith("raybias-")]


def address() -> str:
    """The session's cluster."""
    return str(ray.get_runtime_context().gcs_address)


def until(condition: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends, (what, left())
        time.sleep(0.1)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_nothing_and_a_rival_is_refused(
    tmp_path: Path, number: signal.Signals
) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    command = command_of(tmp_path, study(tmp_path, steps=100_000))
    with said.open("w") as stream:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
    try:
        until(lambda: driver.poll() is not None or "step " in said.read_text(), "it tunes")
        assert driver.poll() is None, said.read_text()
        assert left()
        if number == signal.SIGINT:
            rival = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert rival.returncode == 2
            assert f"another raybias works on it (process {driver.pid} on " in rival.stderr
            assert rival.stderr.count("\n") == 1
        driver.send_signal(number)
        assert driver.wait(30) == 128 + number
    finally:
        driver.kill()
        driver.wait()
    assert said.read_text().endswith(STOPPED)
    assert not (out / "lease.json").exists()
    until(lambda: not left(), "nothing is left")


@pytest.mark.slow
def test_replicas_end_with_a_driver_that_is_killed_and_until_then_are_named(tmp_path: Path) -> None:
    path = study(tmp_path, steps=20)
    content = yaml.safe_load(path.read_text("utf-8"))
    content["methods"][0] |= {"early_stop": {"after_step": 20, "window": 1}}
    content |= {"limit": None, "resources": {"train_workers": 1, "rows_per_shard": 8}}
    path.write_text(yaml.safe_dump(content), "utf-8")
    said = tmp_path / "said"
    with said.open("w") as stream:
        driver = subprocess.Popen(command_of(tmp_path, path), stdout=stream, stderr=stream)
    try:
        until(lambda: any((tmp_path / "out" / "parts").rglob("*.parquet")), "it scores")
        assert driver.poll() is None, said.read_text()
    finally:
        driver.kill()
        driver.wait()
    killed = time.monotonic()
    until(lambda: f"process {driver.pid} on" in "".join(owners.left_behind().values()), "is named")
    assert f"replicas of process {driver.pid} on" in "".join(owners.others())
    until(lambda: not left(), "nothing is left")
    took = time.monotonic() - killed
    print(f"\n{took:.1f} s from SIGKILL to the end of the replicas")
    assert took < 30


def stopped(
    command: Sequence[object], said: Path, reached: Callable[[], object], number: signal.Signals
) -> None:
    """Send a signal to a command where it is to be stopped: one line, its code, nothing left."""
    with said.open("w") as stream:
        driver = subprocess.Popen(list(map(str, command)), stdout=stream, stderr=stream)
    try:
        until(lambda: driver.poll() is not None or reached(), "it comes there")
        assert driver.poll() is None, said.read_text()
        sent = time.monotonic()
        driver.send_signal(number)
        assert driver.wait(30) == 128 + number
        took = time.monotonic() - sent
    finally:
        driver.kill()
        driver.wait()
    print(f"\n{said.name}: {took:.2f} s from {number.name} to the end")
    assert took < 5
    lines = said.read_text().splitlines(keepends=True)
    assert lines[-1] == STOPPED, lines
    until(lambda: not left(), "nothing is left")


@pytest.mark.slow
def test_other_stages_stop_at_a_signal_too_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Rewriting and the report of one OUT, and the start of its service."""
    save_t5(tmp_path / "t5")
    save_judge(tmp_path / "judge")
    save_pairs(tmp_path)
    made = {"model": "t5", "instruction": "", "candidates": 40, "max_length": 24}
    made |= {"adequacy": {"model": "judge", "threshold": 0.05}}
    pairs = {"source": "pairs", "name": "mine", "data": "pairs.csv"}
    more = {
        "methods": [{"kind": "pair_score", "scores": ["bias_bench"]}],
        "pairs": [pairs],
        "styles": {"names": ["formal", "original"], "rewriting": {"formal": made}},
    }
    out = tmp_path / "out"
    words = ["run", study(tmp_path, steps=200, more=more), "--out", out, "--address", address()]

    def replicas() -> bool:
        return any(name.startswith("ServeReplica") for name in left())

    def rewrites() -> bool:
        return replicas() and not (out / "items/mine.parquet").exists()

    stopped([*RAYBIAS, *words], tmp_path / "rewriting", rewrites, signal.SIGTERM)
    assert not (out / "lease.json").exists()
    mark = tmp_path / "reports"
    reporting = [sys.executable, "-c", REPORTING, mark, *words]
    stopped(reporting, tmp_path / "report", mark.exists, signal.SIGINT)
    assert not (out / "report.html").exists()
    subprocess.run(list(map(str, [*RAYBIAS, *words])), check=True, capture_output=True)
    assert (out / "report.html").exists()
    assert not [*out.rglob("*.tmp")]
    serving = [*RAYBIAS, "serve", out, "--port", "8973", "--address", address()]
    stopped(serving, tmp_path / "serve", replicas, signal.SIGTERM)
