"""Prefixes: which models take them, and where they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from raybias.config import Backbone
from raybias.engine.adapters.prefix import PrefixTrainer, check_prefixes
from raybias.engine.backbone import load_backbone
from raybias.errors import ModelError
from raybias.methods import Prefix
from raybias.storage import Store
from raybias.testing import inputs
from support import backbones, zoo

LABEL_IDS = (2, 3, 4)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mamba", "no keys and values of tokens in every layer"),
        ("falcon_h1", "no keys and values of tokens in every layer"),
        ("deepseek_v3", "keys and values of one size"),
        ("gemma4_text", "keys and values of one size"),
        # Chunks, whose masks are not those of a text that is longer by the prefix.
        ("llama4_text", "it does not compute what it computes after the tokens themselves"),
    ],
)
def test_models_that_take_no_prefixes_are_refused_in_one_line(
    kind: str, reason: str, tmp_path: Path
) -> None:
    """By their config alone, or else when they are loaded."""
    spec = Backbone(id=str(zoo.save(kind, tmp_path / kind, masked=False)))

    def load() -> PrefixTrainer:
        check_prefixes(spec)
        return PrefixTrainer(load_backbone(spec), LABEL_IDS, Prefix())

    with pytest.raises(ModelError, match=f"takes no prefixes: .*{reason}; use lora") as refused:
        load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_a_config_is_enough_where_torch_can_tell(kind: str, tmp_path: Path) -> None:
    check_prefixes(backbones.spec_of(kind, tmp_path / kind))


def test_a_prefix_that_peft_would_read_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = peft.PeftModelForCausalLM.get_prompt

    def other(self: Any, *args: Any, **options: Any) -> Any:
        cache = own(self, *args, **options)
        for layer in cache.layers:
            layer.keys = layer.keys.flip(-1)
        return cache

    monkeypatch.setattr(peft.PeftModelForCausalLM, "get_prompt", other)
    with pytest.raises(ModelError, match="PEFT would read one otherwise than it was tuned"):
        PrefixTrainer(backbones.load("llama", tmp_path), LABEL_IDS, Prefix())


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_text_and_prefix_fill_the_context(kind: str, tmp_path: Path) -> None:
    """Rows of the last length that fits are PEFT's, beside short ones; longer ones are refused."""
    spec = backbones.spec_of(kind, tmp_path / kind)
    method = Prefix(prompt_length=7)
    trainer = PrefixTrainer(load_backbone(spec), LABEL_IDS, method)
    rows = [[1, *range(2, 2 + length - 1)] for length in (64 - 7, 50, 9, 3)]
    weights = trainer.init_weights(3)
    (logits_NL,) = trainer.logits([weights], [trainer.prepare(rows)])
    trainer.save(Store(tmp_path), "prefix", weights, {})
    plain = peft.PeftModel.from_pretrained(
        backbones.load(kind, tmp_path).model, tmp_path / "prefix"
    )
    for row, found_L in zip(rows, logits_NL, strict=True):
        with torch.no_grad():
            logits_L = plain(input_ids=torch.tensor([row])).logits[0, -1, list(LABEL_IDS)]
        torch.testing.assert_close(found_L, logits_L, atol=1e-5, rtol=1e-4)
    text = " ".join(["w1"] * 57)
    with pytest.raises(ModelError, match=r"7 prefix vectors"):
        method.check_fit(inputs(spec).tokens, [text], ["text 1"])


def test_runs_of_prefixes_share_passes(tmp_path: Path) -> None:
    trainer = PrefixTrainer(backbones.load("llama", tmp_path), LABEL_IDS, Prefix(prompt_length=5))
    assert trainer.shares_passes()
