"""Label logits and gradients equal the model's own, however rows are packed and attended to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import labelling
from raybias.config import Backbone
from raybias.engine import attention
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone, ModelContext, load_backbone
from raybias.engine.causal_logits import LabelLogits, make_causal_logits
from raybias.engine.context import Execution
from raybias.engine.encoder import check_lengths, verbalizer_ids
from raybias.engine.packing import Placed, pack, stack
from raybias.engine.token_scores import TokenScorer
from raybias.errors import ModelError
from raybias.runtime.predict.shards import keep_ways, slow_ways
from raybias.schema import LABELS
from raybias.storage import Store
from support import backbones

LABEL_IDS = (2, 3, 4)


@pytest.mark.parametrize("kind", backbones.CONFIGS)
def test_logits_are_the_models_own(kind: str, backbone: Callable[[str], LoadedBackbone]) -> None:
    model = backbone(kind)
    rows = backbones.token_rows(23, seed=1)
    torch.manual_seed(1)
    prompts_SPD = torch.randn(3, 5, model.width)
    for budget, prompt_PD in zip((16, 100, 4096), prompts_SPD, strict=True):
        labeller = labelling.labeller(backbones.with_budget(model, budget), LABEL_IDS)
        found_NL = labelling.label_logits(labeller, rows, prompt_PD)
        for row, found_L in zip(rows, found_NL, strict=True):
            text_TD = model.model.get_input_embeddings()(torch.tensor(row))
            with torch.no_grad():
                whole_1TD = torch.cat([prompt_PD, text_TD])[None]
                expected_L = model.model(inputs_embeds=whole_1TD).logits[0, -1, list(LABEL_IDS)]
            torch.testing.assert_close(found_L, expected_L, atol=2e-5, rtol=2e-5)
    assert (labeller.label_logits.logits.longest_packed > 0) == (kind != "bloom")
    assert labeller.label_logits.logits.head is not None


def test_bfloat16_logits_stay_near_float32(
    backbone: Callable[[str], LoadedBackbone], tmp_path: Path
) -> None:
    half = backbones.load("opt", tmp_path, dtype="bfloat16")
    rows = backbones.token_rows(40, seed=3)
    expected_NL, found_NL = (
        labelling.label_logits(labelling.labeller(model, LABEL_IDS), rows)
        for model in (backbone("opt"), half)
    )
    assert found_NL.dtype == torch.float32
    assert (found_NL - expected_NL).abs().mean() < 0.02 * expected_NL.abs().mean()


def test_label_words_must_have_distinct_first_tokens(
    backbone: Callable[[str], LoadedBackbone],
) -> None:
    tokenizer = backbone("opt").tokenizer
    assert verbalizer_ids(tokenizer, LABELS) == LABEL_IDS
    with pytest.raises(ModelError, match=r"the tokenizer of .+: .* both begin with token 4"):
        verbalizer_ids(tokenizer, ("negative", "positive w1", "positive"))
    with pytest.raises(ModelError, match="does not know the word ''"):
        verbalizer_ids(tokenizer, ("negative", "", "positive"))


def test_rows_that_are_too_long_are_counted_and_named() -> None:
    lengths = [5, 9, 12]
    check_lengths(lengths, context=20, taken=8, by="vectors", names=["a", "b", "c"])
    with pytest.raises(ModelError, match=r"2 of 3 texts .*longest: c, 12 tokens"):
        check_lengths(lengths, context=16, taken=8, by="vectors", names=["a", "b", "c"])


def test_a_backbone_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the folder has no config"):
        load_backbone(Backbone(id=str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the backbone"):
        load_backbone(Backbone(id=str(tmp_path)))


@pytest.mark.parametrize(("kind", "fast"), [("opt", True), ("bloom", False)])
def test_ways_stand_in_out(
    kind: str, fast: bool, backbone: Callable[[str], LoadedBackbone], tmp_path: Path
) -> None:
    execution, loaded = Execution(), backbone(kind)
    model = LoadedBackbone(loaded.encoder, loaded.model, execution)
    make_causal_logits(model, "labels", prompts=True)
    TokenScorer(model)
    assert EngineAnswers(model).shares
    assert {purpose: way.fastest for purpose, way in execution.ways.items()} == {
        "labels": fast, "log-probabilities": fast, "generation": True
    }  # fmt: skip
    store = Store(str(tmp_path))
    context = ModelContext(loaded.spec, (), execution).here(torch.device("cpu"))
    keep_ways(store, context)
    written = {name: store.read_text(name) for name in store.files("readers")}
    assert sorted(written) == [
        f"readers/{kind}.{purpose}.json"
        for purpose in ("generation", "labels", "log-probabilities")
    ]
    assert ("packed rows, the head where it is needed" in "".join(written.values())) == fast
    said = list(slow_ways(store))
    assert len(said) == (0 if fast else 2)
    assert all("each row alone" in line for line in said)


def gradient(model: LoadedBackbone, prompts_SPD: torch.Tensor) -> torch.Tensor:
    rows = backbones.token_rows(9, seed=7)
    batch = stack([Placed(n % 2, each) for n, each in enumerate(pack(rows, max_tokens=40))])
    prompts_SPD = prompts_SPD.clone().requires_grad_()
    label_logits = LabelLogits.of(make_causal_logits(model, "labels", prompts=True), (2, 3, 4))
    logits_NL = label_logits(batch, prompts_SPD)
    return torch.autograd.grad(logits_NL.logsumexp(-1).sum(), prompts_SPD)[0]


@pytest.mark.parametrize("kind", backbones.TUNED)
def test_the_gradient_is_that_of_fused_attention(kind: str, tmp_path: Path) -> None:
    assert backbones.load("bloom", tmp_path).model.config._attn_implementation != "raybias"
    model = backbones.load(kind, tmp_path)
    torch.manual_seed(2)
    prompts_SPD = torch.randn(2, 5, model.width)
    assert model.model.config._attn_implementation == "raybias"
    found_SPD = gradient(model, prompts_SPD)
    model.model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found_SPD, gradient(model, prompts_SPD), atol=1e-5, rtol=1e-4)


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
