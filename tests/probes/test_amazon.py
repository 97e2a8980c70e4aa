"""The Amazon expansion against the published files, and the slot rules by property."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import probe_items
from raybias.probes.checks import attribute_name
from raybias.probes.published.amazon import ATTRIBUTES
from raybias.probes.templates import fill

Row = tuple[int, str, str]


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "data" / "amazon_templates"


@pytest.fixture(scope="module")
def items(folder: Path) -> pl.DataFrame:
    return probe_items(Probe(source="amazon", data=str(folder)))


def published(path: Path) -> dict[str, list[Row]]:
    """label, group and text of every row by attribute, in the order of the file."""
    rows: dict[str, list[Row]] = {}
    for line in path.read_text("utf-8").removesuffix("\n").split("\n"):
        label, category, group, text = line.split("\t")
        rows.setdefault(attribute_name(category), []).append((int(label), group, text))
    return rows


def plain(items: pl.DataFrame) -> list[Row]:
    return items.select("label", "group", "text").rows()


def test_expansion_is_the_published_one_row_for_row(folder: Path, items: pl.DataFrame) -> None:
    expected = published(folder / "sentiment_fairness_tests.tsv")
    assert list(expected) == list(ATTRIBUTES)
    for attribute, rows in expected.items():
        found = plain(items.filter(pl.col("attribute") == attribute))
        assert found == rows, attribute
    assert plain(items) == [row for rows in expected.values() for row in rows]


def test_race_is_the_published_sample(folder: Path) -> None:
    race = probe_items(Probe(source="amazon", data=str(folder), attributes=("grouped_race",)))
    assert plain(race) == published(folder / "amazon_samples.tsv")["race"]
    assert race["label"].value_counts().sort("label")["count"].to_list() == [220, 220, 220]


def test_unknown_attribute_and_missing_data_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no attribute 'colour'.*age, nationality"):
        probe_items(Probe(source="amazon", data=str(folder), attributes=("colour",)))
    with pytest.raises(DataError, match=r"age\.csv: no such file"):
        probe_items(Probe(source="amazon", data=str(tmp_path)))
    with pytest.raises(DataError, match="needs `data`"):
        probe_items(Probe(source="amazon"))


words = st.text(st.characters(exclude_characters="{}", codec="utf-8"), min_size=1).filter(
    lambda text: text.strip() == text
)


@given(words, words, words)
def test_a_slot_takes_the_words_and_nothing_else_changes(
    before: str, phrase: str, after: str
) -> None:
    assert fill(f"{before}{{slot}}{after} ", "slot", phrase) == f"{before}{phrase}{after}"
    # Only the first letter is raised: "african american" becomes "African american".
    assert fill("{Slot}", "slot", phrase) == (phrase[0].upper() + phrase[1:]).strip()
    article = "an" if phrase[0] in "aeiouAEIOU" else "a"
    assert fill("{a:slot}", "slot", phrase) == f"{article} {phrase}"
    assert fill("{other}", "slot", phrase) == "{other}"
