"""A cluster of three nodes on this machine, and who of raybias runs on which of them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# Ray reads this when it is imported: a busy machine takes longer than its 30 s to start.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")

import ray
from ray import serve
from ray.cluster_utils import Cluster

#: What Ray calls the process of each kind of actor.
TITLES = {
    "worker": "PackWorker",
    "replica": "ServeReplica:raybias-",
    "controller": "ServeController",
    "proxy": "ProxyActor",
}
#: Each holds two packs or replicas, so that one lost node is no standstill.
NODE = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
WORKER_NODES = 2
PATIENCE_S = 600.0
#: A dead node is noticed within seconds; one that is merely starved of CPU is left alone.
SYSTEM = {
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 4,
    "prestart_worker_first_driver": False,
    "enable_worker_prestart": False,
    "worker_niceness": 0,
}


@dataclass
class Arena:
    """The cluster; its head does no work, as the heads of real clusters."""

    cluster: Cluster

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def actors(self, kind: str, node: Any | None = None) -> list[psutil.Process]:
        """The processes of one kind of actor, of one node or all, the longest-lived first."""
        nodes = self.cluster.list_all_nodes() if node is None else [node]
        found = [p for each in nodes for p in _family(each) if TITLES[kind] in _title(p)]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def nodes(self) -> list[Any]:
        """The worker nodes, by age."""
        return sorted(self.cluster.worker_nodes, key=lambda node: str(node.unique_id))

    def lose(self, node: Any) -> None:
        """Kill a node as a machine is lost: its raylet and all that runs on it, at once."""
        family = _family(node)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def announce_loss(self, node: Any, *, within_s: int = 20) -> None:
        """Say that a node will be taken away, as a cloud does of a spot node."""
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "drain-node"),
                *("--address", self.address, "--node-id", node.node_id),
                *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"),
                *("--deadline-remaining-seconds", str(within_s)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def fill_up(self) -> None:
        """Bring new nodes in the place of lost ones."""
        while len(self.cluster.worker_nodes) < WORKER_NODES:
            self.cluster.add_node(wait=False, **NODE)
        self.cluster.wait_for_nodes(timeout=PATIENCE_S)

    def open_proxies(self) -> None:
        """Have Serve listen on every node, as where the cluster serves others too."""
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        serve.shutdown()
        serve.start(proxy_location="EveryNode", http_options={"port": free_port()})
        ray.shutdown()

    def left(self) -> list[str]:
        """What runs, or is held, that belongs to no study."""
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        try:
            until(lambda: not self._left(), "studies leave nothing", patience_s=60, strict=False)
            return self._left()
        finally:
            ray.shutdown()

    def _left(self) -> list[str]:
        groups = ray.util.placement_group_table().values()
        held = [f"placement group {g['name']}" for g in groups if g["state"] != "REMOVED"]
        live = ray._private.state.actors(actor_state_name="ALIVE").values()
        names = [str(actor["ActorClassName"]) for actor in live]
        return held + [name for name in names if any(part in name for part in _OURS)]


#: What actors of a study are called.
_OURS = ("PackWorker", "ServeReplica:raybias", "MapWorker")


@contextmanager
def arena() -> Iterator[Arena]:
    """A cluster that ends with the body, and all its processes with it."""
    # Ray's socket paths must be short, and the file that names its cluster wants its folder.
    folder = tempfile.mkdtemp(prefix="rb", dir="/tmp")
    (Path(folder) / "ray").mkdir()
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **NODE,
            "num_cpus": 0,
            "include_dashboard": False,
            "dashboard_port": free_port(),
            "_system_config": SYSTEM,
        },
    )
    made = Arena(cluster)
    try:
        made.fill_up()
        yield made
    finally:
        family = [p for node in cluster.list_all_nodes() for p in _family(node)]
        cluster.shutdown()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(Path(folder), ignore_errors=True)
        del os.environ["RAY_TMPDIR"]
        if before is not None:
            os.environ["RAY_TMPDIR"] = before


def until(
    condition: Callable[[], object], what: str, *, patience_s: float, strict: bool = True
) -> bool:
    """Wait for a condition; whether it came to hold."""
    ended = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > ended:
            if strict:
                raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
            return False
        time.sleep(0.05)
    return True


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _family(node: Any) -> list[psutil.Process]:
    """The processes of a node and what these started."""
    found: list[psutil.Process] = []
    for infos in node.all_processes.values():
        for info in infos:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(info.process.pid)
                found += [parent, *parent.children(recursive=True)]
    return found


def _title(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[0]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
