"""What the engine computes on RAYBIAS_DEVICE ("cpu" by default) is what it computes on a CPU.

To the bit only where integers decide; products are rounded otherwise on each kind of device, so
they are held to 1e-4 of the values' size in float32, and 5e-2 in bfloat16.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import labelling
from raybias.engine import keyed_draws
from raybias.engine.adapters.base import TrainingBatch
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone, ModelContext, load_backbone
from raybias.engine.context import Execution
from raybias.engine.devices import as_found
from raybias.engine.keyed_draws import Sampling
from raybias.methods import Full, Lora, SoftPrompt
from raybias.schema import LABELS
from support import backbones
from support.ia3 import Ia3

DEVICE = os.environ.get("RAYBIAS_DEVICE", "cpu")
#: That a CPU computes what it computes is seen in one case of each test.
ELSEWHERE = pytest.mark.skipif(DEVICE == "cpu", reason="RAYBIAS_DEVICE names no other device")
ROWS = [tuple(row) for row in backbones.token_rows(12, seed=3)]


@pytest.fixture(scope="session", autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    gap = (found.cpu().float() - expected.float()).abs().max()
    assert gap <= tolerance * max(1.0, float(expected.abs().max()))


def test_keyed_draws_are_to_the_bit_those_of_a_cpu() -> None:
    numbers = [n * 2**40 + 7 for n in range(5)]
    here, there = (
        keyed_draws.joined(keyed_draws.keys(numbers, torch.device(d)), 9) for d in ("cpu", DEVICE)
    )
    assert torch.equal(keyed_draws.words(there, 1001).cpu(), keyed_draws.words(here, 1001))
    assert torch.equal(keyed_draws.uniforms(there, 99).cpu(), keyed_draws.uniforms(here, 99))
    masks = [keyed_draws.kept(each, (7, 33), 0.1).cpu() for each in (here, there)]
    assert torch.equal(*masks)


def written(model: LoadedBackbone, **values: float) -> list[tuple[int, ...]]:
    """What twelve rows go on with, greedily by default."""
    sampling = replace(Sampling(0.0, 20, 0.9, 0.0, 1.1, (1,)), **values)
    keys = [(1, n) for n in range(12)]
    found = EngineAnswers(model).generate(ROWS, keys, sampling=sampling, max_new_tokens=12)
    return [each.tokens for each in found]


def batches_of(trainer: Any) -> list[TrainingBatch]:
    """Those of three runs, of which each has a row less."""
    labels = [n % 3 for n in range(12)]
    return [
        TrainingBatch(trainer.init_weights(s), ROWS[: 12 - s], labels[: 12 - s], s, 2, True)
        for s in range(3)
    ]


@pytest.mark.parametrize("kind", [pytest.param("opt", marks=ELSEWHERE), "llama"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-4), pytest.param("bfloat16", 5e-2, marks=ELSEWHERE)],
)
def test_labels_and_answers(kind: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    spec = backbones.spec_of(kind, tmp_path / kind, dtype=dtype)
    models = [load_backbone(spec, Execution(device=where)) for where in ("cpu", DEVICE)]
    expected, found = (
        labelling.label_logits(labelling.labeller(model, (2, 3, 4)), ROWS) for model in models
    )
    near(found, expected, tolerance)
    assert EngineAnswers(models[1]).shares
    if dtype == "float32":
        for temperature in (0.0, 0.8):
            one, other = (written(model, temperature=temperature) for model in models)
            # A logit at the edge of a draw may fall to either side of it.
            assert sum(a == b for a, b in zip(one, other, strict=True)) >= 11


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("opt", Lora(dropout=0.1)),
        *(pytest.param("opt", each, marks=ELSEWHERE) for each in (Ia3(), Full(), SoftPrompt())),
        pytest.param("llama", SoftPrompt(), marks=ELSEWHERE),
    ],
)
def test_gradients_of_runs_that_share_a_pass(kind: str, method: Any, tmp_path: Path) -> None:
    spec = backbones.spec_of(kind, tmp_path / kind)
    trainers = [
        method.trainer(ModelContext(spec, LABELS, Execution(device=where)))
        for where in ("cpu", DEVICE)
    ]
    (made, loss_S), (found, found_S) = (each.gradients(batches_of(each)) for each in trainers)
    near(found_S, loss_S, 1e-4)
    for here, there in zip(made, found, strict=True):
        assert here.keys() == there.keys()
        for name, expected in here.items():
            near(there[name], expected, 1e-4)


@pytest.mark.parametrize("method", [SoftPrompt(prompt_length=5), Lora(dropout=0.1)])
def test_bits_repeat_and_are_those_of_a_run_alone(method: Any, tmp_path: Path) -> None:
    """cuBLAS must not have been used without CUBLAS_WORKSPACE_CONFIG before (`make gpu`)."""
    spec = backbones.spec_of("llama", tmp_path / "llama")
    with as_found():
        context = ModelContext(spec, LABELS, Execution(200, DEVICE, deterministic=True)).here()
        trainer = method.trainer(context)
        batches = batches_of(trainer)
        together, again = (trainer.gradients(batches)[0] for _ in range(2))
        alone = [trainer.gradients([each])[0][0] for each in batches]
        for runs in (again, alone):
            for one, other in zip(runs, together, strict=True):
                assert all(torch.equal(one[name], other[name]) for name in other)
        model = context.kept(load_backbone)
        assert written(model, temperature=0.8) == written(model, temperature=0.8)


@pytest.mark.parametrize("method", [SoftPrompt(prompt_length=5), Lora(dropout=0.1), Ia3()])
def test_batches_side_by_side(method: Any, tmp_path: Path) -> None:
    """Three streams of one device, as a model has where its layers are split over three."""
    spec = backbones.spec_of("llama", tmp_path / "llama")
    found, answers = [], []
    for passes in (1, 3):
        context = ModelContext(spec, LABELS, Execution(40, DEVICE, passes=passes)).here()
        trainer = method.trainer(context)
        batches = batches_of(trainer)
        gradients, loss_S = trainer.gradients(batches)
        (logits_NL,) = trainer.logits([batches[0].weights], [trainer.prepare(ROWS)])
        found.append([loss_S, logits_NL, *(each for run in gradients for each in run.values())])
        answers.append(written(load_backbone(spec, context.execution)))
    for one, other in zip(*found, strict=True):
        near(other, one.cpu(), 0 if DEVICE == "cpu" else 1e-5)
    assert sum(a == b for a, b in zip(*answers, strict=True)) >= 11
