"""A worker group of Ray Train, whose ranks are started again together when one dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from raybias.config import Resources
from raybias.errors import RaybiasError
from raybias.planning.stage_plans import Stage
from raybias.runtime.inventory import NODE_LABEL
from raybias.runtime.ray_session import debugging
from raybias.storage import Store

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer
    from ray.util.queue import Queue

    from raybias.engine.backbone import ModelContext

#: The function that each rank runs, with the same argument.
Work = Callable[[dict[str, Any]], None]

#: Seconds that a group waits for nodes of an autoscaler.
_NODE_COMES_S: Final = "1800"
_POLL_S: Final = 0.5
#: Seconds that ranks wait for each other, such as for one that writes large states to a slow store.
_PATIENCE_S: Final = 2 * 60 * 60
#: File of a group's folder with the token budget of its passes, once that was too large.
_BUDGET: Final = "tokens_per_batch"


class BrokenPass(RuntimeError):
    """Raised on a rank that begins a pass while its last one was broken off."""


@contextmanager
def within_memory(context: ModelContext, store: Store, folder: str) -> Iterator[ModelContext]:
    """Give ranks the token budget of a pass that earlier ranks left in OUT.

    A rank whose memory is used up cannot try again by itself, since the others wait for it within
    the pass. So it leaves half of the budget to the ranks that Ray Train starts in their place.

    Parameters
    ----------
    folder: the worker group's, which is deleted with its work done.
    """
    from raybias.engine.batching import out_of_memory

    place, execution = f"{folder}/{_BUDGET}", context.execution
    tokens = int(store.read_text(place)) if store.exists(place) else execution.tokens_per_batch
    try:
        yield replace(context, execution=replace(execution, tokens_per_batch=tokens))
    except RuntimeError as error:
        if isinstance(error, BrokenPass) or out_of_memory(error):
            store.write_text(place, str(max(1, tokens // 2)))
        raise


def run_group(
    name: str,
    plan: Stage,
    workers: int,
    resources: Resources,
    *,
    work: Work,
    task: object,
    store: Store,
    add: Callable[[Any], None],
) -> None:
    """Have ranks that begin and end together work on `task`; what they raise is Ray Train's error.

    Parameters
    ----------
    name: of the folder in OUT/train that Ray Train keeps its own files in.
    plan: what each of so many workers asks of a node.
    resources: say how often the group is started again, after a rank has died or for a preempted
        node.
    work: called on each rank with `work`, a reference to the task, `progress`, a queue of reports,
        and `folder`, the group's in OUT.
    add: called with each report that is no error.

    Raises
    ------
    RaybiasError: the first that a rank reported, which a restart would not mend.
    """
    import ray
    from ray.util.queue import Queue

    # On the driver's own node: it outlives a worker's, and dies with the driver's.
    here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
    progress = Queue(actor_options={"num_cpus": 0, "label_selector": here})
    # By reference, so that Ray Train's controller need not import torch to read it.
    config = {"work": ray.put(task), "progress": progress, "folder": f"train/{name}"}
    errors: list[RaybiasError] = []
    try:
        with _collecting(progress, add, errors):
            trainer_of(name, plan, workers, resources, work=work, config=config, store=store).fit()
    finally:
        progress.shutdown(force=True)
    if errors:
        raise errors[0]


def trainer_of(
    name: str,
    plan: Stage,
    workers: int,
    resources: Resources,
    *,
    work: Work,
    config: dict[str, Any],
    store: Store,
) -> TorchTrainer:
    """Return Ray Train's trainer of a group."""
    if plan.pending:
        # A node takes minutes to come; Ray Train would withdraw its request after one.
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _NODE_COMES_S)
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    asked, preemptions = dict(plan.requests), resources.max_preemptions
    selector = asked.pop("label_selector", None)
    return TorchTrainer(
        work,
        train_loop_config=config,
        torch_config=TorchConfig(timeout_s=_PATIENCE_S),
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=plan.gpus > 0,
            resources_per_worker={"CPU": plan.need.cpus, "GPU": plan.gpus, **asked},
            label_selector=selector,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=store.path("train"),
            storage_filesystem=store.fs,
            failure_config=FailureConfig(
                max_failures=resources.max_failures,
                max_preemption_failures=-1 if preemptions is None else preemptions,
            ),
            logging_config=LoggingConfig(log_level="INFO" if debugging() else "CRITICAL"),
        ),
    )


@contextmanager
def _collecting(
    progress: Queue, add: Callable[[Any], None], errors: list[RaybiasError]
) -> Iterator[None]:
    """Take the queue's reports and errors while the body runs."""
    from ray.util.queue import Empty

    ended = threading.Event()

    def follow() -> None:
        while True:
            last = ended.is_set()
            try:
                while True:
                    report = progress.get(timeout=0.01 if last else _POLL_S)
                    if isinstance(report, RaybiasError):
                        errors.append(report)
                    else:
                        add(report)
            except Empty:
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
