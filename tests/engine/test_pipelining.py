"""Batches under way side by side give what one after another gives, to the bit on a CPU."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raybias.config import Backbone
from raybias.engine.adapters.base import TrainingBatch
from raybias.engine.backbone import LoadedBackbone, ModelContext, load_backbone
from raybias.engine.batching import Batcher
from raybias.engine.context import Execution
from raybias.engine.packing import Batch, Placed, pack
from raybias.engine.pipelining import Pipeline
from raybias.engine.sampling import Sampling
from raybias.engine.scoring.causal import TokenScorer
from raybias.engine.scoring.masked import MaskedScorer, load_masked
from raybias.engine.text_generator import TextGenerator
from raybias.errors import WorkFailed
from raybias.methods import Lora, SoftPrompt
from raybias.schema import LABELS
from support import backbones, classifiers, pair_models
from support.ia3 import Ia3

PASSES = 3
ROWS = [tuple(row) for row in backbones.token_rows(24, seed=3)]


def execution(passes: int) -> Execution:
    """How a model computes with so many batches side by side; a CPU has no other device."""
    return Execution(tokens_per_batch=120, passes=passes)


@pytest.fixture
def both(backbone: Callable[[str], LoadedBackbone]) -> Callable[[str], Iterator[LoadedBackbone]]:
    """A backbone by architecture, one batch after another and with three under way."""

    def of(kind: str) -> Iterator[LoadedBackbone]:
        loaded = backbone(kind)
        for passes in (1, PASSES):
            yield LoadedBackbone(loaded.encoder, loaded.model, execution(passes))

    return of


def batcher(passes: int = PASSES, tokens: int = 120) -> Batcher:
    pipeline = Pipeline([torch.device("cpu")], passes)
    return Batcher(
        where="m", device=torch.device("cpu"), tokens_per_batch=tokens, pipeline=pipeline
    )


def placed() -> list[Placed]:
    return [Placed(0, 0, each) for each in pack(ROWS, max_tokens=0)]


@pytest.mark.parametrize("method", [SoftPrompt(prompt_length=5), Lora(dropout=0.1), Ia3()])
def test_gradients_and_logits_of_runs(method: Any, tmp_path: Path) -> None:
    spec = classifiers.spec_of("llama", tmp_path / "llama")
    found = []
    for passes in (1, PASSES):
        context = ModelContext(spec, LABELS, execution(1)).here()
        trainer = method.trainer(context)
        trainer.batcher.pipeline = execution(passes).pipeline
        weights = [trainer.init_weights(s) for s in range(4)]
        batches = [
            TrainingBatch(each, ROWS[s:], [n % 3 for n in range(24 - s)], s, 2, True)
            for s, each in enumerate(weights)
        ]
        logits = trainer.logits(weights, [trainer.prepare(ROWS)] * 4)
        found.append((*trainer.gradients(batches), torch.stack(logits)))
    (ours, losses, logits), (theirs, their_losses, their_logits) = found
    assert torch.equal(losses, their_losses)
    assert torch.equal(logits, their_logits)
    for run, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(run[name], other[name]) for name in other)


@pytest.mark.parametrize("kind", ["opt", "qwen2", "bloom"])
def test_log_probabilities(kind: str, both: Callable[[str], Iterator[LoadedBackbone]]) -> None:
    one, three = (TokenScorer(each).prepare([(row, 1) for row in ROWS])() for each in both(kind))
    assert all(np.array_equal(mine, its) for mine, its in zip(one, three, strict=True))


def test_log_probabilities_of_masked_tokens(tmp_path: Path) -> None:
    spec = Backbone(id=str(pair_models.save("roberta", tmp_path)), dtype="float32")
    requests = [(row, place) for row in ROWS for place in range(1, len(row) - 1)]
    one, three = (
        MaskedScorer(load_masked(spec, execution(passes))).prepare(requests)() for passes in (1, 3)
    )
    assert np.array_equal(one, three)


@pytest.mark.parametrize("kind", ["opt", "llama", "bloom"])
def test_texts(kind: str, both: Callable[[str], Iterator[LoadedBackbone]]) -> None:
    keys = [(1, n) for n in range(len(ROWS))]
    sampled = Sampling(0.9, 20, 0.9, 0.0, 1.2, (1,))
    ours, theirs = (
        TextGenerator(model).generate(
            ROWS, keys, sampling=sampled, max_new_tokens=9, label_ids=(2, 3, 4)
        )
        for model in both(kind)
    )
    assert [each.tokens for each in ours] == [each.tokens for each in theirs]
    # Rows of other batches are padded otherwise, which moves the last bits of a logit.
    assert np.allclose(
        [each.label_log_probs for each in ours],
        [each.label_log_probs for each in theirs],
        atol=1e-5,
    )


def test_a_split_model_has_several_batches_under_way(tmp_path: Path) -> None:
    spec = backbones.load("opt", tmp_path).spec
    loaded = load_backbone(spec)
    split = LoadedBackbone(loaded.encoder, loaded.model, execution(2))
    assert split.batcher(side_by_side=True).pipeline.depth == 2
    assert split.batcher().pipeline.depth == 1


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


@pytest.mark.parametrize("alone", [False, True])
def test_running_out_of_memory_beside_others(alone: bool) -> None:
    """What fits by itself only is computed by itself; what does not fit so is an error."""
    under_way, lock, rows = 0, threading.Lock(), []

    def work(batch: Batch) -> None:
        nonlocal under_way
        with lock:
            under_way += 1
            beside = under_way
        try:
            if (beside > 1 and alone) or len(batch.rows) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            with lock:
                under_way -= 1

    cut = batcher()
    for batch, _ in cut.each(work, placed()):
        assert len(batch.rows) <= 2
        rows.extend(row for _, row in batch.rows)
    assert sorted(rows) == list(range(24))

    def never(batch: Batch) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

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
