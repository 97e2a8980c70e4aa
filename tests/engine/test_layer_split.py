"""A backbone whose layers are split over devices computes what the whole one does.

There are two devices only where there are two GPUs. Elsewhere the hooks that move hidden states
work between one CPU and itself, and what goes where is read from the map.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model

from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.context import Execution
from raybias.engine.layer_split import blocks, layer_split
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.methods import SoftPrompt
from support import backbones

METHOD = SoftPrompt(
    prompt_length=4, batch_size=6, eval_every=5, max_steps=10, seeds=(1, 2), keep=1
)  # fmt: skip


def tuned(model: LoadedBackbone) -> dict[str, torch.Tensor]:
    trials = [Trial(f"s{seed}", seed, 1e-3, "final", 1e-2, 5) for seed in METHOD.seeds]
    rows = backbones.token_set(20, seed=5)
    trainer = SoftPromptTrainer(LabelScorer(model, (2, 3, 4)), METHOD)
    tuner = PackedTuner(trainer, METHOD, trials, train=rows, validation=rows)
    while not tuner.done:
        tuner.advance()
    return {each.run_id: tuner.result(each.run_id).weights["delta"] for each in trials}


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
