"""A user's own probe: what is taken, and the one line that each fault gives."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import probe_items
from raybias.schema import ITEMS

GOOD = {
    "text": ["One, two.", "Three", 'Say "four"'],
    "label": ["negative", "1", "Positive"],
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ["0", "3", "1"]}, r"mine\.csv row 2: label '3' is none of negative, neutral"),
        ({"label": ["0", None, "1"]}, r"mine\.csv row 2: label is empty"),
        ({"group": ["a", "b", "  "]}, r"mine\.csv row 3: group is empty"),
        ({"text": ["a", None, "c"]}, r"mine\.csv row 2: text is empty"),
        ({"item_id": ["a", "b", "a"]}, r"mine\.csv row 3: item_id 'a' is already in row 1"),
        ({"group": None, "grup": ["a", "b", "c"]}, r"no column 'group'; rename 'grup'"),
        ({"text": [], "label": [], "attribute": [], "group": []}, r"holds no rows"),
    ],
)
def test_a_fault_names_its_row_and_value(
    tmp_path: Path, change: dict[str, list[object] | None], message: str
) -> None:
    columns = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(DataError, match=message):
        probe(tmp_path / "mine.csv", columns)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("text")
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff,1\n")
    (tmp_path / "empty.csv").write_text("")
    for name, message in [
        ("a.parquet", "cannot be read as a Parquet table"),
        ("a.txt", r"none of \.csv, \.csv\.gz, \.tsv, \.jsonl, \.jsonl\.gz and \.parquet"),
        ("a.csv", "cannot be read as a table of UTF-8 text"),
        ("empty.csv", "cannot be read as a table of UTF-8 text"),
        ("none.csv", "no such file"),
    ]:
        with pytest.raises(DataError, match=message):
            probe_items(Probe(source="file", data=str(tmp_path / name)))
    with pytest.raises(DataError, match=r"no attribute 'sex'; choose from age, race"):
        probe(tmp_path / "mine.csv", {**GOOD}, attributes=("sex",))
