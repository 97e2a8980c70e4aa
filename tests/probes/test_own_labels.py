"""Own files and cards with labels of their own: words, numbers, codes, and what is neither."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybias.config import Probe, TrainingSet
from raybias.errors import ConfigError, DataError
from raybias.probes import probe_items, training_sentences
from raybias.probes.checks import CodingWarning
from raybias.probes.design import check_probe
from raybias.probes.own import commented_card
from raybias.probes.registries import (
    Source,
    TrainingSource,
    probe,
    probes,
    training_set,
    training_sets,
)
from raybias.schema import LABELS

NAMES = st.text(st.characters(categories=("L", "P", "S")), min_size=1, max_size=12)
LABEL_LISTS = st.lists(NAMES, min_size=2, max_size=30, unique_by=str.lower)
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, labels: list[str], name: str = "mine.parquet") -> Probe:
    rows = len(labels)
    frame = pl.DataFrame(
        {
            "text": [f"sentence {n}" for n in range(rows)], "label": labels, "attribute": "colour",
            "group": [("red", "blue")[n % 2] for n in range(rows)],
        }
    )  # fmt: skip
    frame.write_parquet(folder / name)
    return Probe(source="file", name="mine", data=str(folder / name))


def training(own: Probe, **fields: Any) -> TrainingSet:
    folder = Path(str(own.data))
    pl.read_parquet(folder).write_csv(folder.with_suffix(".csv"))
    return TrainingSet(source="file", data=str(folder.with_suffix(".csv")), **fields)


@SAME_FOLDER
@given(LABEL_LISTS, st.data())
def test_words_and_numbers_are_read_as_the_studys_labels(
    tmp_path: Path, labels: list[str], data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, max_size=20))
    for spelled in (
        [labels[n] for n in numbers], [labels[n].lower() for n in numbers],
        [f" {labels[n]} " for n in numbers], [str(n) for n in numbers],
    ):  # fmt: skip
        own = write(tmp_path, spelled)
        assert probe_items(own, labels=labels)["label"].to_list() == numbers


@SAME_FOLDER
@given(LABEL_LISTS, NAMES)
def test_other_words_are_refused_with_their_row(
    tmp_path: Path, labels: list[str], word: str
) -> None:
    if word.lower() in map(str.lower, labels):
        return
    own = write(tmp_path, [*labels, word])
    with pytest.raises(DataError, match=rf"row {len(labels) + 1}.*is none of .*`verbalizer`"):
        probe_items(own, labels=labels)


def test_labels_that_are_numbers_are_names(tmp_path: Path) -> None:
    stars = ["1", "2", "3", "4", "5"]
    assert probe_items(write(tmp_path, ["5", "1"]), labels=stars)["label"].to_list() == [4, 0]
    with pytest.raises(DataError, match="label '0' is none of 1, 2, 3, 4, 5; fix it"):
        probe_items(write(tmp_path, ["0"]), labels=stars)


def test_training_sentences_have_the_studys_labels(tmp_path: Path) -> None:
    labels = ("no", "maybe", "yes", "always")
    own = write(tmp_path, ["yes", "No", "3", "1"])
    splits = training_sentences(training(own), labels=labels)
    assert splits["train"]["label"].to_list() == [2, 0, 3, 1]
    coded = training(write(tmp_path, ["a", "b"]), labels={"a": "always", "b": "no"})
    assert training_sentences(coded, labels=labels)["train"]["label"].to_list() == [3, 0]


CARD = {"kind": "label", "about": "hate", "harm": "people", "file": "mine.parquet"}


def save_card(folder: Path, **fields: Any) -> Probe:
    (folder / "card.yaml").write_text(yaml.safe_dump({**CARD, **fields}, sort_keys=False))
    return Probe(source="file", name="mine", data=str(folder / "card.yaml"))


def test_a_card_declares_its_labels(tmp_path: Path) -> None:
    write(tmp_path, ["0", "1", "1"])
    codes = {"label": {"0": "hateful", "1": "fine"}}
    labels = ["fine", "hateful"]
    card = save_card(tmp_path, labels=labels, codes=codes)
    assert probe_items(card)["label"].to_list() == [1, 0, 0]
    assert probe_items(card, labels=labels[::-1])["label"].to_list() == [0, 1, 1]
    for fields, message in (
        ({"labels": ["fine"]}, "at least 2 labels"),
        ({"labels": ["fine", "Fine"]}, "the same but for capitals"),
        ({"labels": ["fine", "bad"], "codes": codes}, "codes.label maps '0' to 'hateful'"),
        ({"labels": labels, "kind": "triple"}, "`labels` are of the kind label"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            probe_items(save_card(tmp_path, **fields))


@pytest.mark.parametrize(
    ("labels", "verbalizer"),
    [
        (["toxic", "Fine", "toxic", "fine"], '["toxic", "Fine"]'),
        (["0", "4", "2"], '["label 0", "label 1", "label 2", "label 3", "label 4"]'),
        (["negative", "2", "Neutral"], None),
        (["0", "2", "1"], None),
    ],
)
def test_probes_check_names_the_verbalizer(
    labels: list[str], verbalizer: str | None, tmp_path: Path
) -> None:
    own = write(tmp_path, labels)
    design = check_probe(str(own.data))
    assert ("verbalizer" in str(design)) == (verbalizer is not None)
    if verbalizer is not None:
        assert design.study.endswith(f"verbalizer: {verbalizer}")
        named = yaml.safe_load(design.study)["verbalizer"]
        assert f"of {len(named)} labels" in str(design)
        assert probe_items(own, labels=named).height == len(labels)


#: What the example of a card needs of a file of sentences, without codes of labels.
CARD = {"kind": "label", "about": "x", "harm": "x", "file": "mine.parquet"}


@pytest.mark.parametrize("labels", [["0", "1"], ["1", "1"], ["0", "0"], ["negative", "1"]])
def test_numbers_that_two_codings_fit_are_refused(labels: list[str], tmp_path: Path) -> None:
    own, card = write(tmp_path, labels), tmp_path / "card.yaml"
    assert "codes" not in yaml.safe_load(commented_card("label"))
    card.write_text(yaml.safe_dump(CARD))
    message = r"two codings fit: 0 negative, 1 neutral, 2 positive; -1 negative, .*`codes: \{label"
    for refuse in (
        lambda: probe_items(own),
        lambda: probe_items(Probe(source="file", data=str(card))),
        lambda: check_probe(str(own.data)),
        lambda: training_sentences(training(own)),
    ):
        with pytest.raises(DataError, match=message):
            refuse()
    # Mapped, or with two labels of one's own, they are read.
    codes = {"0": "neutral", "1": "positive", "negative": "negative"}
    card.write_text(yaml.safe_dump(CARD | {"codes": {"label": codes}}))
    mapped = probe_items(Probe(source="file", data=str(card)))["label"].to_list()
    assert mapped == [[*LABELS].index(codes[label]) for label in labels]
    if "negative" not in labels:
        numbers = [int(label) for label in labels]
        assert probe_items(own, labels=("harmless", "toxic"))["label"].to_list() == numbers


@pytest.mark.parametrize(
    ("labels", "numbers", "said"),
    [
        (["-1", "0", "1"], [0, 1, 2], "-1 negative, 0 neutral, 1 positive"),
        (["-1", "1"], [0, 2], "-1 negative, 0 neutral, 1 positive"),
        (["0", "2"], [0, 2], "0 negative, 1 neutral, 2 positive"),
        (["positive", "-1"], [2, 0], "-1 negative, 0 neutral, 1 positive"),
    ],
)
def test_a_number_that_only_one_coding_has_decides(
    labels: list[str], numbers: list[int], said: str, tmp_path: Path
) -> None:
    own = write(tmp_path, labels)
    warned = pytest.warns(CodingWarning, match=f"label is read as {said}")
    with warned if "-1" in said else nullcontext():
        assert probe_items(own)["label"].to_list() == numbers
    with warnings.catch_warnings(action="ignore"):
        assert f"its labels are read as {said}" in check_probe(str(own.data)).about
    wrong = write(tmp_path, ["-1", "2", "0"])
    with pytest.raises(DataError, match=r"row 1: label '-1' is none of negative, .*0, 1, 2"):
        probe_items(wrong)


def test_a_coding_is_that_of_all_splits_of_a_training_set(tmp_path: Path) -> None:
    pl.DataFrame({"text": list("abc"), "label": [0, 1, 2]}).write_csv(tmp_path / "train.csv")
    pl.DataFrame({"text": list("ab"), "label": [0, 1]}).write_csv(tmp_path / "validation.csv")
    found = training_sentences(TrainingSet(source="file", data=str(tmp_path)))
    assert found["validation"]["label"].to_list() == [0, 1]


@pytest.mark.parametrize("register", [partial(probe, about="x"), training_set])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("toxic",), "at least 2 labels"),
        (("toxic", "Toxic"), "the same but for capitals"),
        (("positive", "neutral", "negative"), "in the order negative, neutral, positive"),
    ],
)
def test_a_source_declares_labels_that_a_study_can_have(
    register: Any, labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        register("theirs", labels=labels)


def test_a_source_whose_numbers_are_no_labels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another package, which declares fewer labels than it has."""
    entry = probes["planted"]
    two = Source(**{**vars(entry), "labels": ("a", "b")})
    monkeypatch.setitem(probes._entries, "planted", two)
    with pytest.raises(DataError, match="label 2 is no number of the labels a, b"):
        probe_items(Probe(source="planted"))
    splits = training_sets["planted"].splits
    short = TrainingSource(splits=splits, labels=("a", "b"))
    monkeypatch.setitem(training_sets._entries, "planted", short)
    with pytest.raises(DataError, match=r"training set planted.*is no number of the labels a, b"):
        training_sentences(TrainingSet(source="planted"))
