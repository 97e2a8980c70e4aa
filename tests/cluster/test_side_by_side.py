"""Two studies on one cluster that other work holds whole: they wait, and end as if alone."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest
import ray
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SHARES = (1.0, 0.5)


def study(folder: Path, share: float) -> Path:
    """The demonstration's, cut short."""
    text = files("raybias").joinpath("assets/demo.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    content["methods"][0] |= {"seeds": [1, 2, 3], "keep": 2, "max_steps": 40, "eval_every": 20}
    content["methods"][0] |= {"early_stop": {"after_step": 20, "window": 5}}
    content |= {"limit": 30, "resources": {"share": share}}
    path = folder / f"study-{share}.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


def predictions(out: Path) -> dict[str, pl.DataFrame]:
    files = (out / "predictions").rglob("*.parquet")
    return {path.relative_to(out).as_posix(): pl.read_parquet(path) for path in files}


def test_two_studies_wait_for_a_full_cluster_and_then_run_side_by_side(tmp_path: Path) -> None:
    @ray.remote
    class Holder:
        def hold(self) -> None:
            """Begin."""

    holder = Holder.options(num_cpus=int(ray.cluster_resources()["CPU"])).remote()
    ray.get(holder.hold.remote())
    command = [sys.executable, "-c", "from raybias.cli import main; main()", "run"]
    address = ["--address", ray.get_runtime_context().gcs_address]
    said = [tmp_path / f"said-{share}" for share in SHARES]
    drivers: list[subprocess.Popen[bytes]] = []
    try:
        for share, path in zip(SHARES, said, strict=True):
            started = [*command, study(tmp_path, share), "--out", tmp_path / f"{share}", *address]
            with path.open("w") as stream:
                drivers.append(subprocess.Popen(started, stdout=stream, stderr=stream))
        ends = time.monotonic() + 300
        while not all("holds the whole cluster; waiting" in each.read_text() for each in said):
            assert all(driver.poll() is None for driver in drivers), [s.read_text() for s in said]
            assert time.monotonic() < ends, [s.read_text() for s in said]
            time.sleep(0.2)
        ray.kill(holder)
        assert [driver.wait(600) for driver in drivers] == [0, 0], [s.read_text() for s in said]
    finally:
        for driver in drivers:
            driver.kill()
    first, second = (predictions(tmp_path / f"{share}") for share in SHARES)
    assert first
    assert first.keys() == second.keys()
    assert all(first[key].equals(second[key]) for key in first)
