"""Worker groups: smaller passes where memory was used up, each rank its GPU, long waits."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.air._internal.device_manager.nvidia_gpu import CUDATorchDeviceManager
from ray.train.v2._internal.callbacks.accelerators import _get_visible_accelerator_ids_per_worker
from ray.util.queue import Empty

from raybias.config import Backbone, Resources
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.planning.machine import ResourceRequest
from raybias.runtime.worker_group import BrokenPass, run_group, tell_device, within_memory
from raybias.storage import Store


def test_each_start_has_half_of_the_passes_that_were_too_large(tmp_path: Path) -> None:
    store, context = Store(str(tmp_path)), ModelContext(Backbone(id="m"), (), Execution(4096))
    given = []
    errors: list[Exception] = [
        torch.OutOfMemoryError("CUDA out of memory."),
        ValueError("no memory's fault"),
        # Its first pass ran out of memory on this rank, and the budget was halved in vain.
        BrokenPass("a pass broke off"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
    ]
    for error in errors:
        with suppress(type(error)), within_memory(context, store, "train/x") as here:
            given.append(here.execution.tokens_per_batch)
            raise error
    with within_memory(context, store, "train/x") as here:
        given.append(here.execution.tokens_per_batch)
    assert given == [4096, 2048, 2048, 1024, 512]
    with within_memory(context, store, "train/y") as here:
        assert here.execution.tokens_per_batch == 4096


@pytest.mark.parametrize("gpus", [2, 12])
def test_each_rank_computes_on_the_gpu_that_ray_gave_it(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed counts GPUs by LOCAL_RANK, and Ray Train shows them sorted as text."""
    ids = [str(n) for n in range(gpus)]
    members: Any = [SimpleNamespace(node_id="node", accelerator_ids={"GPU": [n]}) for n in ids]
    visible = _get_visible_accelerator_ids_per_worker(members, "GPU")
    for rank, given in enumerate(ids):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible[rank])
        monkeypatch.setattr(ray, "get_gpu_ids", lambda given=given: [given])
        (device,) = CUDATorchDeviceManager().get_devices()
        tell_device(device)
        assert visible[rank].split(",")[int(os.environ["LOCAL_RANK"])] == given


def test_ranks_wait_for_one_another_for_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's own limit of ten minutes is less than a round's evaluation and states may take."""
    need = ResourceRequest(cpus=1, gpus=1)
    plan: Any = SimpleNamespace(
        pending=False, requests={}, gpus=1, need=need, layout=SimpleNamespace(ranks=2)
    )
    made: dict[str, Any] = {}

    def trainer(work: Any, **options: Any) -> SimpleNamespace:
        made.update(options)
        return SimpleNamespace(fit=lambda: None)

    def get(timeout: float) -> None:
        raise Empty

    queue = SimpleNamespace(get=get, shutdown=lambda force: None)
    monkeypatch.setattr("ray.train.torch.TorchTrainer", trainer)
    monkeypatch.setattr("ray.util.queue.Queue", lambda actor_options: queue)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=str))
    monkeypatch.setattr("ray.put", lambda task: task)
    run_group(
        "x", plan, Resources(max_failures=1, max_preemptions=3), work=lambda _: None, task=None,
        store=Store(str(tmp_path)), add=lambda _: None,
    )  # fmt: skip
    assert made["torch_config"].timeout_s >= 3600
    failure = made["run_config"].failure_config
    assert (failure.max_failures, failure.max_preemption_failures) == (1, 3)
