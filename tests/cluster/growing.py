"""A driver on two nodes of four declared GPUs, and a third that joins. Not a test itself.

Prints, as JSON, where and when each task ran, when the wide one was ready and when the node joined.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NARROW_S = 3.0
WIDE_S = 2.0
NARROW = 72


class Sleeper:
    """Stands in for a worker that tunes: sleeps, and says where and when."""

    def __init__(self, task: Any) -> None:
        pass

    def tune(self, work: Any, trials: Sequence[Any]) -> Iterator[Any]:
        import ray

        from raybias.runtime.progress import WorkerReport

        begun, node = time.time(), ray.get_runtime_context().get_node_id()
        (trial,) = trials
        yield WorkerReport(pack=trial.run_id)
        time.sleep(trial.seconds)
        said = json.dumps([begun, time.time(), node])
        yield WorkerReport(pack=trial.run_id, finished=(trial.run_id,), resumed=(said,))

    def give(self, run_ids: Sequence[str]) -> None:
        pass


def main() -> None:
    # Ray's socket paths must be short, and the file that names its cluster wants its folder.
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)
    import ray
    from ray.cluster_utils import Cluster

    from raybias.config import Resources
    from raybias.planning.inventory import Inventory, Node
    from raybias.planning.machine import ResourceRequest
    from raybias.planning.tasks import Task
    from raybias.runtime import ray_workers
    from raybias.runtime.graph import Grant, Graph

    ray_workers.PackWorker = Sleeper  # type: ignore[misc,assignment]
    memory = 100 * 2**20
    head = {"num_cpus": 0, "object_store_memory": memory, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def join() -> str:
        return str(cluster.add_node(num_cpus=8, num_gpus=4, object_store_memory=memory).node_id)

    join(), join()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    known = Node(cpus=8, memory=2**30, gpus=4, gpu_memory=2**30)
    plan: Any = SimpleNamespace(
        decided=SimpleNamespace(resources=Resources()),
        inventory=Inventory((known,), "declared"),
        tune=lambda backbone, training, method: stage(int(method)),
    )
    workers = ray_workers.RayWorkers(plan, "raybias-test")
    ran: dict[str, Any] = {}
    placed: dict[str, float] = {}

    def stage(gpus: int) -> Any:
        return SimpleNamespace(
            threads=1, gpus=gpus, requests={}, backbone="b", method=str(gpus), sharded=False
        )

    def work(grant: Grant) -> None:
        task = grant.task
        placed[task.key] = time.time()
        trial: Any = SimpleNamespace(run_id=task.key, seconds=task.seconds)

        def add(report: Any) -> None:
            for said in report.resumed:
                ran[task.key] = json.loads(said)

        tuned: Any = SimpleNamespace(
            name="stage", work=(None, None), plan=stage(task.devices),
            progress=SimpleNamespace(add=add), split=lambda trials, grant: None,
        )  # fmt: skip
        workers.tune(tuned, (trial,), grant)

    def ready(grant: Grant) -> None:
        while len(ran) < 4:  # Until narrow ones hold all eight devices.
            time.sleep(0.05)
        times["ready"] = time.time()

    times: dict[str, Any] = {}
    graph = Graph(workers)
    need = ResourceRequest(cpus=1, gpus=1, device=2**20)
    common: dict[str, Any] = {"kind": "tune", "backbone": "b"}
    graph.add(Task(key="first", seconds=99, **{**common, "kind": "fetch"}), ready)
    wide = ResourceRequest(cpus=1, gpus=4, device=2**20)
    graph.add(
        Task(key="wide", method="4", seconds=WIDE_S, need=wide, after=("first",), **common), work
    )
    for n in range(NARROW):
        graph.add(Task(key=f"narrow {n}", method="1", seconds=NARROW_S, need=need, **common), work)
    runs = threading.Thread(target=graph.run)
    runs.start()
    while "wide" not in placed:
        time.sleep(0.05)
    times["third"] = join()
    times["joined"] = time.time()
    runs.join()
    workers.close()
    print(json.dumps({**times, "ran": ran, "placed": placed}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
