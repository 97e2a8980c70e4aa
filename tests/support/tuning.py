"""The tuning of one backbone on one training set, without the rest of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raybias.config import Backbone, TrainingSet
from raybias.methods import tuned_methods
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan
from raybias.planning.tasks import tasks_of
from raybias.runtime.graph import Grant, Graph
from raybias.runtime.progress import Reporter
from raybias.runtime.ray_workers import RayWorkers
from raybias.runtime.tuning import TuningJob
from raybias.storage import Store


def tune(
    prepared: PreparedStudy,
    backbone: Backbone,
    training: TrainingSet,
    plan: Plan,
    store: Store,
    *,
    reporter: Reporter | None = None,
    load_s: float | None = None,
) -> list[dict[str, Any]]:
    """Rows of all runs, of one method after another.

    Parameters
    ----------
    load_s: after so many seconds a pack may be halved; as planned by default.
    """
    study, workers = prepared.study, RayWorkers(plan, "raybias-test")

    def work(grant: Grant) -> None:
        jobs[grant.task.method].tune(grant)

    jobs = {
        method.name: TuningJob(
            prepared, backbone, training, method,
            plan.tune(backbone.name, training.name, method.name),
            store, reporter or Reporter(), workers, work,
        )
        for method in tuned_methods(study.methods_of(backbone))
    }  # fmt: skip

    graph = Graph(workers)
    for task in tasks_of(prepared, plan):
        if (task.kind, task.backbone, task.training) == ("tune", backbone.name, training.name):
            graph.add(task if load_s is None else replace(task, load=load_s), work)
    try:
        graph.run()
    finally:
        workers.close()
    return [row for job in jobs.values() for row in job.rows()]
