"""The attention that replaces transformers' own has its values and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from raybias.engine import attention
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.packing import Placed, pack, stack
from raybias.engine.scoring.causal import LabelScorer
from support import backbones


def gradient(model: LoadedBackbone, prompts_SPD: torch.Tensor) -> torch.Tensor:
    rows = backbones.token_rows(9, seed=7)
    batch = stack([Placed(n % 2, n % 2, each) for n, each in enumerate(pack(rows, max_tokens=40))])
    prompts_SPD = prompts_SPD.clone().requires_grad_()
    logits_NL = LabelScorer(model, (2, 3, 4)).logits(batch, prompts_SPD)
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


def test_keys_of_grouped_heads_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = backbones.load("llama", tmp_path)
    torch.manual_seed(2)
    prompts_SPD = torch.randn(2, 5, model.width)
    model.model.set_attn_implementation("sdpa")
    expected_SPD = gradient(model, prompts_SPD)
    # As on a GPU; torch is asked here whether its CPU's kernel takes groups.
    monkeypatch.setattr(type(model.model), "device", torch.device("meta"))
    attention.use_fast_attention(model.model)
    heads: list[tuple[int, int]] = []

    def counted(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        heads.append((query.shape[1], key.shape[1]))
        return torch.nn.functional.scaled_dot_product_attention(query, key, *rest, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    found_SPD = gradient(model, prompts_SPD)
    assert heads
    assert set(heads) == {(4, 2)}
    torch.testing.assert_close(found_SPD, expected_SPD, atol=1e-5, rtol=1e-4)
    # Where no kernel does, transformers' own call.
    heads.clear()
    monkeypatch.setattr(attention, "takes_groups", lambda *_: False)
    assert torch.equal(gradient(model, prompts_SPD), expected_SPD)
    assert not heads
