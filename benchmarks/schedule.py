"""A study's tasks on declared GPUs: stage after stage against the graph, planned and on real Ray.

Simulated: the tasks that the planner makes of a job in jobs/, on as many A100s as are named, in
both orders; idle workers halve packs in the graph's. With --ray they also run on a Ray cluster of
logical nodes that declare those GPUs: the driver's own graph (`runtime/graph.py`) starts them, Ray
places what each holds, and they sleep as long as the cost curve says, scaled; no pack is halved
there. No model is loaded; Serve and storage are not part of it.

    python benchmarks/schedule.py --data FOLDER --tokenizer FOLDER --job soft_prompt --ray 64
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
import workload
from simulated import Schedule, Span, runs_of, simulate

from raybias.config import Resources
from raybias.planning.inventory import Inventory, Node, assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.tasks import Task, remaining, tasks_of

sys.path.append(str(Path(__file__).parents[1] / "docs"))
import plans  # type: ignore[import-not-found]


def gpus(count: int) -> Inventory:
    """Nodes of eight A100s, or one of fewer."""
    own = min(8, count)
    return assumed(
        f"nodes={count // own},cpus=48,memory=1000GiB,gpus={own},gpu_memory=80GB,gpu=A100"
    )


def in_sequence(tasks: list[Task]) -> list[Task]:
    """Let every stage wait for the one before it, as a driver without a graph does."""
    ordered: list[Task] = []
    before: tuple[str, ...] = ()
    for _, stage in groupby(tasks, lambda each: (each.backbone, each.training, each.method,
                                                each.stage, each.kind)):  # fmt: skip
        own = [replace(task, after=before) for task in stage]
        ordered, before = ordered + own, tuple(task.key for task in own)
    return ordered


def on_ray(tasks: list[Task], count: int, seconds: float, wall: float) -> Schedule:
    """Run tasks that sleep on logical nodes; returns what was measured, in the study's seconds."""
    import ray
    from ray.cluster_utils import Cluster

    from raybias.runtime.graph import Grant, Graph

    scale = wall / seconds
    cluster = Cluster()
    for _ in range(max(1, count // 8)):
        cluster.add_node(num_cpus=0, num_gpus=min(8, count), object_store_memory=80 * 2**20)
    ray.init(address=cluster.address, log_to_driver=False)

    def work(grant: Grant) -> None:
        task = grant.task
        if task.need is None:
            time.sleep(task.seconds / scale)
            return
        held: list[Any] = []
        left, last = task.seconds / scale, time.monotonic()
        loading = task.load / scale
        while left > 0:
            while len(held) < grant.slots:
                part = {"GPU": task.need.gpus}
                held.append(ray.util.placement_group([part], strategy="PACK"))
                held[-1].wait(60)
            while len(held) > max(grant.slots, task.least):
                ray.util.remove_placement_group(held.pop())
            time.sleep(min(0.1, max(left / len(held), 1e-3)) + loading)
            loading, now = 0.0, time.monotonic()
            left -= (now - last) * (len(held) if task.divisible else 1)
            last = now
        for group in held:
            ray.util.remove_placement_group(group)

    node = Node(cpus=10**6, memory=2**60, gpus=count, gpu_memory=2**60)

    class Logical:
        """Devices without nodes; Ray's placement groups find those of a task."""

        resources = Resources()

        def inventory(self) -> Inventory:
            return Inventory((node,), "logical")

        def halve(self, fits: Callable[[Task], bool]) -> None:
            pass

    graph = Graph(Logical())
    for task in tasks:
        graph.add(task, work)
    try:
        graph.run()
    finally:
        ray.shutdown()
        cluster.shutdown()
    spans = tuple(
        Span(task=s["task"], start=s["start"] * scale, loaded=s["start"] * scale,
             end=s["end"] * scale, worker=s["worker"])
        for s in graph.log.spans
    )  # fmt: skip
    return Schedule(spans, count)


def main(
    data: Annotated[Path, typer.Option(help="Folder with the jobs' data.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with vocab.json and merges.txt.")],
    job: Annotated[str, typer.Option(help="A job of docs/plans.py.")] = "soft_prompt",
    sizes: Annotated[str, typer.Option(help="Numbers of GPUs.")] = "1,4,8,64",
    ray: Annotated[int, typer.Option(help="Also on Ray, with so many declared GPUs.")] = 0,
    seconds: Annotated[float, typer.Option(help="That the graph takes on Ray.")] = 60.0,
    backbone: Annotated[list[str] | None, typer.Option(help="Only these of the job.")] = None,
    out: workload.OutOption = None,
) -> None:
    """Print wall time and share busy in both orders."""
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary)
        plans.write_models(models, workload.tokenizer(tokenizer), plans.architectures())
        study, _ = plans.local_study(job, data, models)
        chosen = [each for each in study.backbones if each.name in (backbone or [each.name])]
        study = study.model_copy(update={"backbones": tuple(chosen)})
        prepared = PreparedStudy.of(study)
        rows: list[tuple[object, ...]] = []
        works = None
        for count in map(int, sizes.split(",")):
            begun = time.perf_counter()
            made = plan(prepared, gpus(count), works=works)
            planning, works = time.perf_counter() - begun, made.works
            # Stage after stage, a stage had as many workers as runs or devices.
            wide = study.resources.model_copy(update={"train_workers": count})
            before = prepared.with_study(study.model_copy(update={"resources": wide}))
            old = plan(before, gpus(count), works=works)
            for early in (False, True):
                tasks = tasks_of(prepared, made, early=early)
                sequence = in_sequence(tasks_of(before, old, early=early))
                halved = runs_of(made, tasks, early=early)
                found = [
                    simulate(sequence, made.inventory),
                    simulate(tasks, made.inventory, runs=halved),
                ]
                ways = {"simulated": found}
                if count == ray and not early:
                    wall = found[1].wall
                    real = [on_ray(each, count, seconds, wall) for each in (sequence, tasks)]
                    ways[f"Ray, 1 s for {wall / seconds:,.0f} s"] = real
                least = sum(task.work for task in tasks) / count
                path = max(remaining(replace(task, load=0.0) for task in tasks).values())
                for how, (sequential, graph) in ways.items():
                    rows.append(
                        (count, "early stops" if early else "to the last step", how,
                         sequential.wall / 3600, f"{sequential.busy:.0%}",
                         graph.wall / 3600, f"{graph.busy:.0%}",
                         f"{least / max(least, path):.0%}", path / 3600, least / 3600,
                         f"{planning:.1f}")
                    )  # fmt: skip
    heads = (
        *("A100s", "runs", "how", "stage after stage, h", "busy", "graph, h", "busy"),
        *("the longest path allows", "longest path, h", "work / A100s, h", "planning, s"),
    )
    workload.publish(
        f"Tasks of jobs/{job}.yaml on declared GPUs",
        [workload.markdown(rows, heads)],
        device="cpu",
        peer="ray",
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
