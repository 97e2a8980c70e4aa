"""Label logits equal the model's own, one row at a time, however they are packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raybias.config import Backbone
from raybias.engine.backbone import LoadedBackbone, ModelContext, load_backbone
from raybias.engine.context import Execution
from raybias.engine.encoder import check_lengths
from raybias.engine.model_shape import model_shape
from raybias.engine.scoring.causal import LabelScorer, TokenScorer
from raybias.engine.text_generator import TextGenerator
from raybias.engine.verbalizer import verbalizer_ids
from raybias.errors import ModelError, WorkFailed
from raybias.runtime.workers import keep_ways, slow_ways
from raybias.schema import LABELS
from raybias.storage import Store
from support import backbones

LABEL_IDS = (2, 3, 4)


def own_logits(backbone: LoadedBackbone, row: list[int], prompt_PD: torch.Tensor) -> torch.Tensor:
    """What transformers computes for one row behind a prompt, without our code."""
    text_TD = backbone.model.get_input_embeddings()(torch.tensor(row))
    with torch.no_grad():
        logits_TV = backbone.model(inputs_embeds=torch.cat([prompt_PD, text_TD])[None]).logits[0]
    return logits_TV[-1, list(LABEL_IDS)]


@pytest.mark.parametrize("kind", backbones.CONFIGS)
def test_logits_are_the_models_own(kind: str, backbone: Callable[[str], LoadedBackbone]) -> None:
    model = backbone(kind)
    rows = backbones.token_rows(23, seed=1)
    torch.manual_seed(1)
    prompts_SPD = torch.randn(3, 5, model.width)
    prompt_of_row = [n % 3 for n in range(len(rows))]
    expected_NL = torch.stack(
        [own_logits(model, row, prompts_SPD[s]) for row, s in zip(rows, prompt_of_row, strict=True)]
    )
    scorer = LabelScorer(backbones.with_budget(model, 100), LABEL_IDS)
    found_NL = scorer.score(rows, prompts_SPW=prompts_SPD, prompt_of_row=prompt_of_row)
    torch.testing.assert_close(found_NL, expected_NL, atol=2e-5, rtol=2e-5)
    assert scorer.reader.packs == (kind != "bloom")
    assert scorer.reader.part == (kind != "cohere")


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_neither_order_nor_batch_changes_a_label(
    kind: str, backbone: Callable[[str], LoadedBackbone]
) -> None:
    model = backbone(kind)
    rows = backbones.token_rows(60, seed=2)
    scored = {
        budget: LabelScorer(backbones.with_budget(model, budget), LABEL_IDS).score(rows)
        for budget in (16, 224, 4096)
    }
    backwards = LabelScorer(model, LABEL_IDS).score(rows[::-1]).flip(0)
    scorer = LabelScorer(model, LABEL_IDS)
    cut = [
        torch.cat([scorer.score(rows[n : n + size]) for n in range(0, len(rows), size)])
        for size in (1, 7, 32)
    ]
    for other in (scored[16], scored[224], backwards, *cut):
        torch.testing.assert_close(other, scored[4096], atol=1e-5, rtol=1e-5)
        assert torch.equal(other.argmax(1), scored[4096].argmax(1))


def test_bfloat16_logits_stay_near_float32(
    backbone: Callable[[str], LoadedBackbone], tmp_path_factory: pytest.TempPathFactory
) -> None:
    full = backbone("opt")
    half = backbones.load("opt", tmp_path_factory.mktemp("half"), dtype="bfloat16")
    rows = backbones.token_rows(40, seed=3)
    expected_NL = LabelScorer(full, LABEL_IDS).score(rows)
    found_NL = LabelScorer(half, LABEL_IDS).score(rows)
    assert found_NL.dtype == torch.float32
    assert (found_NL - expected_NL).abs().mean() < 0.02 * expected_NL.abs().mean()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_exhausted_memory_halves_the_batch_and_goes_on(
    error: RuntimeError, backbone: Callable[[str], LoadedBackbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = backbone("opt")
    rows = backbones.token_rows(160, seed=4)
    scorer = LabelScorer(model, LABEL_IDS)
    expected_NL = scorer.score(rows)
    real = LabelScorer.logits

    def limited(self: object, batch: object, prompts: torch.Tensor) -> torch.Tensor:
        if batch.tokens_RT.numel() > limit:
            raise error
        return real(self, batch, prompts)

    monkeypatch.setattr(LabelScorer, "logits", limited)
    limit = 300
    found_NL = scorer.score(rows)
    assert scorer.batcher.tokens_per_batch < 4096
    torch.testing.assert_close(found_NL, expected_NL, atol=1e-5, rtol=1e-5)
    limit = 10
    with pytest.raises(WorkFailed, match="tokens does not fit the memory of cpu"):
        scorer.score(rows)


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


@pytest.mark.parametrize("kind", ["opt_projected", "llama"])
def test_the_shape_without_weights_is_that_of_the_weights(
    kind: str, backbone: Callable[[str], LoadedBackbone]
) -> None:
    model = backbone(kind)
    shape = model_shape(model.spec)
    assert shape.parameters == model.model.num_parameters()
    assert (shape.width, shape.context) == (model.width, model.context)


@pytest.mark.parametrize(("kind", "fast"), [("opt", True), ("bloom", False)])
def test_ways_stand_in_out(
    kind: str, fast: bool, backbone: Callable[[str], LoadedBackbone], tmp_path: Path
) -> None:
    execution, loaded = Execution(), backbone(kind)
    model = LoadedBackbone(loaded.encoder, loaded.model, execution)
    LabelScorer(model, (2, 3, 4))
    TokenScorer(model)
    TextGenerator(model)
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
