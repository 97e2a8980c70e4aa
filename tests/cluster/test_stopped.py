"""Signals and rivals of a study on a cluster: one line each, and nothing of it is left running."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import ray
import yaml
from ray import serve

from raybias.runtime import ray_internals

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

RAYBIAS = (sys.executable, "-c", "from raybias.cli import main; main()")
STOPPED = "raybias: stopped; the same command goes on with what is there\n"


def study(folder: Path, *, steps: int, **sections: Any) -> Path:
    """The demonstration's with a tuning of so many steps, and with these sections."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    content["methods"][0] |= {"seeds": [1], "keep": 1, "max_steps": steps, "eval_every": 20}
    content["methods"][0] |= {"early_stop": {"after_step": steps - 40, "window": 2}}
    content |= {"limit": 30, "resources": {"train_workers": 1, "replicas_max": 1}, **sections}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def command_of(folder: Path, study: Path) -> list[Any]:
    """Run a study on the session's cluster."""
    address = ray.get_runtime_context().gcs_address
    return [*RAYBIAS, "run", study, "--out", folder / "out", "--address", address]


def left() -> list[str]:
    """Actors and Serve applications of studies."""
    # An error that another test of this process looked at holds Ray Data's actors.
    gc.collect()
    ours = ("PackWorker", "MapWorker", "ServeReplica:raybias")
    live = ray._private.state.actors(actor_state_name="ALIVE").values()
    names = [str(actor["ActorClassName"]) for actor in live]
    found = [name for name in names if any(part in name for part in ours)]
    return found + [name for name in serve.status().applications if name.startswith("raybias-")]


def until(condition: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends, (what, left())
        time.sleep(0.1)


def test_a_signal_leaves_nothing(tmp_path: Path) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    command = command_of(tmp_path, study(tmp_path, steps=100_000))
    with said.open("w") as stream:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
    try:
        until(lambda: driver.poll() is not None or "step " in said.read_text(), "it tunes")
        assert driver.poll() is None, said.read_text()
        assert left()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(30) == 128 + signal.SIGTERM
    finally:
        driver.kill()
        driver.wait()
    assert said.read_text().endswith(STOPPED)
    assert not (out / "lease.json").exists()
    until(lambda: not left(), "nothing is left")


@pytest.mark.slow
def test_one_process_runs_studies_one_after_another_each_on_a_ray_of_its_own(
    tmp_path: Path,
) -> None:
    """Serve's client and handles of the first would be taken for those of the second."""
    path = study(tmp_path, steps=40)
    code = (
        "import raybias, sys, time\n"
        "file, folder = sys.argv[1:]\n"
        "study = raybias.load_study(file)\n"
        "for number in range(2):\n"
        "    raybias.run(study, out=f'{folder}/own{number}', address='local')\n"
        # A handle tells Serve every ten seconds what it has under way.
        "    time.sleep(11)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "push_metrics" not in done.stderr


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
    until(
        lambda: f"process {driver.pid} on" in "".join(ray_internals.left_behind().values()),
        "is named",
    )
    assert f"replicas of process {driver.pid} on" in "".join(ray_internals.others())
    until(lambda: not left(), "nothing is left")
    assert time.monotonic() - killed < 30


@pytest.mark.slow
def test_two_studies_wait_for_a_full_cluster_and_then_run_side_by_side(tmp_path: Path) -> None:
    """Each ends as if it were alone, also one that has half of it."""

    @ray.remote
    class Holder:
        def hold(self) -> None:
            """Begin."""

    def predictions(folder: Path) -> dict[str, pl.DataFrame]:
        found = (folder / "out/predictions").rglob("*.parquet")
        return {str(each.relative_to(folder)): pl.read_parquet(each) for each in found}

    holder = Holder.options(num_cpus=int(ray.cluster_resources()["CPU"])).remote()
    ray.get(holder.hold.remote())
    folders = {share: tmp_path / str(share) for share in (1.0, 0.5)}
    drivers: list[subprocess.Popen[bytes]] = []

    def said() -> list[str]:
        return [(folder / "said").read_text() for folder in folders.values()]

    try:
        for share, folder in folders.items():
            folder.mkdir()
            command = command_of(folder, study(folder, steps=60, resources={"share": share}))
            with (folder / "said").open("w") as stream:
                drivers.append(subprocess.Popen(command, stdout=stream, stderr=stream))
        until(
            lambda: all("holds the whole cluster; waiting" in text for text in said()), "both wait"
        )
        ray.kill(holder)
        assert [driver.wait(600) for driver in drivers] == [0, 0], said()
    finally:
        for driver in drivers:
            driver.kill()
    first, second = map(predictions, folders.values())
    assert first
    assert first.keys() == second.keys()
    assert all(first[key].equals(second[key]) for key in first)


#: Becomes a command without network, with little shared memory and without root's right to open
#: what is closed.
CONTAINED = (
    "ip link set lo up && mount -t tmpfs -o size=20m tmpfs /dev/shm && exec setpriv"
    ' --bounding-set=-dac_override,-dac_read_search "$@"'
)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for Ray's sockets."""
    place = Path(f"/tmp/rb{os.getpid()}")
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.mark.slow
def test_no_network_little_shared_memory_and_a_closed_home_are_no_hindrance(short: Path) -> None:
    inside = ["unshare", "--net", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this machine lets the user make no namespaces")
    (short / "home").mkdir(mode=0)
    (short / "ray").mkdir()
    command = [*inside, "sh", "-c", CONTAINED, "sh", *RAYBIAS, "run", str(study(short, steps=60))]
    environment = os.environ | {
        "HOME": str(short / "home"), "TMPDIR": str(short / "nowhere"),
        "RAY_TMPDIR": str(short / "ray"),
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [*command, "--out", str(short / "out"), "--address", "local"],
        capture_output=True, text=True, timeout=500, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
