"""Rewriting with tiny random T5s and judges: draws by key, batches, limits, and who is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from raybias.config.parts import Adequacy, Rewriting
from raybias.engine.context import Execution
from raybias.engine.rewriter import INSTRUCTIONS, AdequacyModel, Rewriter, check_rewriter
from raybias.errors import ConfigError, ModelError
from support import backbones, prompting
from support.rewriters import save_judge, save_t5, save_tokenizer

TEXTS = [f"w{n} w{n + 1} " + " ".join(f"w{(7 * n + k) % 90}" for k in range(n)) for n in range(12)]
KEYS: list[tuple[str | int, ...]] = [(1, "rewrite", f"p{n}") for n in range(12)]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_judge(tmp_path_factory.mktemp("judge"))


def options(t5: Path, judge: Path, **change: object) -> Rewriting:
    adequacy = {"model": str(judge), "threshold": 0.3}
    given = {"model": str(t5), "instruction": "", "max_length": 24, "adequacy": adequacy}
    return Rewriting.model_validate({**given, **change})


@pytest.mark.long
def test_neither_batch_nor_order_nor_company_changes_a_rewriting(t5: Path, judge: Path) -> None:
    whole = Rewriter(options(t5, judge), Execution(10_000), style="formal")
    found = whole(TEXTS, KEYS)
    assert sum(map(bool, found)) > 5
    for text, made in zip(TEXTS, found, strict=True):
        scores = [score for _, score in made]
        assert scores == sorted(scores, reverse=True)
        assert all(score >= 0.3 for score in scores)
        assert text.strip() not in [each for each, _ in made]
        assert len({each for each, _ in made}) == len(made) <= 5
    one = Rewriter(options(t5, judge), Execution(1), style="formal")
    again = [one([text], [key])[0] for text, key in zip(TEXTS[::-1], KEYS[::-1], strict=True)]
    for a, b in zip(found, again[::-1], strict=True):
        assert [text for text, _ in a] == [text for text, _ in b]
        assert [score for _, score in a] == pytest.approx([score for _, score in b], abs=1e-5)
    # Another key draws others; the same key the same, for a pair's two sides.
    assert whole(TEXTS, [(2, *key[1:]) for key in KEYS]) != found
    for made in whole([TEXTS[5]] * 2, [KEYS[5]] * 2):
        assert [text for text, _ in made] == [text for text, _ in found[5]]


def test_a_draw_is_the_textbooks(t5: Path, judge: Path) -> None:
    """Top-k, then top-p, then the inverse of the cumulative distribution in order of token ids."""
    made = Rewriter(options(t5, judge, top_k=9, top_p=0.8), style="formal").candidates(TEXTS, KEYS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(t5)
    model = transformers.T5ForConditionalGeneration.from_pretrained(t5).eval()

    def draw(text: str, uniforms: np.ndarray) -> str:
        tokens, written = tokenizer(text, return_tensors="pt")["input_ids"], [0]
        for uniform in uniforms:
            with torch.no_grad():
                logits = model(input_ids=tokens, decoder_input_ids=torch.tensor([written])).logits
            share = logits[0, -1].double().softmax(-1).numpy()
            best = np.argsort(-share)[:9]
            before = np.cumsum(share[best]) - share[best]
            kept = np.sort(best[before < 0.8 * share[best].sum()])
            total = np.cumsum(share[kept])
            written.append(int(kept[np.searchsorted(total, uniform * total[-1], side="right")]))
            if written[-1] == 1:
                return str(tokenizer.decode(written, skip_special_tokens=True))
        return ""

    for text, key, found in zip(TEXTS[:2], KEYS, made, strict=False):
        drawn = [draw(text, prompting.uniforms((*key, c), 24)[0, :23].numpy()) for c in range(5)]
        assert found == [each for each in dict.fromkeys(drawn) if each and each != text.strip()]
    assert sum(map(len, made)) > 20


def test_a_judge_of_labels_gives_the_models_own_probability(judge: Path) -> None:
    model = AdequacyModel(Adequacy(model=str(judge)), Execution(40))
    pairs = [(TEXTS[n], TEXTS[-n]) for n in range(1, 12)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(judge)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(judge).eval()
    for (one, two), score in zip(pairs, model.score(pairs), strict=True):
        inputs = tokenizer(one, two, return_tensors="pt")
        assert inputs["token_type_ids"].max() == 1
        with torch.no_grad():
            wanted = plain(**inputs).logits.softmax(-1)[0, 1].item()
        assert score == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ModelError, match=r"1 of 1 texts are longer than the 80 tokens"):
        model.score([("w1 " * 60, "w2 " * 30)])


def test_lengths_are_never_cut(t5: Path, judge: Path) -> None:
    rewriter = Rewriter(options(t5, judge, max_length=12), style="formal")
    long = "w1 " * 12
    made = rewriter.candidates([TEXTS[3], long], KEYS[:2])
    assert made[1] == []
    assert all(len(each.split()) <= 10 for each in made[0])
    # The start and the end leave room for one word here.
    short = Rewriter(options(t5, judge, max_length=3), style="formal")
    keys = [(n, *key) for n in range(8) for key in KEYS]
    drawn = [each for found in short.candidates(["w1 w2"] * 96, keys) for each in found]
    assert {len(each.split()) for each in drawn} == {1}


def test_what_cannot_rewrite_is_refused_and_without_weights_as_far_as_these_tell(
    t5: Path, judge: Path, tmp_path: Path
) -> None:
    causal, single = backbones.save("gpt2", tmp_path / "gpt2"), tmp_path / "single"
    save_tokenizer(single, pairs=True)
    transformers.BertConfig(num_labels=1).save_pretrained(single)
    instructed = Rewriter(options(t5, judge, instruction=None), style="formal")
    assert instructed.instruction == INSTRUCTIONS["formal"]
    shape, judges = check_rewriter(options(t5, judge), style="formal")
    whole = transformers.T5ForConditionalGeneration.from_pretrained(t5)
    assert shape.parameters == sum(p.numel() for p in whole.parameters())
    assert (shape.vocabulary, shape.weight_bytes) == (93, 4 * shape.parameters)
    assert judges.parameters > 20_000
    for change, message in (
        ({"model": str(causal)}, "cannot load"),
        ({"adequacy": {"model": str(single)}}, "single: has no label 1"),
        ({"adequacy": {"model": str(tmp_path / "none")}}, "cannot load"),
    ):
        with pytest.raises(ModelError, match=message):
            check_rewriter(options(t5, judge, **change), style="formal")
    with pytest.raises(ModelError, match="cannot load"):
        Rewriter(options(t5, judge, model=str(causal)), style="formal")
    for refuse in (check_rewriter, Rewriter):
        with pytest.raises(ConfigError, match="no words are known that ask for the style 'haiku'"):
            refuse(options(t5, judge, instruction=None), style="haiku")


def test_embeddings_judge_by_the_cosine_of_their_means(judge: Path) -> None:
    model = AdequacyModel(Adequacy(model=str(judge), kind="embedding"), Execution(40))
    tokenizer = transformers.AutoTokenizer.from_pretrained(judge)
    plain = transformers.AutoModel.from_pretrained(judge).eval()

    def embed(text: str) -> torch.Tensor:
        with torch.no_grad():
            return plain(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)

    pairs = [(TEXTS[n], TEXTS[-n]) for n in range(1, 12)]
    for (one, two), score in zip(pairs, model.score(pairs), strict=True):
        wanted = torch.cosine_similarity(embed(one), embed(two)).item()
        assert score == pytest.approx(wanted, abs=1e-5)
