"""Worker groups: smaller passes where memory was used up, and each rank its GPU."""

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

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.runtime.worker_group import BrokenPass, tell_device, within_memory
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
