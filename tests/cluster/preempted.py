"""A driver whose cluster loses a node on notice: tunes a study, drains the node. Not a test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

NOTICE_S = 20


def tunes(node: Any) -> bool:
    """Whether a worker of Ray Train runs on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return any("PackWorker" in (each.cmdline() or [""])[0] for each in raylet.children())


def drain(cluster: Any, out: Path) -> None:
    """Announce the loss of a node that a worker tunes on, once it has begun."""
    while not list(out.glob("train/*/reached/*.json")):
        time.sleep(0.1)
    going = next(node for node in cluster.worker_nodes if tunes(node))
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node"),
            *("--address", cluster.address, "--node-id", going.node_id),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION"),
            *("--reason-message", "spot", "--deadline-remaining-seconds", str(NOTICE_S)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print("drained", flush=True)


def main() -> None:
    # Ray's socket paths must be short, and the file that names its cluster wants its folder.
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)
    import ray
    from ray.cluster_utils import Cluster
    from rich.console import Console

    from raybias.config import load_study
    from raybias.planning.inventory import assumed
    from raybias.planning.plan import plan
    from raybias.planning.prepared import PreparedStudy
    from raybias.runtime.progress import Reporter
    from raybias.storage import Store
    from support.tuning import tune

    study, out = load_study(sys.argv[1], overrides=tuple(sys.argv[3:])), Path(sys.argv[2])
    memory = 100 * 2**20
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": memory}
    )
    for _ in range(3):
        cluster.add_node(num_cpus=1, object_store_memory=memory)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        threading.Thread(target=drain, args=(cluster, out), daemon=True).start()
        prepared = PreparedStudy.of(study)
        made = plan(prepared, assumed("cpus=2,memory=16GiB"))
        reporter = Reporter(Console(width=200))
        tune(prepared, study.backbones[0], study.training[0], made, Store(out), reporter=reporter)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
