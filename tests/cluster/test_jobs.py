"""`ray job submit` of the entry points on a cluster of their own (about 60 s)."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from support.commands import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CHECKOUT = Path(__file__).resolve().parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
#: The demonstration, cut down: few seeds, few steps, few items, few processes.
SMALL = (
    "methods.0.seeds=[1,2,3]", "methods.0.keep=2", "methods.0.max_steps=20",
    "resources.train_workers=1", "resources.replicas_max=1",
)  # fmt: skip

#: Token authentication stays on; the cluster and its client share a token of their own.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def environment() -> dict[str, str]:
    """This session's, its Python first, without a cluster that it may be connected to."""
    held = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return held | TOKEN | {"PATH": f"{Path(RAY).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """`ray start --head`, on ports of its own; gives the address for jobs."""
    folder = tempfile.mkdtemp(prefix="rj", dir="/tmp")
    port = free_port()
    head = subprocess.Popen(
        [
            RAY, "start", "--head", "--block", "--num-cpus=3", f"--port={free_port()}",
            f"--dashboard-port={port}", f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}",
            "--object-store-memory=268435456", "--disable-usage-stats",
        ],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(address, head)
        yield address
    finally:
        parts = [head, *psutil.Process(head.pid).children(recursive=True)]
        for part in parts:
            part.kill()
        head.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(address: str, head: subprocess.Popen[bytes]) -> None:
    for _ in range(120):
        if head.poll() is not None:
            raise AssertionError(f"ray start ended with {head.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/api/version", timeout=1):
                return
        except urllib.error.HTTPError:
            return  # it asks for a token
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the dashboard does not answer")


def submit(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    entry = ["python", "demo.py", *options]
    return subprocess.run(
        [RAY, "job", "submit", "--address", address, "--working-dir", "jobs", "--", *entry],
        cwd=CHECKOUT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_job_leaves_the_studys_result_and_its_exit_code(dashboard: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sets = [part for each in SMALL for part in ("--set", each)]
    done = submit(dashboard, "--out", str(out), *sets, "--limit", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "core_worker" not in done.stdout + done.stderr, "Ray's own affairs (ray#53727)"
    assert (out / "report.html").exists()
    assert (out / "tables" / "estimates.csv").exists()
    record = yaml.safe_load((out / "study.yaml").read_text())
    assert record["command"].startswith(f"python demo.py --out {out} --set ")

    broken = submit(dashboard, "--out", str(tmp_path / "no"), "--set", "methods.0.keeep=2")
    assert broken.returncode != 0
    told = broken.stdout + broken.stderr
    assert "Traceback" not in told
    (line,) = {line.strip() for line in told.splitlines() if line.startswith("raybias: ")}
    assert "unknown key 'keeep'; did you mean 'keep'?" in line
    assert "exit code 2" in told
    assert not (tmp_path / "no").exists()
