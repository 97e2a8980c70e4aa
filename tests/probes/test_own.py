"""A user's own probe: what is taken, and the one line that each fault gives, of pairs too."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import PairProbe, Probe
from raybias.errors import DataError
from raybias.probes import pair_items, probe_items
from raybias.schema import ITEMS

GOOD = {
    "text": ["One, two.", "Three", 'Say "four"'],
    "label": ["negative", "Neutral", "Positive"],
    "attribute": ["age", "age", "race"],
    "group": ["old", "young", "x"],
}


def probe(path: Path, columns: dict[str, list[object]], **options: object) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return probe_items(Probe.model_validate({"source": "file", "data": str(path), **options}))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_four_columns_are_enough(tmp_path: Path, suffix: str) -> None:
    items = probe(tmp_path / f"mine{suffix}", {**GOOD, "note": ["", "a", "b"]})
    assert items.columns == ITEMS.names
    assert items["label"].to_list() == [0, 1, 2]
    assert items["text"].to_list() == GOOD["text"]
    assert items["item_id"].to_list() == ["mine/00000", "mine/00001", "mine/00002"]
    assert items["template_id"].equals(items["item_id"])
    assert items["term"].to_list() == [None] * 3


def test_given_keys_and_attributes_are_kept(tmp_path: Path) -> None:
    given = {**GOOD, "item_id": ["c", "b", "a"], "template_id": ["t", "t", "u"], "label": [2, 0, 1]}
    items = probe(tmp_path / "mine.parquet", given, attributes=("age",))
    assert items.select("item_id", "template_id", "label").rows() == [("c", "t", 2), ("b", "t", 0)]


PAIRS = {
    "sent_more": ["He is old.", "She is old"],
    "sent_less": ["He is young.", "She is young"],
    "bias_type": ["age", "age"],
}
PRONOUNS = {
    "pair_id": ["1", "1", "2", "2"],
    "condition": ["pro", "anti"] * 2,
    "text": [f"The nurse said that {who} was late." for who in ("she", "he")]
    + [f"The cook thanked {who}." for who in ("him", "her")],
    "pronoun": ["she", "he", "him", "her"],
    "referent": ["the nurse"] * 2 + ["the cook"] * 2,
}


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        ("file", {"label": ["0", "3", "1"]}, "row 2: label '3' is none of negative, neutral"),
        ("file", {"label": ["0", None, "1"]}, "row 2: label is empty"),
        ("file", {"group": ["a", "b", "  "]}, "row 3: group is empty"),
        ("file", {"item_id": ["a", "b", "a"]}, "row 3: item_id 'a' is already in row 1"),
        ("file", {"group": None, "grup": ["a", "b", "c"]}, "no column 'group'; rename 'grup'"),
        ("file", dict.fromkeys(GOOD, ()), "holds no rows"),
        (
            "pairs",
            {"sent_less": ["He is old. ", "x"]},
            "row 1: both sides of pair 'mine/00000'",
        ),
        ("pairs", {"sent_less": None, "less": ["a", "b"]}, "no column 'sent_less'"),
        ("pairs", {"bias_type": ["age", " "]}, "row 2: bias_type is empty"),
        ("pairs", {"cluster": ["a", None]}, "row 2: cluster is empty"),
        ("pairs", {"direction": ["stereo", "anti"]}, "row 2: direction 'anti' is none of"),
        ("pairs", {"pair_id": ["a", "a"]}, "row 2: pair_id 'a' is already in row 1"),
        ("pairs", dict.fromkeys(PAIRS, ()), "holds no rows"),
        ("coreferences", {"condition": ["pro", "both"] * 2}, "row 2: condition 'both' is none of"),
        ("coreferences", {"pronoun": ["she", "he", "it", "her"]}, "row 3: pronoun 'it' is not in"),
        ("coreferences", {"referent": ["the cook"] * 4}, "row 1: referent 'the cook' is not in"),
        ("coreferences", {"condition": ["pro"] * 4}, "pair '1' is pro, pro of type own"),
        ("coreferences", {"pair_id": ["1", "1", "2", "3"]}, "pair '2' is pro of type own"),
        ("coreferences", {"pronoun": None}, "no column 'pronoun'"),
        ("coreferences", {"other": ["Bo"] * 4}, "row 1: other 'Bo' is not in the text"),
    ],
)
def test_a_fault_names_its_row_and_value(
    tmp_path: Path, source: str, change: dict[str, list[object] | None], message: str
) -> None:
    good = {"file": GOOD, "pairs": PAIRS, "coreferences": PRONOUNS}[source]
    columns = {key: value for key, value in {**good, **change}.items() if value is not None}
    file = tmp_path / "mine.csv"
    pl.DataFrame(columns).write_csv(file)
    data = {"source": source, "data": str(file)}
    with pytest.raises(DataError) as caught:
        probe_items(Probe(**data)) if source == "file" else pair_items(PairProbe(**data))
    assert "mine.csv" in str(caught.value)
    assert message in str(caught.value)


def test_an_attribute_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no attribute 'sex'; choose from age, race"):
        probe(tmp_path / "mine.csv", {**GOOD}, attributes=("sex",))
