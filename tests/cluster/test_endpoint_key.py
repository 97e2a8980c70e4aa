"""A study of a model behind an endpoint on real Ray: one process asks, and its key is nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.endpoint import KEY, Endpoint, label_of, save_study, serving

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")
pytestmark = pytest.mark.cluster


#: A cluster with a dashboard, a study on it, and then all that the dashboard says, as one JSON.
ASKS_THE_DASHBOARD = """
import json, os, psutil, secrets, sys, time, urllib.error, urllib.request
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
import ray
study, out = sys.argv[1:]
context = ray.init(
    address="local", num_cpus=4, include_dashboard=True, dashboard_port=0, log_to_driver=False
)
from raybias.cli import main
sys.argv = ["raybias", "run", study, "--out", out, "--address", context.address_info["address"]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
def ask(path, tries=3):
    request = urllib.request.Request(f"http://{context.dashboard_url}{path}")
    request.add_header("Authorization", "Bearer " + os.environ["RAY_AUTH_TOKEN"])
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        # The dashboard fails to list logs of which one goes away meanwhile.
        if error.code == 500 and tries > 1:
            time.sleep(1)
            return ask(path, tries - 1)
        raise SystemExit(f"{path}: {error} {error.read().decode()}")
node = ray.nodes()[0]["NodeID"]
kinds = ("tasks", "actors", "workers", "nodes", "jobs", "objects", "runtime_envs")
paths = [f"/api/v0/{kind}?detail=1&limit=10000" for kind in kinds]
paths += ["/api/jobs/", "/nodes?view=summary", f"/nodes/{node}", "/logical/actors", "/events"]
paths += ["/api/serve/applications/", "/api/cluster_status", "/api/v0/tasks/summarize"]
said = {path: ask(path) for path in paths}
# And what processes show of themselves.
for process in psutil.Process().children(recursive=True):
    said[f"process {process.pid}"] = f"{process.cmdline()} {process.environ()}"
logs = json.loads(ask(f"/api/v0/logs?node_id={node}"))["data"]["result"]
for name in sorted({name for names in logs.values() for name in names}):
    if not name.endswith("/"):
        said[name] = ask(f"/api/v0/logs/file?node_id={node}&lines=-1&filename={name}")
print(json.dumps(said), file=open(out + ".json", "w"))
"""


@pytest.mark.slow
def test_the_key_of_an_endpoint_is_nowhere_in_ray_or_in_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serving(Endpoint(answer=label_of, delay_s=0.05)) as server:
        words = [str(save_study(tmp_path, server)), str(out)]
        subprocess.run([sys.executable, "-c", ASKS_THE_DASHBOARD, *words], check=True)
    said = json.loads(Path(f"{out}.json").read_text())
    # It knows the study's actors, and shows their logs.
    assert "Scorer" in said["/logical/actors"]
    assert any(path.startswith("worker-") for path in said)
    assert len(said) > 30
    assert [path for path, text in said.items() if KEY in text] == []
    held = [file.read_bytes() for file in out.rglob("*") if file.is_file()]
    assert len(held) > 10
    assert not any(KEY.encode() in each for each in held)
    assert 1 < server.most_at_once <= 4
