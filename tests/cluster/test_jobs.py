"""`ray job submit` on a cluster of its own, and what its dashboard shows (about 90 s)."""

from __future__ import annotations

import json
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
from support.documents import ROOT
from support.endpoint import KEY, Endpoint, label_of, save_study, serving

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
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
def cluster() -> Iterator[tuple[str, psutil.Process]]:
    """`ray start --head`, on ports of its own; gives the address for jobs, and the process."""
    folder = tempfile.mkdtemp(prefix="rj", dir="/tmp")
    port = free_port()
    head = psutil.Popen(
        [
            RAY, "start", "--head", "--block", "--num-cpus=4", f"--port={free_port()}",
            f"--dashboard-port={port}", f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}",
            "--object-store-memory=268435456", "--disable-usage-stats",
        ],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            assert head.poll() is None, f"ray start ended with {head.returncode}"
            try:
                ask(address, "/api/version")
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        yield address, head
    finally:
        for part in (head, *head.children(recursive=True)):
            part.kill()
        head.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def ask(address: str, path: str, tries: int = 3) -> str:
    """What the dashboard says."""
    request = urllib.request.Request(f"{address}{path}")
    request.add_header("Authorization", f"Bearer {TOKEN['RAY_AUTH_TOKEN']}")
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        # It fails to list logs of which one goes away meanwhile.
        if error.code != 500 or tries == 1:
            raise
        time.sleep(1)
        return ask(address, path, tries - 1)


def submit(address: str, *entry: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RAY, "job", "submit", "--address", address, "--working-dir", "jobs", "--", *entry],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_a_job_leaves_the_studys_result_and_its_exit_code(
    cluster: tuple[str, psutil.Process], tmp_path: Path
) -> None:
    out, (address, _) = tmp_path / "out", cluster
    sets = [part for each in SMALL for part in ("--set", each)]
    done = submit(address, "python", "demo.py", "--out", str(out), *sets, "--limit", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "core_worker" not in done.stdout + done.stderr, "Ray's own affairs (ray#53727)"
    assert (out / "report.html").exists()
    assert (out / "tables" / "estimates.csv").exists()
    record = yaml.safe_load((out / "study.yaml").read_text())
    assert record["command"].startswith(f"python demo.py --out {out} --set ")

    wrong = ("--out", str(tmp_path / "no"), "--set", "methods.0.keeep=2")
    broken = submit(address, "python", "demo.py", *wrong)
    assert broken.returncode != 0
    told = broken.stdout + broken.stderr
    assert "Traceback" not in told
    (line,) = {line.strip() for line in told.splitlines() if line.startswith("raybias: ")}
    assert "unknown key 'keeep'; did you mean 'keep'?" in line
    assert "exit code 2" in told
    assert not (tmp_path / "no").exists()


def test_the_key_of_an_endpoint_is_nowhere_in_ray_or_in_out(
    cluster: tuple[str, psutil.Process], tmp_path: Path
) -> None:
    pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")
    out, (address, head) = tmp_path / "out", cluster
    with serving(Endpoint(answer=label_of, delay_s=0.05)) as server:
        done = submit(
            address, "raybias", "run", str(save_study(tmp_path, server)), "--out", str(out)
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (node,) = json.loads(ask(address, "/api/v0/nodes"))["data"]["result"]["result"]
    place = f"node_id={node['node_id']}"
    kinds = ("tasks", "actors", "workers", "nodes", "jobs", "objects", "runtime_envs")
    paths = [f"/api/v0/{kind}?detail=1&limit=10000" for kind in kinds]
    paths += ["/api/jobs/", "/nodes?view=summary", f"/nodes/{node['node_id']}", "/logical/actors"]
    paths += ["/events", "/api/serve/applications/", "/api/cluster_status"]
    logs = json.loads(ask(address, f"/api/v0/logs?{place}"))["data"]["result"]
    names = {name for listed in logs.values() for name in listed if not name.endswith("/")}
    paths += [f"/api/v0/logs/file?{place}&lines=-1&filename={name}" for name in sorted(names)]
    said = {path: ask(address, path) for path in paths}
    # And what processes show of themselves.
    for process in head.children(recursive=True):
        said[f"process {process.pid}"] = f"{process.cmdline()} {process.environ()}"
    # It knows the study's actors, and shows their logs.
    assert "ServeReplica:raybias-" in said["/logical/actors"]
    assert any(name.startswith("worker-") for name in names)
    assert len(said) > 30
    assert [path for path, text in said.items() if KEY in text] == []
    held = [file.read_bytes() for file in out.rglob("*") if file.is_file()]
    assert len(held) > 10
    assert not any(KEY.encode() in each for each in (*held, done.stdout.encode()))
    assert 1 < server.most_at_once <= 4
