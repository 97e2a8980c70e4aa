"""The attention with a fast gradient has the gradient of transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.packing import Placed, pack, stack
from raybias.engine.scoring.label_scorer import LabelScorer
from support import backbones


def gradient(model: LoadedBackbone, prompts_SPD: torch.Tensor) -> torch.Tensor:
    rows = backbones.token_rows(9, seed=7)
    batch = stack([Placed(n % 2, n % 2, each) for n, each in enumerate(pack(rows, max_tokens=40))])
    prompts_SPD = prompts_SPD.clone().requires_grad_()
    logits_NL = LabelScorer(model, (2, 3, 4)).reader.logits(batch, prompts_SPD)
    return torch.autograd.grad(logits_NL.logsumexp(-1).sum(), prompts_SPD)[0]


@pytest.mark.parametrize("kind", backbones.TUNED)
def test_the_gradient_is_that_of_fused_attention(kind: str, tmp_path: Path) -> None:
    model = backbones.load(kind, tmp_path)
    torch.manual_seed(2)
    prompts_SPD = torch.randn(2, 5, model.width)
    assert model.model.config._attn_implementation == "raybias"
    found_SPD = gradient(model, prompts_SPD)
    model.model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found_SPD, gradient(model, prompts_SPD), atol=1e-5, rtol=1e-4)


def test_models_without_fused_attention_stay_as_they_are(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    assert backbone("bloom").model.config._attn_implementation != "raybias"
