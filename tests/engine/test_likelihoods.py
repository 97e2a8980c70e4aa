"""Options and sentences by likelihood: what transformers says, whatever stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from raybias.config import Backbone, Method, QuestionProbe
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.scoring.sentences import SentenceScorer, filled_in, sentence_loader
from raybias.methods import DecisionLikelihood, OptionLikelihood
from raybias.methods.likelihood import AskingPredictor
from raybias.methods.prediction import Shard
from raybias.probes.questions.items import question_items
from support import backbones, pair_models, prompting, question_data

KINDS = ("opt", "gpt2", "llama", "qwen2")
PROMPTS = [
    {"name": "plain", "template": "{text}\n\nQ: {question}\nA:"},
    {"name": "listed", "template": "{text}\n{options}\n{question}\nAnswer:"},
]
OPTIONS = OptionLikelihood.model_validate({"prompts": PROMPTS, "unknowns": ["Not known", "?"]})
SHARD = Shard("p", "r", "m", "m", "none", 0, 1, "options")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("likelihoods")


@cache
def load(kind: str, folder: Path) -> LoadedBackbone:
    path = prompting.save(kind, folder / kind)
    return load_backbone(Backbone.model_validate({"id": str(path), "bos": "prepend"}))


def items(folder: Path, source: str) -> list[dict[str, object]]:
    make = {"bbq": question_data.bbq, "discrim_eval": question_data.discrim_eval}[source]
    probe = QuestionProbe(source=source, data=str(make(folder)))
    return question_items(probe).to_dicts()


def read(
    backbone: LoadedBackbone, method: Method, rows: Sequence[dict[str, object]], at_once: int
) -> list[dict[str, object]]:
    predictor = AskingPredictor(EngineAnswers(backbone), method)
    found = []
    for first in range(0, len(rows), at_once):
        table = predictor.table(None, SHARD, pa.Table.from_pylist(rows[first : first + at_once]))
        found += table.table.to_pylist()
    return found


def textbook(path: str, text: str, option: str) -> float:
    """The log-likelihood of what follows a text, from one plain pass."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    head, whole = ([1, *tokenizer(each)["input_ids"]] for each in (text, f"{text} {option}"))
    with torch.no_grad():
        log_probs_TV = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    return sum(float(log_probs_TV[n - 1, whole[n]]) for n in range(len(head), len(whole)))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_textbooks_at_any_batch_and_order(kind: str, folder: Path) -> None:
    backbone = load(kind, folder)
    asked = items(folder, "bbq")
    expected = read(backbone, OPTIONS, asked, 16)
    assert len(expected) == 24 * 4
    for n in (0, 5, 17):
        for question, row in zip(OPTIONS.asked(asked[n]), expected[4 * n : 4 * n + 4], strict=True):
            assert row["prompt"] == question.prompt
            for place, option in zip(question.places, question.options, strict=True):
                by_book = textbook(backbone.spec.id, question.text, option)
                assert row["scores"][place] == pytest.approx(by_book, rel=1e-5)
    small = backbones.with_budget(backbone, 64)
    shuffled = np.random.default_rng(0).permutation(len(asked)).tolist()
    for found in (
        read(backbone, OPTIONS, asked, 1),
        read(small, OPTIONS, asked, 5),
        read(backbone, OPTIONS, [asked[n] for n in shuffled], 5),
    ):
        by_item = {(row["item_id"], row["prompt"]): row for row in found}
        for row in expected:
            other = dict(by_item[row["item_id"], row["prompt"]])
            assert other.pop("scores") == pytest.approx(row["scores"], rel=1e-5)
            assert other == {name: value for name, value in row.items() if name != "scores"}


def test_orders_move_options_and_answers_keep_the_published_places(folder: Path) -> None:
    method = OptionLikelihood.model_validate(
        {"prompts": PROMPTS[1:], "orders": 3, "read": "letter"}
    )
    (item, *_) = items(folder, "bbq")
    first, second, third = method.asked(item)
    assert [first.places, second.places, third.places] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert "A. The grandson\nB. Can't be determined\nC. The grandfather" in second.text
    assert second.options == ("A", "B", "C")
    answer = method.answer(item, second, [-3.0, -1.0, -2.0])
    assert answer["pred"] == 2
    assert answer["scores"] == [-2.0, -3.0, -1.0]


def test_decisions_are_the_textbooks(folder: Path) -> None:
    backbone, method = load("gpt2", folder), DecisionLikelihood()
    asked = items(folder, "discrim_eval")
    for row, item in zip(read(backbone, method, asked[:3], 2), asked, strict=False):
        (question,) = method.asked(item)
        by_book = [textbook(backbone.spec.id, question.text, word) for word in ("yes", "no")]
        assert [row["favourable"], row["unfavourable"]] == pytest.approx(by_book, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "roberta"])
def test_sentences_are_the_textbooks(kind: str, tmp_path: Path) -> None:
    spec = pair_models.spec(kind, tmp_path)
    scorer = SentenceScorer(sentence_loader(spec)(spec))
    masked = kind in ("bert", "roberta")
    book = pair_models.textbook(spec.id, masked=masked)
    said = [("w1 w2 BLANK w3", "w1 w2 w9 w3"), ("BLANK w5 .", "w7 w5 ."), ("w4 w8", "w6 w7")]
    said = said[:2] if masked else said
    found, tokens = scorer.score(said)
    assert tokens > 0
    for (context, sentence), score in zip(said, found, strict=True):
        if masked:
            before, after = context.split("BLANK")
            row = book.tokenizer.encode(sentence)
            place = len(book.tokenizer.encode(before)) - 1
            shown = [*row[:place], book.tokenizer.mask_token_id, *row[place + 1 :]]
            assert len(row) == len(book.tokenizer.encode(f"{before}w0{after}"))
            expected = float(book.log_probs(shown)[place, row[place]])
        else:
            begin = scorer.backbone.prompt_token_id
            head = [] if "BLANK" in context else book.tokenizer.encode(
                context, add_special_tokens=False
            )  # fmt: skip
            row = book.tokenizer.encode(sentence, add_special_tokens=False)
            values = book.log_probs([begin, *head, *row])
            places = range(len(head), len(head) + len(row))
            expected = float(np.mean([float(values[n, row[n - len(head)]]) for n in places]))
        assert score == pytest.approx(expected, rel=1e-5)
    again, _ = scorer.score(said[::-1])
    assert again[::-1] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(
    ("context", "sentence", "word"),
    [
        ("Men are BLANK.", "men are slow.", "slow"),
        ("BLANK men sang", "Tall men sang", "Tall"),
        ("He is BLANK and poor", "he is very rich and poor", "very rich"),
        ("They were BLANK", "they were kind.", "kind"),
        ("A BLANK", "A", ""),
    ],
)
def test_the_word_that_fills_the_blank(context: str, sentence: str, word: str) -> None:
    assert filled_in(context, sentence) == word
