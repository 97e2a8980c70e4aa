"""Kohankhaki2024's prompts to the character, its demonstrations, and the reading of answers."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.engine.answers import FinishReason, Written
from raybias.errors import ConfigError, DataError
from raybias.methods import ChainOfThought, FewShot, ZeroShot
from raybias.methods.answer_labels import read_answer, read_reply
from raybias.methods.prompted import check_answer_words, draw_texts
from raybias.schema import LABELS, SENTENCES
from support.prompting import plain

WORDS = LABELS
OTHERS = ("bad", "okay", "good")


def test_prompts_to_the_character() -> None:
    assert plain(ZeroShot()).first("I am {x}.", WORDS) == (
        "Text: I am {x}.\n"
        "Question: Is the sentiment of the text negative, neutral, or positive?\n"
        "Answer: The sentiment is"
    )
    shots = [("Bad.", 0), ("So so", 1), ("Good!", 2)]
    assert plain(FewShot()).first("And?", WORDS, shots) == (
        "Text: Bad.\nQuestion: What is the sentiment of the text?\nAnswer: Negative.\n\n"
        "Text: So so\nQuestion: What is the sentiment of the text?\nAnswer: Neutral.\n\n"
        "Text: Good!\nQuestion: What is the sentiment of the text?\nAnswer: Positive.\n\n"
        "Text: And?\nQuestion: What is the sentiment of the text?\nAnswer:"
    )
    reasoning = (
        "Text: And?\n"
        "Question: Is the sentiment of the text negative, neutral, or positive?\n"
        "Reasoning: Let's think step by step"
    )
    cot = ChainOfThought()
    assert plain(cot).first("And?", WORDS) == reasoning
    assert plain(cot).last("And?", WORDS, reasoning=".\nFirst, ") == (
        f"{reasoning}.\nFirst, \n"
        "Answer: Therefore, from negative, neutral, or positive, the sentiment is"
    )


def test_prompts_name_the_studys_own_label_words() -> None:
    cot, shots = ChainOfThought(), [("So so", 1)]
    written = [
        plain(ZeroShot()).first("And?", OTHERS),
        plain(cot).first("And?", OTHERS),
        plain(cot).last("", OTHERS).rpartition("Answer:")[2],
        plain(FewShot()).first("And?", OTHERS, shots),
    ]
    assert all("bad, okay, or good" in prompt for prompt in written[:3])
    assert "Answer: Okay.\n\n" in written[3]
    assert not [prompt for prompt in written if any(word in prompt.lower() for word in WORDS)]
    assert FewShot().answer_words(OTHERS) == ["Bad", "Okay", "Good"]
    assert cot.answer_words(OTHERS) == list(OTHERS)


def test_a_template_is_the_users_to_set_and_braces_in_texts_stay() -> None:
    text = '{"a": {choices}} {text} {0!r}'
    asked = ZeroShot(template='{"text": "{text}"} One of {choices}:')
    assert asked.cue == ""
    led = ZeroShot(template="{text} is", cue="of {choices}")
    assert plain(led).first("It", OTHERS) == "It isof bad, okay, or good"
    with pytest.raises(ValueError, match=r"cue has \{word\}, which stands for nothing"):
        ZeroShot(cue="{word}:")
    assert plain(asked).first(text, OTHERS) == (f'{{"text": "{text}"}} One of bad, okay, or good:')
    shown = FewShot(template="{text} =", demonstration="{text} = {label}\n")
    assert plain(shown).first(text, OTHERS, [("{label}", 2)]) == (f"{{label}} = good\n{text} =")
    assert shown.answer_words(OTHERS) == list(OTHERS)
    cot = ChainOfThought(template="{text} Why?", conclusion=" {reasoning} So is {text} {choices}?")
    assert plain(cot).last("It", OTHERS, reasoning="{text}") == (
        "It Why? {text} So is It bad, okay, or good?"
    )
    assert plain(cot).record(OTHERS, ()) == {
        "prompt": "{text} Why?",
        "second_prompt": "{text} Why? {reasoning} So is {text} bad, okay, or good?",
    }


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 9), st.integers(1, 3))
def test_shots_are_whole_distinct_and_ordered(labels: list[int], seed: int, count: int) -> None:
    texts = [f"text {row}" for row in range(len(labels))]
    pool = pl.DataFrame({"text": texts, "label": labels}, pl.Schema(SENTENCES))
    in_order, shuffling = (
        FewShot(shots_per_label=count, shot_order=order) for order in ("pool", "shuffled")
    )
    sets = {"x": {"train": pool}}
    if min(map(labels.count, range(3))) < count:
        with pytest.raises(DataError, match=r"training set x: has \d+ \w+ sentences, not the"):
            in_order.draw_shots(sets, "x", seed, LABELS)
        return
    shots = in_order.draw_shots(sets, "x", seed, LABELS)
    rows = [int(text.split()[1]) for text, _ in shots]
    assert rows == sorted(set(rows))
    assert sorted(label for _, label in shots) == sorted([0, 1, 2] * count)
    assert [label for _, label in shots] == [labels[row] for row in rows]
    shuffled = shuffling.draw_shots(sets, "x", seed, LABELS)
    assert sorted(shuffled) == sorted(shots)
    assert shuffling.draw_shots(sets, "x", seed, LABELS) == shuffled


@pytest.mark.parametrize(
    ("answer", "first", "only"),
    [
        (" positive.", 2, 2),
        (" Neutral.\nNeutral", 1, 1),
        (" Neutral, not negative", 1, "several"),
        (" not NEGATIVE or positive", 0, "several"),
        (" not negative, it is positive", 0, "several"),
        (" neither positive nor negative", 2, "several"),
        (" From negative to", 0, 0),
        (" From negative to positive", 0, "several"),
        (" It is not really negative.", 0, "negated"),
        (" It isn\u2019t a positive text", 2, "negated"),
        (" non-negative", 0, "negated"),
        (" It cannot be said; negative", 0, 0),
        (" positively", 2, "none"),
        ("<think>positive at first</think> Negative.", 0, 0),
        ("<think>positive, as it seems", "none", "none"),
        ("positive <think>negative</think>", 2, 2),
        (" good", "none", "none"),
        ("", "none", "none"),
    ],
)
def test_answers_are_read_by_the_papers_rule_and_by_the_strict_one(
    answer: str, first: int | str, only: int | str
) -> None:
    for rule, expected in (("first", first), ("only", only)):
        label, unread = read_answer(answer, WORDS, rule)
        assert (unread if label is None else label) == expected
    assert read_answer("a 2+?", ("0", "1", "2+")).label == 2


def test_calibration_texts_are_drawn_evenly_from_groups() -> None:
    groups = ["a"] * 50 + ["b"] * 9
    texts = [f"{group} {n}" for n, group in enumerate(groups)]
    pool = pl.DataFrame({"text": texts, "attribute": ["x"] * 59, "group": groups})
    by = ("attribute", "group")
    drawn = draw_texts(pool, 12, seed=3, by=by)
    assert sorted(text[0] for text in drawn) == ["a"] * 6 + ["b"] * 6
    assert drawn == draw_texts(pool, 12, seed=3, by=by)
    assert len({*draw_texts(pool, 40, seed=3, by=by)}) == 18
    # Of training sentences, equally many of each label.
    labels = pool.with_columns(label=pl.int_range(59) // 50)
    assert sorted(text[0] for text in draw_texts(labels, 8, seed=3, by=("label",))) == [
        *"aaaa",
        *"bbbb",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bad", " ", "good"), "the word for neutral is empty"),
        (("bad", "Bad ", "good"), "'bad' stands for two labels"),
        (("happy", "neutral", "unhappy"), "'happy' is part of 'unhappy'"),
    ],
)
def test_words_that_cannot_be_told_apart_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_answer_words(LABELS, words)


@pytest.mark.parametrize(
    ("answer", "finish", "chat", "rule", "expected"),
    [
        ("It could be called negative if", "length", True, "only", "cut"),
        ("It could be called negative if", "length", False, "only", 0),
        ("It could be called negative if", "length", True, "first", 0),
        ("It could be called negative if", "stop", True, "only", 0),
        ("Negative. It could also", "length", True, "only", 0),
        ("Negative\n\nThe text is positive about", "length", True, "only", 0),
        ("**Negative**", "length", True, "only", 0),
        ("A film of 3.5 stars is positive when", "length", True, "only", "cut"),
        ("Not negative. It could also", "length", True, "only", "negated"),
        ("<think>It is positive.", "length", True, "only", "cut"),
        ("It could be", "length", True, "first", "cut"),
        ("positive", "content_filter", True, "first", "filtered"),
        ("positive", "content_filter", False, "only", "filtered"),
    ],
)
def test_what_ended_an_answer_decides_what_of_it_counts(
    answer: str, finish: FinishReason, chat: bool, rule: Any, expected: int | str
) -> None:
    reply = Written(answer, (), 0, finish_reason=finish)
    label, unread = read_reply(reply, WORDS, rule, chat=chat)
    assert (unread if label is None else label) == expected
