"""Counting of marked and bare nouns: known counts, a slow reference, parts that add up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes.corpus import Vocabulary, counts, find, vocabularies
from raybias.schema import CORPUS

RACE = Vocabulary(
    "race",
    (("african_american", "black"), ("african_american", "african american"), ("white", "white")),
    ("person", "person of note", "truck driver"),
)
HEALTH = Vocabulary(
    "disability", (("cognitive", "with dyslexia"), ("hearing", "deaf")), ("person", "writer")
)


def counted(texts: list[str | None], *known: Vocabulary) -> pl.DataFrame:
    found = find(pl.Series(texts, dtype=pl.String), [each.pattern() for each in known])
    table = counts(known, found)
    assert table.schema == pl.Schema(CORPUS)
    return table


def nonzero(table: pl.DataFrame) -> dict[tuple[str, str], int]:
    marked = {(row["term"], row["noun"]): row["marked"] for row in table.iter_rows(named=True)}
    bare = {("", row["noun"]): row["bare"] for row in table.iter_rows(named=True)}
    return {key: n for key, n in {**marked, **bare}.items() if n}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Black people met a WHITE person.", {("black", "person"): 1, ("white", "person"): 1}),
        ("person person people's persons", {("", "person"): 4}),
        ("black people white people", {("black", "person"): 1, ("white", "person"): 1}),
        ("An African-American truck driver", {("african american", "truck driver"): 1}),
        ("the truck-drivers of note", {("", "truck driver"): 1}),
        # Neither punctuation nor another word may stand between.
        ("It was black. People, white, young people", {("", "person"): 2}),
        ("non-white people, blackpeople, white personal", {("", "person"): 1}),
        ("black person of noted fame", {("black", "person"): 1}),
        ("white people of black", {("white", "person"): 1}),
        ("black\tpersons of note", {("black", "person"): 1}),
        ("“white” people -- person", {("", "person"): 2}),
        (None, {}),
    ],
)
def test_what_counts(text: str | None, expected: dict[tuple[str, str], int]) -> None:
    assert nonzero(counted([text], RACE)) == expected


def test_a_longer_noun_wins_and_terms_may_follow() -> None:
    assert nonzero(counted(["white person of note"], RACE)) == {("white", "person of note"): 1}
    texts = ["deaf people with dyslexia", "a writer with dyslexia, writers", "with dyslexia people"]
    assert nonzero(counted(texts, HEALTH)) == {
        ("deaf", "person"): 1,
        ("with dyslexia", "person"): 1,
        ("with dyslexia", "writer"): 1,
        ("", "writer"): 1,
        ("", "person"): 1,
    }


def test_an_attribute_is_counted_by_itself() -> None:
    text = ["black people, deaf people"]
    both = counted(text, RACE, HEALTH)
    alone = [counted(text, RACE), counted(text, HEALTH)]
    assert both.equals(pl.concat(alone))
    assert nonzero(alone[0]) == {("black", "person"): 1, ("", "person"): 1}


WORDS = ("black", "white", "african", "american", "African-American", "people", "Person", "truck")
tokens = st.lists(st.sampled_from([*WORDS, "driver", "drivers", "of", "note", ".", "-", "x"]))


def reference(text: str) -> Counter[tuple[str, str]]:
    """The same rule word by word, slowly."""
    words = re.sub(r"(?<=\w)-(?=\w)", " ", text.lower()).split()
    lemmas = {"people": "person", "truck drivers": "truck driver"}
    seen: Counter[tuple[str, str]] = Counter()
    place = 0
    while place < len(words):
        before = next(
            (
                (term, place + len(term.split()))
                for term in ("african american", "black", "white")
                if words[place : place + len(term.split())] == term.split()
            ),
            ("", place),
        )
        for term, at in dict.fromkeys((before, ("", place))):
            noun = next(
                (
                    " ".join(words[at : at + size])
                    for size in (3, 2, 1)
                    if " ".join(words[at : at + size])
                    in ("person", "people", "person of note", "truck driver", "truck drivers")
                ),
                "",
            )
            if noun:
                seen[term, lemmas.get(noun, noun)] += 1
                place = at + len(noun.split())
                break
        else:
            place += 1
    return seen


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(st.lists(tokens, max_size=6), st.integers(0, 6))
def test_equal_to_a_slow_reference_and_parts_add_up(lists: list[list[str]], cut: int) -> None:
    texts = [" ".join(words) for words in lists]
    expected = sum(map(reference, texts), Counter())
    assert nonzero(counted(list(texts), RACE)) == dict(expected)
    parts = [find(pl.Series(part, dtype=pl.String), [RACE.pattern()]) for part in
             (texts[cut:], texts[:cut])]  # fmt: skip
    assert counts([RACE], pl.concat(parts)).equals(counted(list(texts), RACE))


def test_vocabularies_of_the_probes(shared: Path) -> None:
    data = shared / "data"
    amazon = vocabularies(Probe(source="amazon", data=str(data / "amazon_templates")))
    # First names stand before no noun.
    assert [each.attribute for each in amazon] == [
        *("age", "nationality", "disability", "gender", "race", "religion", "sexuality"),
    ]
    nouns = {each.attribute: each.nouns for each in amazon}
    assert {"person", "culture", "family", "stereotype"} <= set(nouns["race"])
    assert {"athlete", "liar", "student"} <= set(nouns["disability"])
    (ns_prompts,) = vocabularies(Probe(source="ns_prompts", data=str(data / "ns_prompts")))
    assert {"truck driver", "systems analyst", "tool and die maker"} <= set(ns_prompts.nouns)
    assert len(ns_prompts.terms) == 11
    assert not [noun for noun in ns_prompts.nouns if noun.endswith((" is", " of", "s ", " works"))]
    # Samples know the same terms and nouns, but for the mended templates' (none here).
    path = data / "ns_prompts" / "NS-prompts_samples.tsv"
    (samples,) = vocabularies(Probe(source="ns_prompts", data=str(path)))
    assert samples.nouns == ns_prompts.nouns


def test_own_probes_need_terms_in_their_texts(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "text": ["The red bird sings.", "A bird.", "I am blue."],
            "label": [1, 1, 1],
            "attribute": "colour",
            "group": ["red", "unmarked", "blue"],
            "term": ["red", None, "blue"],
        }
    )
    frame.write_csv(tmp_path / "mine.csv")
    mine = Probe(source="file", data=str(tmp_path / "mine.csv"))
    (found,) = vocabularies(mine)
    terms = (("red", "red"), ("blue", "blue"))
    assert found == Vocabulary("colour", terms, ("bird", "person"))
    frame.drop("term").write_csv(tmp_path / "mine.csv")
    with pytest.raises(DataError, match="no terms that stand before a noun"):
        vocabularies(mine)
