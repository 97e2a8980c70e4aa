"""Functions of a user's own are measured, whatever they return, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raybias
from raybias.config import Study
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.methods.predicted import PredictReader
from raybias.providers.predict import Predict, predict_section
from raybias.schema import LABELS
from support import studies

TOXIC = ("harmless", "toxic")


def reader_of(
    function: Any,
    labels: tuple[str, ...] = LABELS,
    classes: dict[str, Any] | None = None,
    thresholds: tuple[float, ...] = (),
) -> PredictReader:
    spec = Predict.model_validate({"predict": "mine:predict"})
    return PredictReader(spec, function, labels, classes or {}, thresholds)


def softmax(rows: list[list[float]]) -> np.ndarray[Any, Any]:
    powers = np.exp(np.array(rows))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


ROWS = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=8)


@given(ROWS, st.sampled_from(["array", "lists", "float32", "mappings", "words", "numbers"]))
def test_every_form_of_one_answer_is_one_label(rows: list[list[float]], form: str) -> None:
    shares = softmax(rows)
    labels = shares.argmax(axis=1)
    forms: dict[str, Any] = {
        "array": shares,
        "lists": shares.tolist(),
        "float32": shares.astype(np.float32),
        "mappings": [dict(zip(("NEU", "POS", "NEG"), row[[1, 2, 0]], strict=True))
                     for row in shares],
        "words": [LABELS[label].upper() for label in labels],
        "numbers": labels,
    }  # fmt: skip
    found, scores = reader_of(lambda texts: forms[form]).read(["a text"] * len(rows))
    if form == "float32":
        labels = shares.astype(np.float32).argmax(axis=1)
    assert found == labels.tolist()
    if form in ("words", "numbers"):
        assert list(scores) == [None] * len(rows)
    else:
        np.testing.assert_allclose(np.exp(np.array(scores)), shares, atol=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_a_number_is_parted_by_thresholds(values: list[float]) -> None:
    """As VADER's compound is."""
    found, _ = reader_of(lambda texts: values, thresholds=(-0.05, 0.05)).read(["a"] * len(values))
    assert found == [0 if value < -0.05 else 1 if value < 0.05 else 2 for value in values]
    share = [abs(value) for value in values]
    labels, scores = reader_of(lambda texts: np.array(share), TOXIC).read(["a"] * len(values))
    assert labels == [int(value >= 0.5) for value in share]
    np.testing.assert_allclose(np.exp(np.array(scores)[:, 1]), share, atol=1e-6)


def _raises(texts: list[str]) -> Any:
    raise KeyError("no such word")


@pytest.mark.parametrize(
    ("function", "labels", "classes", "message"),
    [
        (_raises, LABELS, {}, "mine:predict raises KeyError: 'no such word'; call it with these"),
        (lambda texts: [0], LABELS, {}, "returns 1 values for 2 texts"),
        (lambda texts: "negative", LABELS, {}, "returns str, not a value for each text"),
        (lambda texts: None, LABELS, {}, "returns NoneType, not a value"),
        (lambda texts: [None] * 2, LABELS, {}, "returns values that are no labels (NoneType)"),
        (lambda texts: [3, 0], LABELS, {}, "returns 3, and the labels are 0 to 2: negative,"),
        (lambda texts: ["bad", "NEG"], LABELS, {}, "returns 'bad', and the labels are negative"),
        (lambda texts: ["bad", "good"], LABELS, {"negative": ("bad",)}, "returns 'good'"),
        (lambda texts: [0.1, 0.9], LABELS, {}, "nothing says which label it means; set `thresho"),
        (lambda texts: [0.1, 1.9], TOXIC, {}, "nothing says which label it means"),
        (lambda texts: [float("nan")] * 2, TOXIC, {}, "returns numbers that are not finite"),
        (lambda texts: [[0.5, 0.5]] * 2, LABELS, {}, "returns 2 numbers for a text, and there are"),
        (lambda texts: [[0.5, 0.5, 0.5]] * 2, LABELS, {}, "rows of numbers that are not probab"),
        (lambda texts: [{"a": 0.5, "b": 0.5}] * 2, TOXIC, {}, "not clear which label each class"),
    ],
)
def test_other_answers_are_one_line(
    function: Any, labels: tuple[str, ...], classes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkFailed) as caught:
        reader_of(function, labels, classes).read(["one text", "another"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


SOURCE = """
def predict(texts):
    return ["positive" if "red" in text else len(text) % 3 * "x" or "negative" for text in texts]

def labels(texts):
    return [len(text) % 3 for text in texts]

number = 3
"""


def study_of(folder: Path, predict: str, **method: Any) -> Study:
    studies.write_probe(folder)
    return Study.model_validate(
        {
            "name": "mine",
            "backbones": [{"predict": predict}],
            "methods": [{"kind": "classify", **method}],
            "probes": [studies.MINE | {"data": str(folder / "probe.csv")}],
        }
    )


@pytest.mark.parametrize("address", ["none", "local"])
def test_a_study_calls_the_function_of_a_file(address: str, tmp_path: Path) -> None:
    """In this process and on Ray's workers."""
    (tmp_path / "mine.py").write_text(SOURCE)
    study = study_of(tmp_path, f"{tmp_path}/mine.py:labels")
    assert "calls " in str(raybias.plan(study))
    results = raybias.run(study, out=tmp_path / "out", address=address)
    frame = results.predictions.collect().sort("item_id")
    texts = pl.read_csv(tmp_path / "probe.csv")["text"]
    assert frame["pred"].to_list() == [len(text) % 3 for text in texts]
    (backbone,) = results.study.backbones
    assert isinstance(backbone, Predict)
    assert backbone.name == "mine-labels"
    assert len(backbone.source) == 64
    # Another source is another classifier.
    (tmp_path / "mine.py").write_text(f"{SOURCE}\n# changed\n")
    with pytest.raises(RaybiasError, match="another study"):
        raybias.run(study, out=tmp_path / "out", address="none")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py:nothing", "nothing is not there in"),
        ("mine.py:number", "number cannot be called in"),
        ("broken.py:predict", "cannot be imported (no such package)"),
        ("missing.py:predict", "cannot be imported"),
        ("no_such_module:predict", "no_such_module cannot be imported (No module named"),
    ],
)
def test_a_function_that_is_not_there_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such package')")
    place = f"{tmp_path}/{name}" if ".py" in name else name
    with pytest.raises(ConfigError) as caught:
        raybias.plan(study_of(tmp_path, place))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["mine", "mine:", ":f", "mine:2f", "a.py:f g"])
def test_a_place_is_a_module_and_a_function(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no function; write package"):
        study_of(tmp_path, text)


def test_a_function_of_this_process_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that could use a cluster calls its own function all the same.
    monkeypatch.setenv("RAY_ADDRESS", "ray://there:10001")
    study = study_of(tmp_path, "unused:f")
    section = predict_section(lambda texts: [len(text) % 3 for text in texts])
    study = Study.model_validate(study.model_dump() | {"backbones": [section]})
    results = raybias.run(study, out=tmp_path / "out")
    assert results.predictions.collect().height == 30
    with pytest.raises(ConfigError, match="Ray's workers cannot call a function of this process"):
        raybias.run(study, out=tmp_path / "other", address="ray://there:10001")
    assert predict_section(studies.write_probe) == {
        "api": "predict", "predict": "support.studies:write_probe",
    }  # fmt: skip
