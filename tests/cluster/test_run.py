"""A whole small study on real Ray through the command line, killed and resumed (about 70 s)."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import ray
import yaml
from safetensors.torch import load, save

from raybias.errors import BadInput, OutputError, RaybiasError
from raybias.runtime.serve.app import Serving
from raybias.runtime.serve.app import app as application
from raybias.schema import RUNS
from raybias.storage import Store
from support.studies import run
from support.tiny import save_study

pytestmark = pytest.mark.cluster
MAIN = "from raybias.cli import main; main()"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_study(tmp_path_factory.mktemp("study"), items=1200)


def scores(out: Path) -> pl.DataFrame:
    files = sorted((out / "predictions").rglob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files])


@pytest.fixture(scope="module")
def cold(study: Path, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """The OUT of an undisturbed run."""
    out = tmp_path_factory.mktemp("cold") / "out"
    printed = run(study, out)
    (out.parent / "printed").write_text(printed)
    return out


def test_a_run_leaves_tables_report_and_runs(method_out: Path) -> None:
    printed = (method_out.parent / "printed").read_text()
    assert "colour" in printed
    assert f"report: {method_out}/report.html" in printed
    assert "<html" in (method_out / "report.html").read_text()
    columns = pl.read_csv(method_out / "tables" / "estimates.csv", n_rows=1).columns
    assert columns[:5] == ["kind", "model", "method", "dataset", "probe"]
    runs = Store(method_out).read_table("runs.parquet")
    assert runs.schema == RUNS
    assert sum(runs["selected"].to_pylist()) == 3
    assert yaml.safe_load((method_out / "study.yaml").read_text())["study"]["name"] == "methods"


@pytest.mark.slow
def test_a_killed_driver_leaves_work_that_the_next_one_uses(
    study: Path, cold: Path, tmp_path: Path
) -> None:
    """Its replicas live on in the cluster, and must not be in the way."""
    cut = tmp_path / "cut"
    # Tuning that was done elsewhere is work done; only the scoring is left to cut off.
    shutil.copytree(cold / "adapters", cut / "adapters")
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", MAIN, "run", str(study), "--out", str(cut)]
    log = tmp_path / "driver.log"
    with log.open("w") as stream:
        driver = subprocess.Popen(
            [*command, "--address", address], stdout=stream, stderr=stream, cwd=tmp_path
        )
        wait_for(cut, 20, driver, log)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    done = {file: file.stat().st_mtime_ns for file in (cut / "predictions").rglob("*.parquet")}
    tuned = {file: file.stat().st_mtime_ns for file in (cut / "adapters").rglob("*.*")}
    wanted = len(list((cold / "predictions").rglob("*.parquet")))
    assert len(done) < wanted, "the driver was to be killed in the middle"

    printed = (cold.parent / "printed").read_text()
    again = run(study, cut, "--set", "resources.rows_per_shard=5")
    assert again == printed.replace(str(cold), str(cut))
    touched = [file for file, then in (done | tuned).items() if file.stat().st_mtime_ns != then]
    assert touched == [], "whole runs and adapters are not made twice"
    one, other = scores(cold), scores(cut)
    assert one.drop("scores").equals(other.drop("scores"))
    np.testing.assert_allclose(
        np.array(one["scores"].to_list()), np.array(other["scores"].to_list()), atol=1e-5
    )
    with pytest.raises(BadInput, match=r"holds another study \(limit is None, now 4; data\."):
        run(study, cut, "--limit", "4")


def wait_for(out: Path, count: int, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Until there are `count` shards, of which those of whole runs are joined."""
    for _ in range(9000):
        if len(list((out / "parts").rglob("0*.parquet"))) >= count:
            return
        if driver.poll() is not None:
            raise AssertionError(log.read_text())
        time.sleep(0.01)
    raise AssertionError(f"no predictions after 90 s\n{log.read_text()}")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("methods.0.prompt_length=60", "longer than"),
        ("verbalizer.neutral=negative", "both begin with token"),
        ("probes.0.data=nowhere.csv", "nowhere.csv"),
        ("training.0.data=nowhere", "nowhere"),
        ("backbones.0.id=./nowhere", "nowhere"),
        ("resources.cpus_per_worker=99", "99"),
        ("methods.0.seeds=[1,1]", "seeds repeat"),
        ("methods.0.seed=[1]", "did you mean 'seeds'"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_any_work(
    study: Path, tmp_path: Path, ray_cluster: None, option: str, said: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(RaybiasError) as raised:
        run(study, out, "--set", option)
    assert raised.value.exit_code == 2
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not out.exists(), "nothing half-written"


def test_other_weights_under_the_same_name_are_refused(method_file: Path, method_out: Path) -> None:
    """By a second run and by `raybias serve`; the report names those that were used."""
    file = method_file.parent / "tiny" / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"model.safetensors {digest[:12]}" in (method_out / "report.html").read_text()
    held = file.read_bytes()
    weights = {name: -tensor for name, tensor in load(held).items()}
    file.write_bytes(save(weights, metadata={"format": "pt"}))
    said = rf"holds another study \(models\.tiny\.model\.safetensors is {digest[:12]}\.\., now "
    try:
        with pytest.raises(OutputError, match=said):
            run(method_file, method_out)
        with pytest.raises(OutputError, match=said):
            application(Serving(out=str(method_out), anyone=True))
    finally:
        file.write_bytes(held)
    application(Serving(out=str(method_out), anyone=True))


def test_failed_work_is_one_line_and_exit_code_1(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """An adapter that another program broke; the replica's error reaches the user."""
    out = tmp_path / "out"
    shutil.copytree(method_out, out)
    (read,) = (out / "predictions").rglob("*lora*.parquet")
    read.unlink()
    adapter = read.stem
    (out / "adapters" / adapter / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(RaybiasError) as raised:
        run(method_file, out)
    assert "\n" not in str(raised.value)
    assert adapter in str(raised.value)
