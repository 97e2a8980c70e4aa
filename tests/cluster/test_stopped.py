"""Signals and rivals of a study on a cluster: one line each, and nothing of it is left running."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

STOPPED = "raybias: stopped; the same command goes on with what is there\n"


def study(folder: Path) -> Path:
    """The demonstration's, with seconds of tuning that nobody waits for."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    content["methods"][0] |= {"seeds": [1], "keep": 1, "max_steps": 100_000, "eval_every": 20}
    content["methods"][0] |= {"early_stop": {"after_step": 90_000, "window": 5}}
    content |= {"limit": 30, "resources": {"train_workers": 1, "replicas_max": 1}}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def command_of(folder: Path, study: Path) -> list[Any]:
    command = [sys.executable, "-c", "from raybias.cli import main; main()", "run", study]
    return [*command, "--out", folder / "out", "--address", ray.get_runtime_context().gcs_address]


def left() -> list[str]:
    """Actors and Serve applications of studies."""
    ours = ("PackWorker", "MapWorker", "ServeReplica:raybias")
    live = ray._private.state.actors(actor_state_name="ALIVE").values()
    names = [str(actor["ActorClassName"]) for actor in live]
    found = [name for name in names if any(part in name for part in ours)]
    return found + [name for name in serve.status().applications if name.startswith("raybias-")]


def until(condition: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_and_a_rival_is_refused(
    tmp_path: Path, number: signal.Signals
) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    command = command_of(tmp_path, study(tmp_path))
    with said.open("w") as stream:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
    try:
        until(lambda: driver.poll() is not None or "tune" in said.read_text(), "it tunes")
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
