"""A worker group whose memory was used up begins anew with smaller passes; sick GPUs are named."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch

from raybias.config import Backbone
from raybias.engine.context import Execution, ModelContext
from raybias.runtime import doctor, inventory
from raybias.runtime.worker_group import BrokenPass, within_memory
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


def test_the_doctor_names_nodes_whose_gpus_do_not_multiply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = inventory.Node(cpus=2, memory=2**33, gpus=1, gpu="A100")
    have = inventory.Inventory((node,), "made up")
    monkeypatch.setattr(doctor, "read_inventory", lambda *_, **__: have)
    monkeypatch.setattr(doctor, "connected", lambda _: nullcontext())
    monkeypatch.setattr(doctor, "cluster_weaknesses", lambda: ())
    for sick, state in (({}, "ok"), ({"10.0.0.2": inventory.multiply_on_gpu()}, "fail")):
        monkeypatch.setattr(doctor, "sick_gpus", lambda sick=sick: sick)
        (found,) = (each for each in doctor._ray(None) if each.what == "GPUs")
        assert found.state == state
        if sick and not torch.cuda.is_available():
            assert found.detail == "10.0.0.2: torch sees no GPU"
