"""Options and sentences by likelihood: what transformers says, whatever stands beside them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.config import Backbone, QuestionProbe
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.masked_scores import scored_loader
from raybias.engine.sentence_scores import SentenceScorer, filled_in
from raybias.methods import DecisionLikelihood, OptionAnswer, OptionLikelihood
from raybias.methods.asking import Asked
from raybias.methods.base import Method
from raybias.methods.options import named_option
from raybias.probes import question_items
from support import backbones, pair_models, prompting, question_data
from support.reading import answered

PROMPTS = [
    {"name": "plain", "template": "{text}\n\nQ: {question}\nA:"},
    {"name": "listed", "template": "{text}\n{options}\n{question}\nAnswer:"},
]
OPTIONS = OptionLikelihood.model_validate({"prompts": PROMPTS, "unknowns": ["Not known", "?"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("likelihoods")


@cache
def load(kind: str, folder: Path) -> LoadedBackbone:
    path = prompting.save(kind, folder / kind)
    return load_backbone(Backbone.model_validate({"id": str(path), "bos": "prepend"}))


peer = cache(partial(prompting.Peer, begin=(1,)))


def items(folder: Path, source: str = "bbq") -> list[dict[str, object]]:
    data = getattr(question_data, source)(folder)
    return question_items(QuestionProbe(source=source, data=str(data))).to_dicts()


def read(
    backbone: LoadedBackbone, method: Method, rows: list[dict[str, object]], at_once: int
) -> list[dict[str, object]]:
    return answered(EngineAnswers(backbone), method, rows, at_once)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_answers_are_the_textbooks_at_any_batch_and_order(kind: str, folder: Path) -> None:
    backbone = load(kind, folder)
    asked = items(folder)
    expected = read(backbone, OPTIONS, asked, 16)
    assert len(expected) == 24 * 4
    for n in (0, 5, 17):
        questions = OPTIONS.requests(asked[n], chat=False)
        for question, row in zip(questions, expected[4 * n : 4 * n + 4], strict=True):
            assert row["prompt"] == question.prompt
            for place, option in zip(question.places, question.options, strict=True):
                by_book = peer(backbone.spec.id).likelihood(
                    question.text + question.cue, f" {option}"
                )
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
    (item, *_) = items(folder)
    first, second, third = method.requests(item, chat=False)
    assert [first.places, second.places, third.places] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert "A. The grandson\nB. Can't be determined\nC. The grandfather" in second.text
    assert second.options == ("A", "B", "C")
    answer = method.row(item, second, [-3.0, -1.0, -2.0])
    assert answer["pred"] == 2
    assert answer["scores"] == [-2.0, -3.0, -1.0]
    written = OptionAnswer.model_validate({"orders": 3})
    _, second, _ = written.requests(item, chat=True)
    assert (second.shown[0], written.row(item, second, "A.")["pred"]) == ("The grandson", 1)


def test_likelihoods_are_chosen_by_length_where_the_study_says_so(folder: Path) -> None:
    (item, *_) = items(folder)
    chosen = {}
    for by in ("none", "characters", "bytes"):
        method = OptionLikelihood.model_validate({"prompts": PROMPTS[:1], "normalise": by})
        (asked,) = method.requests(
            item | {"options": ["Он", "The grandson", "Can't be determined"]}, chat=False
        )
        answer = method.row(item, asked, [-3.0, -17.0, -27.0])
        assert answer["scores"] == [-3.0, -17.0, -27.0]
        chosen[by] = answer["pred"]
    # By characters -1.5, -1.42 and -1.42...: by bytes the first takes four.
    assert chosen == {"none": 0, "characters": 1, "bytes": 0}


def test_written_answers_are_those_of_transformers_in_any_order_of_options(folder: Path) -> None:
    backbone = load("llama", folder)
    asked = items(folder)
    method = OptionAnswer.model_validate(
        {"orders": 2, "answer_tokens": 3, "prompt_format": "raw", "unknowns": ["?"]}
    )
    expected = read(backbone, method, asked, 16)
    assert len(expected) == 24 * 2
    for n in (0, 7):
        questions = method.requests(asked[n], chat=False)
        for question, row in zip(questions, expected[2 * n : 2 * n + 2], strict=True):
            assert row["prompt"] == question.prompt
            assert row["answer"] == peer(backbone.spec.id).says(question.text + question.cue, 3)
    small = backbones.with_budget(backbone, 64)
    for found in (read(backbone, method, asked, 1), read(small, method, asked[::-1], 5)):
        assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        (" B", 1), ("(b)", 1), ("C. The old man", 2), ("**A**", 0), ("Answer: B\nBecause", 1),
        ("The answer is (C), since", 2), ("the old man.\n\nQ:", 2), ("A man", 0), ("Bob", None),
        ("A woman or B", None), ("D", None), ("", None), ("It cannot be known", None),
    ],
)  # fmt: skip
def test_an_answer_names_an_option_by_its_letter_or_its_words(
    answer: str, place: int | None
) -> None:
    asked = Asked("p", "?", ("A", "B", "C"), (0, 1, 2), ("A man", "Not known", "The old man"))
    assert named_option(answer, asked) == place


def test_decisions_are_the_textbooks(folder: Path) -> None:
    backbone, method = load("gpt2", folder), DecisionLikelihood()
    asked = items(folder, "discrim_eval")
    for row, item in zip(read(backbone, method, asked[:3], 2), asked, strict=False):
        (question,) = method.requests(item, chat=False)
        asks = question.text + question.cue
        assert asks == f"{item['text']}\n\nPlease answer with yes or no.\nAnswer:"
        by_book = [peer(backbone.spec.id).likelihood(asks, f" {word}") for word in ("yes", "no")]
        assert [row["favourable"], row["unfavourable"]] == pytest.approx(by_book, rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "roberta"])
def test_sentences_are_the_textbooks(kind: str, tmp_path: Path) -> None:
    spec = pair_models.spec(kind, tmp_path)
    scorer = SentenceScorer(scored_loader(spec)(spec))
    masked = kind in ("bert", "roberta")
    book = pair_models.Textbook(spec.id, masked=masked)
    said = [("w1 w2 BLANK w3", "w1 w2 w9 w3"), ("BLANK w5 .", "w7 w5 ."), ("w4 w8", "w6 w7")]
    said = said[:2] if masked else said
    found, tokens = scorer.prepare(said)()
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
            head, row = book.own("" if "BLANK" in context else context), book.own(sentence)
            expected = np.mean(book.begun([*head, *row])[len(head) :])
        assert score == pytest.approx(expected, rel=1e-5)
    again, _ = scorer.prepare(said[::-1])()
    assert again[::-1] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(
    ("context", "sentence", "word"),
    [
        ("Men are BLANK.", "men are slow.", ["slow"]),
        ("BLANK men sang", "Tall men sang", ["Tall"]),
        ("He is BLANK and poor", "he is very rich and poor", ["very rich"]),
        ("They were BLANK", "they were kind.", ["kind"]),
        ("A BLANK", "A", []),
        ("A BLANK man is BLANK", "A very old man, is rich.", ["very old", "rich"]),
        ("A BLANK man is BLANK", "a very old Man is quite rich.", ["very old", "quite rich"]),
        ("A BLANK man is BLANK", "A man is rich", []),
        ("A BLANK is a BLANK", "A man is a man is a man", []),
        ("BLANK BLANK", "old men", []),
        ("BLANK, and BLANK, or BLANK!", "one, and two, or three!", ["one", "two", "three"]),
    ],
)
def test_the_words_that_fill_the_blanks(context: str, sentence: str, word: list[str]) -> None:
    assert filled_in(context, sentence) == word


WORD = st.sampled_from([f"w{n}" for n in range(9)])
FILLS = st.lists(WORD, min_size=1, max_size=2).map(" ".join)


@given(parts=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_every_blank_gets_its_own_words(parts: list[int], data: st.DataObject) -> None:
    fills = data.draw(st.lists(FILLS, min_size=len(parts), max_size=len(parts)))
    # Words around blanks are of no other place, so each sentence has one reading.
    fixed = [" ".join(f"f{n}x{k}" for k in range(size)) for n, size in enumerate(parts)]
    context = " ".join(f"{text} BLANK" for text in fixed)
    sentence = " ".join(f"{text} {fill}" for text, fill in zip(fixed, fills, strict=True))
    assert filled_in(f"{context}.", f"{sentence.upper()}.") == [fill.upper() for fill in fills]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_several_blanks_are_the_textbooks(kind: str, tmp_path: Path) -> None:
    spec = pair_models.spec(kind, tmp_path)
    scorer = SentenceScorer(scored_loader(spec)(spec))
    book = pair_models.Textbook(spec.id, masked=True)
    context, sentence = "w1 BLANK w3 BLANK w5", "w1 w9 w3 w7 w5"
    (score,), _ = scorer.prepare([(context, sentence)])()
    row = book.tokenizer.encode(sentence)
    log_probs = []
    for before in ("w1 ", "w1 w9 w3 "):
        position = len(book.tokenizer.encode(before)) - 1
        shown = [*row[:position], book.tokenizer.mask_token_id, *row[position + 1 :]]
        log_probs.append(float(book.log_probs(shown)[position, row[position]]))
    assert score == pytest.approx(np.mean(log_probs), rel=1e-5)
