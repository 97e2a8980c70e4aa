"""A worker group of Ray Train, whose ranks are started again together when one dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raybias.runtime.ray_session import debugging
from raybias.storage import Store

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

#: The function that each rank runs, with the same argument.
Work = Callable[[dict[str, Any]], None]

#: Seconds that a group waits for nodes of an autoscaler.
_NODE_COMES_S: Final = "1800"
_SNAPSHOT: Final = "checkpoint_manager_snapshot.json"


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Workers that begin and end together.

    Attributes
    ----------
    name: of the folder in OUT/train that Ray Train keeps its own files in.
    cpus, gpus: of one worker.
    requests: other Ray options of one worker (see `placement.requests`).
    pending: nodes that an autoscaler must bring first.
    max_failures: how often the group is started again.
    max_preemptions: how often beside these for preempted nodes; any number by default.
    """

    name: str
    workers: int
    cpus: int
    gpus: int
    requests: Mapping[str, Any]
    pending: int
    max_failures: int
    max_preemptions: int | None = None

    def run(self, work: Work, config: dict[str, Any], store: Store) -> None:
        """Have every rank do `work(config)`; what ranks raise is raised by Ray Train."""
        with _interruptible():
            self._trainer(work, config, store).fit()

    def _trainer(self, work: Work, config: dict[str, Any], store: Store) -> TorchTrainer:
        # The controller looks this often for reports, and each of them waits for it.
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
        if self.pending:
            # A node takes minutes to come; Ray Train would withdraw its request after one.
            os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _NODE_COMES_S)
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
        from ray.train.v2.api.config import LoggingConfig

        self._drop_torn_snapshot(store)
        asked, preemptions = dict(self.requests), self.max_preemptions
        selector = asked.pop("label_selector", None)
        return TorchTrainer(
            work,
            train_loop_config=config,
            scaling_config=ScalingConfig(
                num_workers=self.workers,
                use_gpu=self.gpus > 0,
                resources_per_worker={"CPU": self.cpus, "GPU": self.gpus, **asked},
                label_selector=selector,
            ),
            run_config=RunConfig(
                name=self.name,
                storage_path=store.path("train"),
                storage_filesystem=store.fs,
                failure_config=FailureConfig(
                    max_failures=self.max_failures,
                    max_preemption_failures=-1 if preemptions is None else preemptions,
                ),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
                logging_config=LoggingConfig(log_level="INFO" if debugging() else "CRITICAL"),
            ),
        )

    def _drop_torn_snapshot(self, store: Store) -> None:
        """Forget checkpoints whose index a killed driver left half-written.

        Ray Train v2 restores a run of the same name from this index and refuses one
        it cannot read or that another Ray wrote; trials in progress then start again.
        """
        import ray

        snapshot = f"train/{self.name}/{_SNAPSHOT}"
        if not store.exists(snapshot):
            return
        try:
            readable = json.loads(store.read_text(snapshot))["ray_version"] == ray.__version__
        except (ValueError, KeyError):
            readable = False
        if not readable:
            store.delete_folder(f"train/{self.name}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Give Ctrl-C back to its handler after Ray Train has taken it."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
