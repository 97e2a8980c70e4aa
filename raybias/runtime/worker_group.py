"""A worker group of Ray Train that shares a backbone with DeepSpeed ZeRO-3.

Its ranks are started again together when one dies. Each holds a part of each weight and gathers a
layer when it is needed, forward and backward. The weights are frozen, so there is no optimizer to
shard: the prompts are small and equal on all ranks.

Tuning shares each step's rows, so that all ranks pass through the model equally often. Readers do
not: each answers shards of its own, and those that are done pass on with the others for as long as
these need them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from raybias.config import Resources
from raybias.engine.backbone import ModelContext, blocks
from raybias.errors import RaybiasError
from raybias.planning.stage_plans import Stage
from raybias.runtime.inventory import NODE_LABEL
from raybias.storage import Store
from raybias.terminal import debugging

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Seconds that ranks wait for each other, such as for one that writes large states to a slow store.
_PATIENCE_S: Final = 2 * 60 * 60


class BrokenPass(RuntimeError):
    """Raised on a rank that begins a pass while its last one was broken off."""


@contextmanager
def within_memory(context: ModelContext, store: Store, folder: str) -> Iterator[ModelContext]:
    """Give ranks the token budget that earlier ranks left in OUT, in the group's `folder`.

    A rank whose memory is used up cannot try again by itself, since the others wait for it within
    the pass. So it leaves half of the budget to the ranks that Ray Train starts in their place.
    """
    from raybias.engine.devices import out_of_memory

    place, execution = f"{folder}/tokens_per_batch", context.execution
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
    resources: Resources,
    *,
    work: Callable[[dict[str, Any]], None],
    task: object,
    store: Store,
    add: Callable[[Any], None],
) -> None:
    """Have ranks that begin and end together work on `task`; what they raise is Ray Train's error.

    name: of the folder in OUT/train that Ray Train keeps its own files in.
    work: called on each rank with `work`, a reference to the task, `progress`, a queue of reports,
        and `folder`, the group's in OUT.
    add: called with each report; of reports that are errors, the first is raised.
    """
    if plan.pending:
        # A node takes minutes to come; Ray Train would withdraw its request after one.
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "1800")
    import ray
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.util.queue import Empty, Queue

    # On the driver's own node: it outlives a worker's, and dies with the driver's.
    here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
    progress = Queue(actor_options={"num_cpus": 0, "label_selector": here})
    asked, preemptions = dict(plan.requests), resources.max_preemptions
    selector = asked.pop("label_selector", None)
    trainer = TorchTrainer(
        work,
        # By reference, so that Ray Train's controller need not import torch to read it.
        train_loop_config={"work": ray.put(task), "progress": progress, "folder": f"train/{name}"},
        torch_config=TorchConfig(timeout_s=_PATIENCE_S),
        scaling_config=ScalingConfig(
            num_workers=plan.layout.ranks,
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
    errors, ended = list[RaybiasError](), threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = ended.is_set()
            with suppress(Empty):
                while True:
                    report = progress.get(timeout=0.01 if last else 0.5)
                    if isinstance(report, RaybiasError):
                        errors.append(report)
                    else:
                        add(report)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    try:
        trainer.fit()
    finally:
        ended.set()
        following.join()
        progress.shutdown(force=True)
    if errors:
        raise errors[0]


class ProcessGroup:
    """The ranks that Ray Train has set up, which hold one backbone and walk in step."""

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
    """Shard a model (`Execution.sharding`): no rank ever holds all weights, not even in loading."""

    def __init__(self, dtype: str, device: torch.device) -> None:
        self.device = device
        self.config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": dtype == "bfloat16"},
            "fp16": {"enabled": dtype == "float16"},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        }
        self.group: ProcessGroup | None = ProcessGroup(device)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Have `from_pretrained` shard what it reads while the context is open."""
        tell_device(self.device)
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        # Inference's shared-memory all-reduce, which nothing here calls, would be compiled
        # for a minute, and needs a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        held = HfDeepSpeedConfig(self.config)  # in force for as long as this lives
        yield
        del held

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
    """Shard a model for inference, whose ranks need not do the same.

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
        self._held.append(_gathering([p for p in model.parameters() if id(p) not in sharded]))
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

    It takes GPU number LOCAL_RANK otherwise, which is not Ray Train's on a node with more than ten.
    """
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    elif device.index is not None:
        os.environ["LOCAL_RANK"] = str(device.index)
