"""Tables of a probe without a card: checked, and read by a study, whatever their form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pytest
import yaml

import raybias
from raybias.config import PairProbe, Probe
from raybias.errors import DataError
from raybias.probes import base_pairs, probe_items

SENTENCES = pl.DataFrame(
    {
        "text": ["he sang", "he hit", "he is", "she sang", "she hit", "she is"],
        "label": ["positive", "negative", "neutral"] * 2,
        "attribute": ["gender"] * 6,
        "group": ["male"] * 3 + ["female"] * 3,
        "template_id": ["a", "b", "c"] * 2,
        "term": ["man"] * 3 + ["woman"] * 3,
    }
)
PAIRS = pl.DataFrame(
    {"sent_more": ["a b", "c d"], "sent_less": ["a e", "c f"], "bias_type": ["age", "age"]}
)
FORMS = [".csv", ".tsv", ".jsonl", ".parquet", ""]


def write(frame: pl.DataFrame, path: Path) -> Path:
    """Write a frame by its path's ending; without one, as `datasets.save_to_disk` does."""
    match path.suffix:
        case ".csv":
            frame.write_csv(path)
        case ".tsv":
            frame.write_csv(path, separator="\t")
        case ".jsonl":
            frame.write_ndjson(path)
        case ".parquet":
            frame.write_parquet(path)
        case _:
            datasets.Dataset.from_dict(frame.to_dict(as_series=False)).save_to_disk(path)
    return path


@pytest.mark.parametrize("ending", FORMS)
def test_a_table_is_checked_and_read(ending: str, tmp_path: Path, run: Callable[..., Any]) -> None:
    path = write(SENTENCES, tmp_path / f"mine{ending}")
    items = probe_items(Probe(source="file", data=str(path)))
    assert items["text"].to_list() == SENTENCES["text"].to_list()
    assert items["label"].to_list() == [2, 0, 1] * 2
    text = run("probes", "check", path).out
    assert f"A study reads it with `probes: [{{source: file, data: {path}}}]`" in text
    assert "a table of kind label, without a card" in text
    assert "male has one word" in text
    design = raybias.check_probe(path)
    assert design.parts["items"].to_list() == [3, 3]


@pytest.mark.parametrize("ending", FORMS)
def test_a_table_of_pairs_is_known_by_its_columns(ending: str, tmp_path: Path) -> None:
    path = write(PAIRS, tmp_path / f"mine{ending}")
    design = raybias.check_probe(path)
    assert design.study == f"pairs: [{{source: pairs, data: {path}}}]"
    assert base_pairs(PairProbe(source="pairs", data=str(path))).height == 2


@pytest.mark.parametrize("ending", FORMS)
def test_a_missing_column_names_the_card_that_maps_it(ending: str, tmp_path: Path) -> None:
    path = write(SENTENCES.rename({"text": "sentence"}), tmp_path / f"mine{ending}")
    message = (
        "no column 'text'; its columns are sentence, .*; or map a column in a card "
        r"\(`raybias probes new label --out CARD.yaml`\): `columns: \{text: COLUMN\}`"
    )
    with pytest.raises(DataError, match=message):
        raybias.check_probe(path)
    with pytest.raises(DataError, match=message):
        probe_items(Probe(source="file", data=str(path)))
    card = tmp_path / "card.yaml"
    fields = {"kind": "label", "about": "x", "units": "u", "harm": "h", "file": path.name}
    card.write_text(yaml.safe_dump({**fields, "columns": {"text": "sentence"}}))
    items = probe_items(Probe(source="file", data=str(card)))
    assert items["text"].to_list() == SENTENCES["text"].to_list()


def test_capitals_of_columns_do_not_matter_beside_those_that_a_card_maps(tmp_path: Path) -> None:
    frame = SENTENCES.rename({"text": "Sentence", "label": "Label", "group": " group"})
    write(frame.with_columns(Term=pl.lit("x")).drop("term"), tmp_path / "mine.csv")
    card = tmp_path / "card.yaml"
    columns = "columns: {text: Sentence, term: Label}\nvalues: {label: neutral}"
    card.write_text(f"kind: label\nabout: x\nunits: u\nharm: h\nfile: mine.csv\n{columns}\n")
    items = probe_items(Probe(source="file", data=str(card)))
    assert items["term"].to_list() == SENTENCES["label"].to_list()
    assert items["group"].to_list() == SENTENCES["group"].to_list()
    plain = write(frame.rename({"Sentence": " TEXT "}), tmp_path / "plain.csv")
    assert probe_items(Probe(source="file", data=str(plain)))["label"].to_list() == [2, 0, 1] * 2


def test_classes_of_a_saved_data_set_are_read_by_their_names(tmp_path: Path) -> None:
    names = ["positive", "negative", "neutral"]
    data = datasets.Dataset.from_dict(SENTENCES.to_dict(as_series=False))
    data = data.cast_column("label", datasets.ClassLabel(names=names))
    assert data["label"][:3] == [0, 1, 2]
    data.save_to_disk(tmp_path / "mine")
    items = probe_items(Probe(source="file", data=str(tmp_path / "mine")))
    assert items["label"].to_list() == [2, 0, 1] * 2


def test_other_folders_are_one_line(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict(SENTENCES.to_dict(as_series=False))
    datasets.DatasetDict({"test": data, "train": data}).save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match=r"holds the splits test, train; give one: .*both/test"):
        raybias.check_probe(tmp_path / "both")
    assert raybias.check_probe(tmp_path / "both" / "test").parts.height == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is a folder, and no data set that `datasets` saved"):
        raybias.check_probe(tmp_path / "empty")
    saved = tmp_path / "both" / "train"
    for file in saved.glob("*.arrow"):
        file.write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be read as a saved data set"):
        raybias.check_probe(saved)
    with pytest.raises(DataError, match="no such file"):
        raybias.check_probe(tmp_path / "nowhere.csv")
