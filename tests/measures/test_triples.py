"""`raybias measure`: StereoSet's scores of published predictions and of our own tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import raybias
from raybias.measures.entries.triples import TRIPLES
from raybias.measures.kind import measure
from raybias.measures.reading import read
from support.answer_data import predictions, stereoset
from support.commands import exit_code, refused


def write(place: Path, content: Any) -> Path:
    place.write_text(json.dumps(content))
    return place


def test_the_published_scores_of_gpt2_and_bert(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/stereoset"
    assert exit_code("measure", folder, "--items", folder / "race.json.gz", "--out", tmp_path) == 0
    found = pl.read_csv(tmp_path / "estimates.csv")
    printed = {
        ("gpt2", "lms"): (89.7567072075023, 1e-9),
        ("gpt2", "ss"): (60.35000089116578, 1e-9),
        ("gpt2", "icat"): (71.1770672157872, 1e-9),
        ("bert-base-cased", "lms"): (83.824, 5e-4),
        ("bert-base-cased", "ss"): (56.296, 5e-4),
        ("bert-base-cased", "icat"): (73.269, 5e-4),
    }
    assert found.height == len(printed)
    for row in found.iter_rows(named=True):
        value, tolerance = printed[row["model"], row["score"]]
        assert row["value"] == pytest.approx(value, abs=tolerance)
        assert row["low"] < row["value"] < row["high"]
        assert (row["attribute"], row["condition"]) == ("race", "intrasentence")
        assert (row["units"], row["n"]) == (36, 962)


def by_hand(items: dict[str, Any], scores: dict[str, float]) -> tuple[float, float, float]:
    """The three scores, term by term, as StereoSet's authors compute them."""
    terms: dict[str, list[tuple[bool, bool, bool]]] = {}
    for triples in items["data"].values():
        for triple in triples:
            of = {each["gold_label"]: scores[each["id"]] for each in triple["sentences"]}
            stereo, anti, other = of["stereotype"], of["anti-stereotype"], of["unrelated"]
            terms.setdefault(triple["target"], []).append(
                (stereo > anti, stereo > other, anti > other)
            )
    means = [np.mean(np.array(each, float), axis=0) for each in terms.values()]
    ss = float(np.mean([100 * mean[0] for mean in means]))
    lms = float(np.mean([100 * (mean[1] + mean[2]) / 2 for mean in means]))
    return ss, lms, lms * min(ss, 100 - ss) / 50


@settings(max_examples=12, deadline=None)
@given(triples=st.integers(1, 30), terms=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_scores_are_those_of_each_term_counted_by_hand_ties_included(
    triples: int, terms: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("triples")
    items = stereoset(triples, terms)
    given_scores = predictions(items, seed)
    file = write(place / "predictions_toy_race.json", given_scores)
    scores = read([file], items=str(write(place / "dev.json", items)))["triples"]
    found = measure(TRIPLES, scores)
    assert_frame_equal(found, measure(TRIPLES, scores.sample(fraction=1, shuffle=True)))
    by_id = {each["id"]: each["score"] for each in given_scores["intrasentence"]}
    values = dict(found.select("score", "value").iter_rows())
    assert [values[name] for name in ("ss", "lms", "icat")] == pytest.approx(by_hand(items, by_id))
    assert found["model"].unique().to_list() == ["toy"]
    assert found["units"].unique().to_list() == [min(triples, terms)]
    # The smooth branches of icat reach to 200, their least to 100.
    assert found["high"].max() is None or found["high"].max() <= 100
    if min(triples, terms) == 1:
        assert found["reason"].unique().to_list() == ["one unit"]


def test_domains_and_tasks_are_pooled_by_term(tmp_path: Path) -> None:
    parts = [
        stereoset(6, 2, domain=domain, task=task)
        for domain in ("race", "gender")
        for task in ("intrasentence", "intersentence")
    ]
    whole: dict[str, Any] = {"data": {"intrasentence": [], "intersentence": []}}
    for part in parts:
        for task, triples in part["data"].items():
            whole["data"][task] += triples
    scored = predictions(whole, 5)
    file = write(tmp_path / "predictions_toy.json", scored)
    found = raybias.measure([file], items=write(tmp_path / "dev.json", whole))
    places = found.select("attribute", "condition").unique(maintain_order=True).rows()
    assert places == [(d, t) for d in ("gender", "race", "all")
                      for t in ("intersentence", "intrasentence", "all")]  # fmt: skip
    by_id = {each["id"]: each["score"] for task in scored.values() for each in task}
    last = dict(found.filter(attribute="all", condition="all").select("score", "value").iter_rows())
    assert [last[n] for n in ("ss", "lms", "icat")] == pytest.approx(by_hand(whole, by_id))
    assert found["n"].max() == 24


def test_triples_without_scores_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = stereoset(12, 4)
    dev = write(tmp_path / "dev.json", items)
    scored = predictions(items, 1)
    scored["intrasentence"] = [*scored["intrasentence"][3:], {"id": "x", "score": 1}]
    assert exit_code("measure", write(tmp_path / "m.json", scored), "--items", dev) == 0
    said = capsys.readouterr().err
    assert "1 of 12 triples of race intrasentence have no score" in said
    assert "there are scores of sentences that the items do not have" in said


SCORES = predictions(stereoset(4, 2), 0)["intrasentence"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"intrasentence": SCORES[1:]}, "triple 'race-0' has 2 scores, not 3"),
        ({"intrasentence": [*SCORES, SCORES[0] | {"score": 9.5}]}, "has two scores"),
        ({"intrasentence": [{"id": "x", "score": 1}]}, "scores no sentence of the items"),
        ({"intrasentence": [{"id": "x", "score": "1"}]}, "intrasentence.0.score: Input should be"),
        ({"intrasentence": [{"id": "x", "score": float("nan")}]}, "should be a finite number"),
        ([], "in a format that is known"),
    ],
)
def test_wrong_predictions_are_one_line(
    content: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = write(tmp_path / "dev.json", stereoset(4, 2))
    file = write(tmp_path / "m.json", content)
    line = refused(capsys, "measure", file, "--items", dev, "--out", tmp_path / "out")
    assert line.startswith(f"raybias: {file}: ")
    assert said in line
    assert not (tmp_path / "out").exists()


def test_wrong_items_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "m.json", {"intrasentence": SCORES})
    items = stereoset(4, 2)
    items["data"]["intrasentence"][2]["sentences"][0]["gold_label"] = "unrelated"
    dev = write(tmp_path / "dev.json", items)
    for arguments, said in (
        ((file,), "give StereoSet's dev.json as --items"),
        ((file, "--items", tmp_path / "none.json"), "is not a file"),
        ((file, "--items", file), "data: Field required"),
        ((file, "--items", dev), "triple 'race-2' has two sentences of one gold_label"),
    ):
        line = refused(capsys, "measure", *arguments, "--out", tmp_path / "out")
        assert said in line
    assert not (tmp_path / "out").exists()
