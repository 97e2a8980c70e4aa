"""A lexicon as the judge of continuations (HONEST), against plain regular expressions."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import polars as pl
import pytest
import yaml

import raybias
from raybias.errors import BadInput
from raybias.methods.lexicon import read_lexicon, words_of
from support.studies import GROUPS, NO_RAY, judged, run

WORDS = ("Delight", "wh  f", "two", "never said")
ASKED = ("--set", "methods.0.judge={lexicon: words.csv}")


def lexicon(folder: Path, text: str) -> Path:
    path = folder / "words.csv"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, prompts, a lexicon and a study file."""
    study = judged(tmp_path_factory.mktemp("lexicon"))
    rows = [f"{word},{category}" for word in WORDS for category in ("a", "b")]
    lexicon(study.parent, "\n".join(["word,category", *rows]))
    return study.parent


@pytest.mark.long
def test_verdicts_and_the_share_of_hurtful_completions_are_those_of_a_plain_search(
    place: Path,
) -> None:
    run(place / "study.yaml", place / "out", *ASKED, *NO_RAY)
    rows = pl.read_parquet(place / "out/predictions/mine/*.parquet")
    spaced = "|".join(r"\s+".join(map(re.escape, word.split())) for word in WORDS)
    hurtful = re.compile(rf"(?<!\w)({spaced})(?!\w)", re.IGNORECASE)
    held = {group: [0, 0] for group in (*GROUPS, "all")}
    for row in rows.iter_rows(named=True):
        found = bool(hurtful.search(row["answer"]))
        assert row["pred"] == ((0 if found else 1) if row["answer"].strip() else None)
        assert row["scores"] == [float(row["pred"] is not None)]
        for group in (row["group"], "all"):
            held[group][0] += found
            held[group][1] += 1
    assert 5 < held["all"][0] < held["all"][1] - 5
    found = raybias.open(place / "out").estimates.collect()
    shares = found.filter(score="negative_fpr", statistic="rate", condition="", scope="sentences")
    for group in GROUPS:
        hits, completions = held[group]
        assert shares.filter(group=group)["value"].item() == pytest.approx(hits / completions)
    # A word is there or not: the maximum over draws is 1 or 0.
    draws = found.filter(condition="3 draws of a prompt", statistic="rate").sort("group")
    expected, any_draw = (
        draws.filter(score=score)["value"].to_list() for score in ("expected_maximum", "any_draw")
    )
    assert expected == pytest.approx(any_draw)
    by_group = raybias.open(place / "out").by_group.collect()
    assert not {*by_group["score"]} & {"expected_maximum", "any_draw"}
    judge = yaml.safe_load((place / "out/study.yaml").read_text())["study"]["methods"][0]["judge"]
    assert judge["revision"] == hashlib.sha256((place / "words.csv").read_bytes()).hexdigest()
    assert judge["reads"] == "continuation"
    # The study goes on with the same file alone.
    run(place / "study.yaml", place / "out", *ASKED, *NO_RAY)
    before = (place / "words.csv").read_text()
    lexicon(place, f"{before}\nor,a")
    with pytest.raises(BadInput, match=r"methods\.0\.judge\.revision is .*now"):
        run(place / "study.yaml", place / "out", *ASKED, *NO_RAY)
    lexicon(place, before)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("a DELIGHT!", True),
        ("delights", False),
        ("un-delight", True),
        ("delight_", False),
        ("the delight\N{RIGHT SINGLE QUOTATION MARK}s end", True),
        ("Wh\n f", True),
        ("wh, f", False),
        ("wh", False),
        ("never really said", False),
        ("never never said", True),
        ("", False),
    ],
)
def test_entries_are_whole_words_in_any_case(place: Path, text: str, held: bool) -> None:
    assert read_lexicon(str(place / "words.csv")).holds([text]) == [held]


def test_words_end_as_unicode_has_it(tmp_path: Path) -> None:
    path = lexicon(tmp_path, "word\nSTRASSE\né\nहिन\n傻瓜\n\N{PILE OF POO}\nd'oh\n")
    found = read_lexicon(str(path))
    texts = {
        "Straße": True,
        "e\N{COMBINING ACUTE ACCENT}": True,
        "été": False,
        "हिन्दी": False,
        "你是傻瓜吗": True,
        "x\N{PILE OF POO}": True,
        "D\N{RIGHT SINGLE QUOTATION MARK}oh.": True,
        "d oh": False,
    }
    assert found.holds([*texts]) == [*texts.values()]
    assert words_of(["", "  "]) == [[], []]


@pytest.mark.parametrize(
    ("text", "judge", "message"),
    [
        (None, "lexicon: words.csv", r"words\.csv: no such file"),
        ("word,category\n", "lexicon: words.csv", r"words\.csv: has no words"),
        ("word\nbad\nBAD\n", "lexicon: words.csv", r"row 2: word 'BAD' is in the lexicon already"),
        ("word,category\nbad,a\nbad,b\nbad,a\n", "lexicon: words.csv", r"row 3: word 'bad' is in"),
        ("word,category\nbad,a\n ,a\n", "lexicon: words.csv", r"row 2: word is empty"),
        ("words\nbad\n", "lexicon: words.csv", r"no column 'word'; rename 'words'"),
        ("word\nbad\n", "lexicon: words.csv, revision: '12'", r"has the sha256 \w{12}\.\., not 12"),
        ("word\nbad\n", "lexicon: words.csv, model: judge", "either a `model` or a `lexicon`"),
        ("word\nbad\n", "reads: whole", "either a `model` or a `lexicon`"),
        ("word\nbad\n", "lexicon: words.csv, negative: a", "a lexicon has no run, negative"),
    ],
)
def test_a_lexicon_that_cannot_judge_is_one_line(
    place: Path, tmp_path: Path, text: str | None, judge: str, message: str
) -> None:
    if text is not None:
        lexicon(tmp_path, text)
    asked = f"methods.0.judge={{{judge.replace('words.csv', str(tmp_path / 'words.csv'))}}}"
    with pytest.raises(BadInput, match=message) as caught:
        run(place / "study.yaml", tmp_path / "out", "--set", asked, *NO_RAY)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_lexicon_labels_sentiment_alone(place: Path, tmp_path: Path) -> None:
    labels = ("--set", "verbalizer={harmless: fine, neutral: so, toxic: bad}")
    with pytest.raises(BadInput, match="a lexicon calls texts negative or neutral"):
        run(place / "study.yaml", tmp_path / "out", *ASKED, *labels, *NO_RAY)
