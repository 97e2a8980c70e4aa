"""A dozen unlike architectures are measured as plain transformers and PEFT compute them.

`make zoo` holds every architecture that transformers can build to the same (tests/zoo.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.engine.checkpoint import file_hashes
from raybias.engine.encoder import load_tokenizer
from raybias.engine.model_shape import model_shape
from raybias.engine.output_head import LogitTransform, fit_transform
from raybias.engine.self_check import attention_window
from raybias.engine.token_scores import TokenScorer
from raybias.errors import ModelError
from raybias.planning.audit import suited_methods
from support import zoo
from support.zoo_checks import check_architecture, difference

#: Windows and chunks, caps, scales, sizes by layer, experts, state spaces, and masked models.
CAUSAL = ("gemma2", "mistral", "gemma4_text", "cohere2", "granite", "deepseek_v3", "falcon_h1")
MASKED = ("distilbert", "albert", "deberta-v2", "fnet", "modernbert")
#: Refused for these reasons, each with a cure; everything else is right.
REFUSALS = {
    ("gemma4_text", "soft prompt"): "takes no soft prompts",
    ("gemma4_text", "prefix"): "do not all have keys and values of one size",
    ("deepseek_v3", "prefix"): "do not all have keys and values of one size",
    ("falcon_h1", "prefix"): "no keys and values of tokens in every layer",
    ("gemma4_text", "LoRA, classifier"): "set the method's head to label_tokens",
    ("fnet", "bfloat16"): "forward pass fails",
    ("fnet", "LoRA, classifier"): "change with the padding beside the text",
    ("cohere2", "LoRA, classifier"): "set the method's head to label_tokens",
    ("granite", "LoRA, classifier"): "set the method's head to label_tokens",
    ("falcon_h1", "LoRA, classifier"): "set the method's head to label_tokens",
}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [*CAUSAL, *MASKED])
def test_an_architecture_is_right_or_refused(kind: str, dtype: str, tmp_path: Path) -> None:
    masked = kind in MASKED
    zoo.save(kind, tmp_path / kind, masked=masked, dtype=getattr(torch, dtype))
    outcomes = check_architecture(kind, tmp_path / kind, masked=masked, dtype=dtype)
    for name, outcome in outcomes.items():
        refusal = REFUSALS.get((kind, dtype)) or REFUSALS.get((kind, name))
        assert outcome.verdict == ("refused" if refusal else "right"), (name, outcome)
        if refusal:
            assert refusal in outcome.detail


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for checkpoints with attention windows, saved when first asked for."""
    return tmp_path_factory.mktemp("windowed")


@settings(deadline=None, max_examples=12)
@given(window=st.integers(4, 40), lengths=st.lists(st.integers(3, 90), min_size=1, max_size=6))
def test_rows_of_any_length_are_scored_within_any_window(
    window: int, lengths: list[int], windowed: Path
) -> None:
    folder = windowed / f"mistral-{window}"
    if not folder.exists():
        zoo.save("mistral", folder, masked=False, sliding_window=window)
    backbone = load_backbone(Backbone(id=str(folder), dtype="float32"))
    assert attention_window(backbone.model) == window
    rows = [[2, *((7 * length + n) % 240 + 8 for n in range(length))] for length in lengths]
    for row, values in zip(
        rows, TokenScorer(backbone).prepare([(row, 1) for row in rows])(), strict=True
    ):
        with torch.no_grad():
            log_probs = backbone.model(torch.tensor([row])).logits[0].log_softmax(-1)
        expected = log_probs[range(len(row) - 1), row[1:]]
        assert difference(values, expected) < 1e-4


@settings(deadline=None, max_examples=40)
@given(
    scale=st.sampled_from([1.0, 0.0625, 0.5, 3.0]),
    cap=st.sampled_from([None, 15.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_what_a_model_does_to_its_logits_is_read_from_them(
    scale: float, cap: float | None, dtype: torch.dtype, seed: int
) -> None:
    # A model has one of the two.
    transform = LogitTransform(scale=1.0 if cap else scale, cap=cap)
    generator = torch.Generator().manual_seed(seed)
    head_logits = (torch.randn(3, 200, generator=generator) * 40).to(dtype)
    config = {"scale": 1 / scale, "inner": {"cap": cap}, "layers": 2, "tied": True, "eps": 1e-6}
    found = fit_transform(head_logits, transform(head_logits), config)
    assert found == transform
    unknown = head_logits + torch.linspace(0, 9, 200).to(dtype)
    assert fit_transform(head_logits, unknown, config) is None


def test_a_model_that_reads_both_ways_is_not_scored_as_a_causal_one(tmp_path: Path) -> None:
    zoo.save("bert-generation", tmp_path / "model", masked=False)
    with pytest.raises(ModelError, match="changes with the tokens that follow; use it as a masked"):
        TokenScorer(load_backbone(Backbone(id=str(tmp_path / "model"), dtype="float32")))


def test_an_encoder_decoder_and_an_adapter_alone_are_refused_with_what_works(
    tmp_path: Path,
) -> None:
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8
    )
    config.save_pretrained(tmp_path / "t5")
    with pytest.raises(ModelError, match=r"is an encoder-decoder .*; serve it"):
        model_shape(Backbone(id=str(tmp_path / "t5")))
    with pytest.raises(ModelError, match=r"is an encoder-decoder .*; serve it"):
        suited_methods(Backbone(id=str(tmp_path / "t5")))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not name the base model; write its hub id"):
        suited_methods(Backbone(id=str(tmp_path / "adapter")))


@pytest.mark.parametrize("field", ["lora_alpha", "r"])
def test_a_changed_adapter_beside_its_base_is_another_model(field: str, tmp_path: Path) -> None:
    folder = zoo.save("llama", tmp_path / "model", masked=False)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({field: 8}))
    before = file_hashes(folder)
    config.write_text(json.dumps({field: 64}))
    assert {name for name, digest in file_hashes(folder).items() if digest != before[name]} == {
        config.name
    }


def test_an_empty_prompt_has_no_tokens_where_a_text_must_have_some(tmp_path: Path) -> None:
    folder = zoo.save("gpt2", tmp_path / "model", masked=False)
    encoder = load_tokenizer(Backbone(id=str(folder), bos="none"))
    assert encoder.count_tokens("") == 0
    with pytest.raises(ModelError, match="has no tokens"):
        encoder.encode([""])
