"""Layers split over devices, and batches side by side, compute what the whole model does.

The hooks that move hidden states work here between one CPU and itself, and what goes where is read
from the map; `fake_gpu.py` finds an operation that reads from two devices.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import dispatch_model

from raybias.config import Backbone
from raybias.engine.adapters.tuning import Trial
from raybias.engine.adapters.vectors import SoftPromptTrainer
from raybias.engine.backbone import LoadedBackbone, ModelContext, blocks, layer_split, load_backbone
from raybias.engine.context import Batcher, Execution
from raybias.engine.masked_scores import MaskedScorer, load_masked
from raybias.engine.packing import Batch, Placed, single_rows
from raybias.engine.token_scores import TokenScorer
from raybias.errors import WorkFailed
from raybias.methods import SoftPrompt
from raybias.schema import LABELS
from support import backbones, pair_models

PASSES = 3
ROWS = [tuple(row) for row in backbones.token_rows(24, seed=3)]


@pytest.mark.parametrize("kind", ["opt", "bloom", "roberta"])
def test_log_probabilities(kind: str, tmp_path: Path) -> None:
    found = []
    for passes in (1, PASSES):
        if kind == "roberta":
            spec = Backbone(id=str(pair_models.save(kind, tmp_path)), dtype="float32")
            scorer: Any = MaskedScorer(load_masked(spec, Execution(120, passes=passes)))
            asked: Any = [[(row, place) for place in range(1, len(row) - 1)] for row in ROWS]
        else:
            loaded = backbones.load(kind, tmp_path)
            split = LoadedBackbone(loaded.encoder, loaded.model, Execution(120, passes=passes))
            scorer, asked = TokenScorer(split), [(row, 1) for row in ROWS]
        assert scorer.batcher.pipeline.depth == passes
        found.append(scorer.prepare(asked)())
    assert all(np.array_equal(mine, its) for mine, its in zip(*found, strict=True))


def batcher(passes: int = PASSES, tokens: int = 120) -> Batcher:
    return Batcher(Execution(tokens, passes=passes), "m", side_by_side=True)


def placed() -> list[Placed]:
    return [Placed(0, each) for each in single_rows(ROWS)]


def test_batches_are_under_way_together_and_results_in_order() -> None:
    together, count, seen = threading.Barrier(PASSES), itertools.count(), []

    def work(batch: Batch) -> int:
        assert not torch.is_grad_enabled()
        if next(count) < PASSES:
            together.wait(timeout=60)
        return batch.rows[0][1]

    with torch.no_grad():
        for batch, first in batcher().each(work, placed()):
            assert batch.rows[0][1] == first
            seen.extend(row for _, row in batch.rows)
    one = batcher(passes=1).each(lambda batch: None, placed())
    assert seen == [row for batch, _ in one for _, row in batch.rows]


@pytest.mark.parametrize(
    ("alone", "error"),
    [(False, torch.OutOfMemoryError("CUDA out of memory.")),
     (True, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))],
)  # fmt: skip
def test_running_out_of_memory_beside_others(alone: bool, error: RuntimeError) -> None:
    """What fits by itself only is computed by itself; what does not fit so is an error."""
    under_way, lock, rows = 0, threading.Lock(), []

    def work(batch: Batch) -> None:
        nonlocal under_way
        with lock:
            under_way += 1
            beside = under_way
        try:
            if (beside > 1 and alone) or len(batch.rows) > 2:
                raise error
        finally:
            with lock:
                under_way -= 1

    cut = batcher()
    for batch, _ in cut.each(work, placed()):
        assert len(batch.rows) <= 2
        rows.extend(row for _, row in batch.rows)
    assert sorted(rows) == list(range(24))

    def never(batch: Batch) -> None:
        raise error

    with pytest.raises(WorkFailed, match="does not fit the memory"):
        list(batcher().each(never, placed()))


def test_an_error_ends_the_walk_when_nothing_is_under_way() -> None:
    done = []

    def work(batch: Batch) -> None:
        if any(row == len(ROWS) - 1 for _, row in batch.rows):
            raise ValueError("bad row")
        done.append(batch)

    with pytest.raises(ValueError, match="bad row"):
        list(batcher(tokens=1).each(work, placed()))
    count = len(done)
    threading.Event().wait(0.05)
    assert len(done) == count


def test_a_context_that_was_used_goes_to_another_process() -> None:
    context = ModelContext(Backbone(id="m"), LABELS, Execution(256, devices=2, passes=2))
    context.execution.pipeline.start(lambda: 0)()
    gone = pickle.loads(pickle.dumps(context))
    assert gone == context
    assert gone.execution.pipeline.start(lambda: 1)() == 1


METHOD = SoftPrompt(
    prompt_length=4, batch_size=6, eval_every=5, max_steps=10, seeds=(1, 2), keep=1
)  # fmt: skip


def tuned(model: LoadedBackbone) -> dict[str, torch.Tensor]:
    trials = [Trial(f"s{seed}", seed, 1e-3, "final", 1e-2, 5) for seed in METHOD.seeds]
    trainer = SoftPromptTrainer(model, (2, 3, 4), METHOD)
    runs = backbones.finished(backbones.tuner(trainer, METHOD, trials, (20, 20)))
    return {name: run.weights["delta"].detach() for name, run in runs.items()}


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
