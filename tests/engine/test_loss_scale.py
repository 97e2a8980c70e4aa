"""In float16 a scaled loss has the gradient of float32, and each run has a scale of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raybias.engine.adapters import base
from raybias.engine.adapters.base import AdapterTrainer, TrainingBatch
from raybias.engine.adapters.tuning import PackedTuner, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import EarlyStop, Full, Lora, SoftPrompt, Tuned
from raybias.schema import LABELS
from support import backbones, classifiers
from support.ia3 import Ia3

OPTIONS: dict[str, Any] = {
    "batch_size": 3,
    "eval_every": 4,
    "max_steps": 6,
    "validation_rows": 0,
    "early_stop": EarlyStop(after_step=10**6, window=2),
    "seeds": (1, 2, 3),
    "keep": 1,
    "restore_best": False,
}
METHODS = (SoftPrompt(**OPTIONS), Lora(**OPTIONS), Ia3(**OPTIONS), Full(**OPTIONS))
ROWS = [tuple(row) for row in backbones.token_rows(8, seed=3)]


def trainer(method: Tuned, folder: Path, dtype: str) -> AdapterTrainer:
    path = folder / "opt"
    spec = classifiers.spec_of("opt", path).model_copy(update={"dtype": dtype})
    return method.trainer(ModelContext(spec, LABELS, Execution()))


def test_the_rule_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.amp.GradScaler("cpu").get_growth_interval() == base._GROWS_AFTER
    monkeypatch.setattr(base, "_GROWS_AFTER", 20)
    weight = torch.nn.Parameter(torch.zeros(1))
    textbook = torch.amp.GradScaler("cpu", growth_interval=20)
    optimizer, ours = torch.optim.SGD([weight], lr=1.0), base.LossScale.of(half=True)
    for step in range(70):
        finite = step not in (0, 1, 2, 30, 31)
        before = weight.item()
        weight.grad = torch.full((1,), 1.0 if finite else float("inf"))
        textbook.scale(weight.detach())  # whose first call makes the scale
        textbook.step(optimizer)
        textbook.update()
        assert ours.update(finite=finite) == (weight.item() != before)
        assert ours.factor == textbook.get_scale(), step
    assert (ours.skipped, ours.factor) == (5, 2.0**13)


@pytest.mark.parametrize("method", METHODS, ids=lambda each: each.kind)
def test_gradients_of_a_scaled_loss_are_those_of_float32(method: Tuned, tmp_path: Path) -> None:
    whole, half = (trainer(method, tmp_path, dtype) for dtype in ("float32", "float16"))
    batch = TrainingBatch(
        whole.init_weights(1), ROWS, [n % 3 for n in range(8)], 1, 0, dropout=False
    )
    (expected,), loss_S = whole.gradients([batch])
    # Heads are in float32 in any case.
    names = [name for name in expected if not name.startswith("score")]

    def distance(scale: float) -> float:
        (found,), found_S = half.gradients([replace(batch, loss_scale=scale)])
        torch.testing.assert_close(found_S, loss_S, atol=0, rtol=1e-2)
        gaps = torch.cat([(found[name] - expected[name]).flatten() for name in names])
        return float(gaps.norm() / torch.cat([expected[name].flatten() for name in names]).norm())

    assert distance(2.0**10) < 0.01
    # What a loss a million times as small comes to without a scale.
    assert distance(2.0**-20) > 0.9


def tuner(method: Tuned, folder: Path, names: list[str], scales: dict[str, float]) -> PackedTuner:
    """A pack whose runs begin with other scales than they would by themselves."""
    made = trainer(method, folder, "float16")
    trials = [Trial(n, int(n), 1e-3, "final", weight_decay=1e-2, stop_window=2) for n in names]
    sets = [backbones.token_set(count, seed=seed) for count, seed in ((12, 5), (5, 6))]
    packed = PackedTuner(made, method.recipe, trials, train=sets[0], validation=sets[1])
    for trial in trials:
        packed.runs[trial.run_id] = packed._begin(trial)
        if trial.run_id in scales:
            packed.runs[trial.run_id].scale.factor = scales[trial.run_id]
    return packed


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS, ids=lambda each: each.kind)
def test_one_run_overflows_and_no_other_waits(method: Tuned, tmp_path: Path) -> None:
    names = ["1", "2"]
    scales = {"1": 2.0**10, "2": 2.0**24}
    packed = classifiers.finished(tuner(method, tmp_path, names, scales))
    for name in names:
        alone = tuner(method, tmp_path, [name], scales)
        alone.advance()
        skipped = int(alone.state(name)["scale/skipped"])
        assert (skipped > 0) == (name == "2")
        # A restart behind steps that were left out.
        resumed = tuner(method, tmp_path, [name], {})
        resumed.load_state(name, alone.state(name))
        for other in (alone, resumed):
            found = classifiers.finished(other)[name]
            assert found.losses == packed[name].losses
            assert (found.steps, found.stop_reason) == (6, "max_steps")
            for part, tensor in found.weights.items():
                assert torch.equal(tensor, packed[name].weights[part]), (name, part)


def test_a_run_that_no_scale_makes_finite_diverged(tmp_path: Path) -> None:
    method = METHODS[0].model_copy(update={"eval_every": 25, "max_steps": 50})
    packed = tuner(method, tmp_path, ["1", "2"], {})
    with torch.no_grad():
        packed._active()
        packed.runs["2"].weights["delta"].fill_(float("inf"))
    ended = {each.run_id: each.stop_reason for each in packed.advance()}
    assert ended == {"1": None, "2": "diverged"}
    assert packed.runs["2"].steps == packed.runs["2"].scale.skipped == 17
