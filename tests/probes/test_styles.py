"""Styles by rule: every text of Zhao2025's examples, the real files, and that sides go together."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.config import StyleOptions
from raybias.errors import ConfigError
from raybias.probes.published.crows_pairs import crows_pairs
from raybias.probes.published.winobias import winobias
from raybias.probes.registries import StyledPair, styles
from raybias.probes.styles.rules import QUESTIONS, styled
from raybias.schema import PAIRS

RULE_STYLES = [name for name, each in styles.items() if each.rule]
SENTENCES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


def pair(more: str, less: str, pair_id: str = "p") -> pl.DataFrame:
    row = (pair_id, "age", "stereo", "original", more, less, False, None)
    return pl.DataFrame([row], schema=pl.Schema(PAIRS), orient="row")


def sides(more: str, less: str, style: str, **options: object) -> tuple[str, str]:
    made = styled(pair(more, less), style, options=StyleOptions.model_validate(options))
    assert made["style"].item() == style
    return made.select("sent_more", "sent_less").row(0)


@pytest.mark.parametrize(
    ("style", "options", "more"),
    [
        ("original", {}, "The man drove."),
        ("prefix_1", {}, "It's important to acknowledge that: The man drove."),
        ("prefix_2", {}, "It's worth noting that: The man drove."),
        ("prefix_3", {}, "With that in mind: The man drove."),
        ("punctuation", {}, "The man drove!"),
        ("evidential", {}, "Apparently, The man drove."),
        ("evidential", {"evidential_comma": False}, "Apparently The man drove."),
        ("evidential", {"evidential": "Evidently"}, "Evidently, The man drove."),
        ("evidential", {"evidential_case": "lower"}, "Apparently, the man drove."),
        ("question_answer", {}, "Know what? The man drove."),
        ("question_answer", {"question": "second"}, "Want to hear something? The man drove."),
    ],
)
def test_the_papers_examples(style: str, options: dict[str, object], more: str) -> None:
    less = more.replace("he man", "he woman")
    assert sides("The man drove.", "The woman drove.", style, **options) == (more, less)


def test_endings_and_capitals() -> None:
    for text, ending in [
        ("So", "So!"),
        ("So.", "So!"),
        ("So!", "So!"),
        ("So?", "So?"),
        ("So..", "So.!"),
        ("So .", "So !"),
        ('"So."', '"So!"'),
        ('"So!"', '"So!"'),
        ('"So"', '"So"!'),
        ("So. ", "So! "),
    ]:
        assert sides(text, "x", "punctuation") == (ending, "x!")
    lower = {"evidential_case": "lower"}
    # A name keeps its capital, and then the other side keeps its own.
    for more, less, kept in [
        ("The poor stole.", "The rich stole.", False),
        ("Jamal stole.", "He stole.", True),
        ("I stole.", "They stole.", True),
        ("Theodore stole.", "They stole.", True),
    ]:
        first = "T" if kept else "t"
        made = sides(less, more, "evidential", **lower)[0].removeprefix("Apparently, ")
        assert made == (less if kept else first + less[1:])


def test_a_question_is_drawn_by_the_pair_and_the_seed(shared: Path) -> None:
    """The published texts in all styles are golden values."""
    pairs = crows_pairs(str(shared / "data" / "crows_pairs"))
    seeded = StyleOptions(question="seeded")
    drawn = styled(pairs, "question_answer", options=seeded, seed=3)
    first = drawn["sent_more"].str.starts_with(QUESTIONS[0])
    assert 650 < first.sum() < 860
    assert first.equals(drawn["sent_less"].str.starts_with(QUESTIONS[0]).alias("sent_more"))
    # Neither order nor company changes it.
    some = pairs.sample(50, shuffle=True, seed=1)
    again = styled(some, "question_answer", options=seeded, seed=3)
    same = some.select("pair_id").join(drawn, on="pair_id", maintain_order="left")
    assert again.equals(same)
    assert not styled(pairs, "question_answer", options=seeded, seed=4).equals(drawn)
    items = winobias(str(shared / "data" / "winobias"))
    made = styled(items, "question_answer", options=seeded, seed=1)
    openings = {
        (pair_id, new.removesuffix(old))
        for pair_id, new, old in zip(made["pair_id"], made["text"], items["text"], strict=True)
    }
    assert len(openings) == 792, "the sentences of a pair open alike"


def test_a_style_that_no_rule_makes_is_refused(shared: Path) -> None:
    items = winobias(str(shared / "data" / "winobias"))
    for style in ("punctuation", "formal"):
        with pytest.raises(ConfigError, match=rf"no style '{style}' here; choose from original"):
            styled(items, style)
    with pytest.raises(ConfigError, match=r"no rule makes the style 'formal'; give a file"):
        styled(pair("a", "b"), "formal")
    with pytest.raises(ConfigError, match=r"no style 'prefix_4' here; choose from"):
        styled(pair("a", "b"), "prefix_4")


@given(SENTENCES, SENTENCES, st.sampled_from(RULE_STYLES), st.text(max_size=5), st.booleans())
def test_sides_are_treated_alike(
    more: str, less: str, style: str, pair_id: str, lower: bool
) -> None:
    options = StyleOptions(question="seeded", evidential_case="lower" if lower else "keep")

    def made(one: str, two: str) -> tuple[str, str]:
        new = styled(pair(one, two, pair_id), style, options=options)
        return new.select("sent_more", "sent_less").row(0)

    swapped = made(less, more)
    assert made(more, less) == (swapped[1], swapped[0])
    assert len(set(made(more, more))) == 1


@pytest.mark.parametrize(
    ("style", "texts", "expected"),
    [
        ("lowercase", ("The Man ran.", "The Woman ran."), ["the man ran.", "the woman ran."]),
        (
            "contractions",
            ("He is not old.", "They Cannot go."),
            ["He isn't old.", "They Can't go."],
        ),
        ("contractions", ("I will not do it.", "We are here."), ["I won't do it.", "We're here."]),
        ("contractions", ("He is it.", "This island"), ["He's it.", "This island"]),
        ("typos", ("abc oooo", "abc oooo"), ["abc oooo", "abc oooo"]),
        ("typos", ("A man drove.", "A woman sang."), ["A man drove.", "A woman sang."]),
    ],
)
def test_slips_case_and_contractions(
    style: str, texts: tuple[str, str], expected: list[str]
) -> None:
    pair = StyledPair(pair_id="p", options=StyleOptions(), seed=0)
    assert list(styles[style].rule(texts, pair)) == expected


def test_a_slip_is_the_same_in_all_sides_and_drawn_by_the_pair() -> None:
    sides = ("The man drove slowly home.", "The woman drove slowly home.")
    made = set()
    for seed in range(20):
        one, other = styles["typos"].rule(
            sides, StyledPair(pair_id="p", options=StyleOptions(), seed=seed)
        )
        assert one.replace("man", "woman") == other
        assert one != sides[0]
        assert sorted(one) == sorted(sides[0])
        made.add(one)
    assert len(made) > 3
