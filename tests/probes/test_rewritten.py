"""Pairs rewritten by a given function: mirrored edits, separate sides, and what is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from raybias.errors import ConfigError
from raybias.probes.published.crows_pairs import crows_pairs
from raybias.probes.styles.rewriting import Key, mirrored, rewritten_pairs
from raybias.schema import PAIRS, REWRITTEN_PAIRS


def words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['\u2019-]\w+)*", text.lower())


def table(*rows: tuple[str, str, str]) -> pl.DataFrame:
    whole = [
        (id_, "age", "stereo", "original", more, less, False, None) for id_, more, less in rows
    ]
    return pl.DataFrame(whole, schema=pl.Schema(PAIRS), orient="row")


def swapped(pairs: pl.DataFrame) -> pl.DataFrame:
    ends = {"_more": "_less", "_less": "_more"}
    turned = pairs.rename(lambda name: name[:-5] + ends.get(name[-5:], name[-5:]))
    return turned.select(pairs.columns)


@pytest.mark.parametrize(
    ("source", "other", "rewritten", "made"),
    [
        ("He is black.", "He is white.", "He happens to be black!", "He happens to be white!"),
        # The change of case goes with the edit.
        ("Asians drive.", "White people drive.", "asians drive", "white people drive"),
        ("all poor steal", "all rich steal", "Poor people steal.", "Rich people steal."),
        # Words that one side alone has stand where their neighbour stands now.
        ("Slaves are lost", "Slaves are not lost.", "Slaves are so lost", "Slaves are not so lost"),
        ("He said he did.", "She said she did.", "Well, he said he did", "Well, she said she did"),
        # Their difference was lost, torn apart, repeated, or put into another order.
        ("The black man ran.", "The white man ran.", "The man ran.", None),
        ("An old man ran.", "A young boy ran.", "An old tired man ran.", None),
        ("He is black.", "He is white.", "He is black, so black.", None),
        ("Ann hit Bob.", "Cleo hit Dan.", "Bob was hit by Ann.", None),
        ("He is BLACK.", "He is white.", "He is bLAck.", None),
        ("Same.", "same", "The same.", None),
    ],
)
def test_an_edit_is_carried_over_or_refused(
    source: str, other: str, rewritten: str, made: str | None
) -> None:
    assert mirrored(source, other, rewritten) == made


def test_real_pairs_mirror_themselves(shared: Path) -> None:
    pairs = crows_pairs(str(shared / "data" / "crows_pairs")).select("sent_more", "sent_less")
    exact = 0
    for more, less in pairs.iter_rows():
        made = mirrored(more, less, more)
        assert made is not None
        assert words(made) == words(less)
        exact += made == less
        assert mirrored(more, less, f"I guess {more}") == f"I guess {made}"
    # The other sides differ by accident too: in marks, blanks or capitals.
    assert exact == 1455


def politely(texts: Sequence[str], keys: Sequence[Key]) -> list[list[tuple[str, float]]]:
    """Knows no sentence with "rude", and for others one that breaks a pair, then one that fits."""
    return [
        [] if "rude" in text else [("Somebody is here.", 0.99), (f"{text} Please.", 0.97)]
        for text in texts
    ]


def begs(texts: Sequence[str], keys: Sequence[Key]) -> list[list[tuple[str, float]]]:
    return [[] if "rude" in text else [(f"{text} Please.", 0.99)] for text in texts]


PAIRS_TABLE = table(
    ("a", "He is old.", "He is young."),
    ("b", "He is rude.", "He is old."),
    ("c", "She is old.", "She is young."),
)


def test_separate_sides_keep_both_originals_where_one_fails() -> None:
    made = rewritten_pairs(PAIRS_TABLE, "formal", begs, paired="separate", seed=1)
    assert made.select("style", "kept", "sent_more", "sent_less").rows() == [
        ("formal", False, "He is old. Please.", "He is young. Please."),
        ("formal", True, "He is rude.", "He is old."),
        ("formal", False, "She is old. Please.", "She is young. Please."),
    ]
    assert made.columns == REWRITTEN_PAIRS.names
    assert made["adequacy_more"].to_list() == made["adequacy_less"].to_list() == [0.99, None, 0.99]
    # Sides that come out the same are no pair.
    same = rewritten_pairs(PAIRS_TABLE, "formal", politely, paired="separate", seed=1)
    assert same["kept"].all()
    assert same["sent_more"].equals(PAIRS_TABLE["sent_more"])
    with pytest.raises(ConfigError, match="no style 'prefix_1' here; choose from formal, informal"):
        rewritten_pairs(PAIRS_TABLE, "prefix_1", begs, paired="separate", seed=1)


def test_mirror_takes_the_best_rewriting_that_can_be_carried_over() -> None:
    pairs = table(*((f"p{n}", "He is old.", "He is rude.") for n in range(40)))
    made = rewritten_pairs(pairs, "informal", politely, paired="mirror", seed=1)
    # Which side is rewritten is drawn: where it is the one that nothing is known for, it is kept.
    assert 8 < made["kept"].sum() < 32
    (row,) = made.filter(~pl.col("kept")).drop("pair_id", "cluster").unique().rows()
    sides = ("He is old. Please.", "He is rude. Please.")
    assert row == ("age", "stereo", "informal", *sides, False, 0.97, None)
    assert made.filter("kept").select("adequacy_more", "adequacy_less").null_count().row(0) == (
        (made["kept"].sum(),) * 2
    )


def test_sides_share_their_key_and_a_pair_stands_alone() -> None:
    seen: dict[str, set[Key]] = {}

    def rewrite(texts: Sequence[str], keys: Sequence[Key]) -> list[list[tuple[str, float]]]:
        for text, key in zip(texts, keys, strict=True):
            seen.setdefault(text, set()).add(key)
        return begs(texts, keys)

    for paired in ("separate", "mirror"):
        whole = rewritten_pairs(PAIRS_TABLE, "formal", rewrite, paired=paired, seed=5)
        parts = [
            rewritten_pairs(PAIRS_TABLE[n : n + 1], "formal", rewrite, paired=paired, seed=5)
            for n in range(3)
        ]
        assert pl.concat(parts).equals(whole)
        turned = rewritten_pairs(swapped(PAIRS_TABLE), "formal", rewrite, paired=paired, seed=5)
        assert swapped(turned).equals(whole)
    assert seen["He is young."] == {(5, "rewrite", "formal", "a")}
