"""What the engine computes on RAYBIAS_DEVICE ("cpu" by default) is what it computes on a CPU.

To the bit only where integers decide; products are rounded otherwise on each kind of device, so
they are held to 1e-4 of the values' size in float32, and 5e-2 in bfloat16.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from raybias.config import Backbone
from raybias.engine import keyed_draws
from raybias.engine.adapters.base import TrainingBatch
from raybias.engine.adapters.full import FullTrainer
from raybias.engine.adapters.lora import LoraTrainer
from raybias.engine.backbone import ModelContext, load_backbone
from raybias.engine.classifier import load_classifier
from raybias.engine.context import Execution
from raybias.engine.devices import as_found
from raybias.engine.sampling import Sampling
from raybias.engine.scoring.causal import LabelScorer
from raybias.engine.text_generator import TextGenerator
from raybias.methods import Full, Lora, SoftPrompt
from raybias.methods.tuned import options_for
from raybias.schema import LABELS
from support import backbones, classifiers
from support.ia3 import Ia3, Ia3Trainer

ROWS = [tuple(row) for row in backbones.token_rows(12, seed=3)]


@pytest.fixture(scope="session")
def device() -> str:
    return os.environ.get("RAYBIAS_DEVICE", "cpu")


@pytest.fixture(scope="session", autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    gap = (found.cpu().float() - expected.float()).abs().max()
    assert gap <= tolerance * max(1.0, float(expected.abs().max()))


def test_keyed_draws_are_to_the_bit_those_of_a_cpu(device: str) -> None:
    numbers = [n * 2**40 + 7 for n in range(5)]
    here, there = (
        keyed_draws.joined(keyed_draws.keys(numbers, torch.device(d)), 9) for d in ("cpu", device)
    )
    assert torch.equal(keyed_draws.words(there, 1001).cpu(), keyed_draws.words(here, 1001))
    assert torch.equal(keyed_draws.uniforms(there, 99).cpu(), keyed_draws.uniforms(here, 99))
    masks = [keyed_draws.kept(each, (7, 33), 0.1).cpu() for each in (here, there)]
    assert torch.equal(*masks)


@pytest.mark.parametrize("kind", ["opt", "llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_labels_and_answers(
    kind: str, dtype: str, tolerance: float, device: str, tmp_path: Path
) -> None:
    spec = Backbone(id=str(backbones.save(kind, tmp_path)), dtype=dtype, bos="prepend")
    logits, written = [], []
    for where in ("cpu", device):
        model = load_backbone(spec, Execution(device=where))
        logits.append(LabelScorer(model, (2, 3, 4)).score(ROWS))
        generator = TextGenerator(model)
        assert generator.shares
        greedy = Sampling(0.0, 50, 1.0, 0.0, 1.1, (1,))
        drawn = Sampling(0.8, 20, 0.9, 0.0, 1.0, (1,))
        for values in (greedy, drawn):
            found = generator.generate(
                ROWS, [(1, n) for n in range(12)], sampling=values, max_new_tokens=12
            )
            written.append([each.tokens for each in found])
    near(logits[1], logits[0], tolerance)
    if dtype == "float32":
        # A logit at the edge of a draw may fall to either side of it.
        for one, other in zip(written[:2], written[2:], strict=True):
            assert sum(a == b for a, b in zip(one, other, strict=True)) >= 11


@pytest.mark.parametrize(
    ("kind", "trainer_type", "method"),
    [("opt", LoraTrainer, Lora(dropout=0.1)), ("opt", Ia3Trainer, Ia3()),
     ("opt", FullTrainer, Full()), ("opt", None, SoftPrompt()), ("llama", None, SoftPrompt())],
)  # fmt: skip
def test_gradients_of_runs_that_share_a_pass(
    kind: str, trainer_type: Any, method: Any, device: str, tmp_path: Path
) -> None:
    spec = classifiers.spec_of(kind, tmp_path / kind)
    losses, gradients = [], []
    for where in ("cpu", device):
        if trainer_type is None:
            trainer = method.trainer(ModelContext(spec, LABELS, Execution(device=where)))
        else:
            classifier = load_classifier(spec, method, LABELS, Execution(device=where))
            trainer = trainer_type(classifier, options_for(trainer_type.options, method))
        batches = [
            TrainingBatch(
                trainer.init_weights(s), ROWS[: 8 - s], [n % 3 for n in range(8 - s)], s, 2, True
            )
            for s in range(3)
        ]
        made, loss_S = trainer.gradients(batches)
        losses.append(loss_S)
        gradients.append(made)
    near(losses[1], losses[0], 1e-4)
    for here, there in zip(*gradients, strict=True):
        assert here.keys() == there.keys()
        for name, expected in here.items():
            near(there[name], expected, 1e-4)


@pytest.mark.parametrize("method", [SoftPrompt(prompt_length=5), Lora(dropout=0.1)])
def test_bits_repeat_and_are_those_of_a_run_alone(method: Any, device: str, tmp_path: Path) -> None:
    """cuBLAS must not have been used without CUBLAS_WORKSPACE_CONFIG before (`make gpu`)."""
    spec = classifiers.spec_of("llama", tmp_path / "llama")
    with as_found():
        execution = Execution(200, device, deterministic=True)
        trainer = method.trainer(ModelContext(spec, LABELS, execution).here())
        batches = [
            TrainingBatch(
                trainer.init_weights(s), ROWS[: 12 - s], [n % 3 for n in range(12 - s)], s, 2, True
            )
            for s in range(3)
        ]
        together, again = (trainer.gradients(batches)[0] for _ in range(2))
        alone = [trainer.gradients([each])[0][0] for each in batches]
        for runs in (again, alone):
            for one, other in zip(runs, together, strict=True):
                assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("method", [SoftPrompt(prompt_length=5), Lora(dropout=0.1), Ia3()])
def test_batches_side_by_side(method: Any, device: str, tmp_path: Path) -> None:
    """Three streams of one device, as a model has where its layers are split over three."""
    spec = classifiers.spec_of("llama", tmp_path / "llama")
    found, written = [], []
    for passes in (1, 3):
        context = ModelContext(spec, LABELS, Execution(40, device, passes=passes))
        trainer = method.trainer(context.here())
        batches = [
            TrainingBatch(trainer.init_weights(s), ROWS, [n % 3 for n in range(12)], s, 2, True)
            for s in range(3)
        ]
        gradients, loss_S = trainer.gradients(batches)
        (logits_NL,) = trainer.logits([batches[0].weights], [trainer.prepare(ROWS)])
        found.append([loss_S, logits_NL, *(each for run in gradients for each in run.values())])
        generator = TextGenerator(load_backbone(spec, context.execution))
        greedy = Sampling(0.0, 50, 1.0, 0.0, 1.1, (1,))
        answers = generator.generate(
            ROWS, [(1, n) for n in range(12)], sampling=greedy, max_new_tokens=6
        )
        written.append([each.tokens for each in answers])
    for one, other in zip(*found, strict=True):
        near(other, one.cpu(), 0 if device == "cpu" else 1e-5)
    assert sum(a == b for a, b in zip(*written, strict=True)) >= 11


def test_answers_repeat(device: str, tmp_path: Path) -> None:
    spec = Backbone(id=str(backbones.save("llama", tmp_path)), dtype="float32", bos="prepend")
    drawn = Sampling(0.8, 20, 0.9, 0.01, 1.1, (1,))
    with as_found():
        execution = Execution(device=device, deterministic=True)
        generator = TextGenerator(ModelContext(spec, (), execution).here().kept(load_backbone))
        first, second = (
            generator.generate(ROWS, [(1, n) for n in range(12)], sampling=drawn, max_new_tokens=12)
            for _ in range(2)
        )
    assert [each.tokens for each in first] == [each.tokens for each in second]
