"""A backbone whose layers are split over devices computes what the whole one does.

There are two devices only where there are two GPUs. Elsewhere the hooks that move hidden states
work between one CPU and itself, and what goes where is read from the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.context import Execution
from raybias.engine.pipelining import blocks, layer_split
from raybias.engine.scoring.causal import LabelScorer
from raybias.methods import SoftPrompt
from support import backbones

METHOD = SoftPrompt(
    prompt_length=4, batch_size=6, eval_every=5, max_steps=10, seeds=(1, 2), keep=1
)  # fmt: skip


def tuned(model: LoadedBackbone) -> dict[str, torch.Tensor]:
    trials = [Trial(f"s{seed}", seed, 1e-3, "final", 1e-2, 5) for seed in METHOD.seeds]
    rows = backbones.token_set(20, seed=5)
    trainer = SoftPromptTrainer(LabelScorer(model, (2, 3, 4)), METHOD)
    tuner = PackedTuner(trainer, METHOD.recipe, trials, train=rows, validation=rows)
    while not tuner.done:
        tuner.advance()
    return {each.run_id: tuner.runs[each.run_id].weights["delta"].detach() for each in trials}


@pytest.mark.parametrize("kind", ["opt", "opt_projected", "llama"])
def test_blocks_are_spread_and_all_else_is_on_the_first_device(kind: str, tmp_path: Path) -> None:
    model = backbones.load(kind, tmp_path).model
    devices = Execution(device="cuda", devices=2).split()
    placed = layer_split(model, devices)
    inside = {id(block): n for n, block in enumerate(blocks(model))}
    for name, device in placed.items():
        part = model.get_submodule(name)
        assert device == torch.device("cuda", inside.get(id(part), 0))
    covered = [name for name in placed for _ in model.get_submodule(name).named_parameters()]
    assert len(covered) >= len(list(model.named_parameters()))


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_split_layers_equal_the_whole(kind: str, tmp_path: Path) -> None:
    whole = backbones.load(kind, tmp_path)
    split = load_backbone(whole.spec)
    dispatch_model(split.model, layer_split(split.model, ["cpu", "cpu"]), force_hooks=True)
    assert all(block._hf_hook.execution_device == "cpu" for block in blocks(split.model))
    ours, theirs = tuned(split), tuned(whole)
    assert all(torch.equal(ours[run], theirs[run]) for run in theirs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
def test_layers_on_two_gpus_equal_the_whole(tmp_path: Path) -> None:
    spec = backbones.load("opt", tmp_path).spec
    whole = load_backbone(spec, Execution(device="cuda"))
    split = load_backbone(spec, Execution(device="cuda", devices=2))
    assert [next(block.parameters()).device.index for block in blocks(split.model)] == [0, 1]
    ours, theirs = tuned(split), tuned(whole)
    assert all(torch.allclose(ours[run], theirs[run], atol=1e-5) for run in theirs)


class TwoDevices(TorchDispatchMode):
    """Tells `cpu:0` from `cpu:1` as GPUs are told apart: no operation may read from both.

    torch drops the index, so it is kept here for each storage. What is on neither, such as a mask,
    was made where it is read.
    """

    def __init__(self, model: torch.nn.Module, placed: Mapping[str, Any]) -> None:
        super().__init__()
        self.moves = 0
        self.held: dict[int, tuple[torch.UntypedStorage, int]] = {}
        own = dict(model.named_parameters())
        for name, device in placed.items():
            tensors = [own[name]] if name in own else model.get_submodule(name).parameters()
            for tensor in tensors:
                self._put(tensor, torch.device(device).index)

    def _put(self, tensor: torch.Tensor, place: int) -> None:
        storage = tensor.untyped_storage()
        self.held[storage._cdata] = storage, place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        marks = [each.untyped_storage()._cdata for each in given if each.dim()]
        places = {self.held[mark][1] for mark in marks if mark in self.held}
        assert len(places) < 2, f"{func} reads from both devices"
        made, moved = func(*args, **kwargs), kwargs.get("device")
        if moved is not None and moved.index is not None:
            self.moves += places != {moved.index}
            places = {moved.index}
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and places:
                self._put(each, *places)
        return made


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_no_operation_reads_from_two_devices(kind: str, tmp_path: Path) -> None:
    whole = backbones.load(kind, tmp_path)
    split = load_backbone(whole.spec)
    placed = layer_split(split.model, ["cpu:0", "cpu:1"])
    tokens = torch.tensor([[5, 6, 7, 8]])
    expected = whole.model(input_ids=tokens).logits
    with pytest.raises(AssertionError, match="reads from both"), TwoDevices(split.model, placed):
        split.model(input_ids=tokens)
    # What dispatch_model puts on, less moving the weights, which a CPU does not do.
    for name, device in placed.items():
        hook = AlignDevicesHook(device, io_same_device=False)
        add_hook_to_module(split.model.get_submodule(name), hook)
    add_hook_to_module(split.model, AlignDevicesHook("cpu:0", io_same_device=True))
    with TwoDevices(split.model, placed) as devices:
        logits = split.model(input_ids=tokens).logits
    assert devices.moves
    assert torch.equal(logits, expected)
