"""A backbone sharded over a worker group with DeepSpeed ZeRO-3.

Every rank holds a part of each weight and gathers a layer when it is needed, forward
and backward. The weights are frozen, so there is no optimizer to shard: the prompts
are small and equal on all ranks.

Tuning shares each step's rows, so that all ranks pass through the model equally often.
Readers do not: each answers shards of its own, and those that are done pass on with the
others for as long as these need them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from raybias.engine.backbone import blocks
from raybias.runtime.worker_group import BrokenPass

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ProcessGroup:
    """The engine's `Collective` over the process group that Ray Train has set up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, with the same bits on each of them."""
        summed = tensor.detach().to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.to(tensor.device)


class Zero3:
    """The engine's `Sharding`: no rank ever holds all weights, not even while loading."""

    def __init__(self, dtype: str, device: torch.device) -> None:
        self.device, self.config = device, _config(dtype)
        self.group: ProcessGroup | None = ProcessGroup(device)

    def loading(self) -> Any:
        """Return a context in which `from_pretrained` shards what it reads."""
        return _sharding_loads(self.config, self.device)

    def begin(self, model: PreTrainedModel, *, whole: bool) -> None:
        """Have a loaded model gather each layer when it is needed."""
        import deepspeed

        engine, *_ = deepspeed.initialize(model=model, config=self.config)
        if whole:
            return
        coordinator = engine.optimizer.get_param_coordinator()
        # The label head bypasses the whole model's forward pass, where DeepSpeed would begin
        # a new trace of modules; a trace that never ends is neither prefetched nor freed.
        model.base_model.register_forward_pre_hook(
            lambda *_: coordinator.reset_step(), prepend=True
        )


class ShardedInference(Zero3):
    """The engine's `Sharding` for inference, whose ranks need not do the same.

    A rank gathers each block for as long as it computes; embeddings and heads are whole on
    all ranks, so that every pass gathers the same, whichever part of the model is called.
    Until `begin_alone` all ranks must do the same.
    """

    def __init__(self, dtype: str, device: torch.device) -> None:
        super().__init__(dtype, device)
        # They share no batch.
        self.ranks, self.group = ProcessGroup(device), None
        self.model: PreTrainedModel | None = None
        self._held: list[Any] = []
        self._gathered: dict[torch.nn.Module, Any] = {}
        self._alone = self._idle = self._inside = False

    def begin(self, model: PreTrainedModel, *, whole: bool) -> None:
        """Have a loaded model gather each block when it is needed, and hold the rest."""
        self.model = model
        inside = list(blocks(model))
        sharded = {id(p) for block in inside for p in block.parameters()}
        rest = [p for p in model.parameters() if id(p) not in sharded]
        self._held.append(_gathering(rest))
        self._held[-1].__enter__()
        inside[0].register_forward_pre_hook(lambda *_: self._enter())
        for block in inside:
            block.register_forward_pre_hook(lambda block, *_: self._gather(block))
            block.register_forward_hook(lambda block, *_: self._release(block), always_call=True)
        inside[-1].register_forward_hook(lambda *_: self._leave())

    def begin_alone(self) -> None:
        """Let this rank run forward passes on its own from now on."""
        self._alone = True

    def end_alone(self) -> None:
        """Join the other ranks' forward passes until all have called this."""
        self._idle = True
        while self.model is not None and self.ranks.sum(torch.zeros(1)) > 0:
            token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            with torch.no_grad():
                self.model.base_model(input_ids=token, use_cache=False)

    def _enter(self) -> None:
        """Tell the others that a pass begins."""
        if not self._alone:
            return
        if self._inside:
            raise BrokenPass("a pass through a sharded backbone broke off; the ranks differ")
        self._inside = True
        if not self._idle:
            self.ranks.sum(torch.ones(1))

    def _leave(self) -> None:
        self._inside = False

    def _gather(self, block: torch.nn.Module) -> None:
        self._gathered[block] = _gathering(list(block.parameters()))
        self._gathered[block].__enter__()

    def _release(self, block: torch.nn.Module) -> None:
        if (gathered := self._gathered.pop(block, None)) is not None:
            gathered.__exit__(None, None, None)


def _gathering(parameters: list[Any]) -> Any:
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def tell_device(device: torch.device) -> None:
    """Tell DeepSpeed which device this rank computes on.

    It takes GPU number LOCAL_RANK otherwise, which is another than Ray Train's on a node with more
    than ten: there the GPUs that a process sees are in the order of their ids as text.
    """
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    elif device.index is not None:
        os.environ["LOCAL_RANK"] = str(device.index)


@contextmanager
def _sharding_loads(config: dict[str, Any], device: torch.device) -> Iterator[None]:
    tell_device(device)
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    # Inference's shared-memory all-reduce, which nothing here calls, would be compiled
    # for a minute, and needs a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    held = HfDeepSpeedConfig(config)  # in force for as long as this lives
    yield
    del held


def _config(dtype: str) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": dtype == "bfloat16"},
        "fp16": {"enabled": dtype == "float16"},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
