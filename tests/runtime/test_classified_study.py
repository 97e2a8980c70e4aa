"""A study and an audit of a finished classifier: its own labels, in one run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import transformers

import raybias
from raybias.config import load_study
from raybias.planning.audit import Question
from support import classifiers, prompting, studies
from support.commands import exit_code
from support.pages import Page

CLASSIFY: dict[str, Any] = {"kind": "classify"}


def save_probe(folder: Path, count: int = 60) -> list[str]:
    """A probe of three colours in the zoo's words; returns its sentences."""
    sentences = classifiers.texts(count)
    colours = [("red", "blue", "green")[n % 3] for n in range(count)]
    pl.DataFrame(
        {
            "text": sentences, "label": [n // 3 % 3 for n in range(count)], "attribute": "colour",
            "group": colours, "template_id": [f"t{n // 3}" for n in range(count)], "term": colours,
        }
    ).write_csv(folder / "probe.csv")  # fmt: skip
    return sentences


def study_file(folder: Path, **method: Any) -> Path:
    return studies.write(
        folder, "mine", backbones=[{"id": "model"}], probes=[studies.MINE],
        methods=[CLASSIFY | method],
    )  # fmt: skip


def labels_of(results: raybias.Results) -> list[int]:
    predictions = results.predictions.collect()
    assert predictions["parsed"].all()
    order = pl.col("item_id").cast(pl.String).str.extract(r"(\d+)$").cast(pl.Int64)
    return predictions.sort(order)["pred"].to_list()


@pytest.mark.parametrize("kind", ["bert", "xlnet", "t5"])
def test_a_study_has_the_models_own_labels(kind: str, tmp_path: Path) -> None:
    """T5 is of no other kind that studies load, and is planned by the classifier's own sizes."""
    fields = {"decoder_start_token_id": 0} if kind == "t5" else {}
    model = classifiers.save(kind, tmp_path / "model", classifiers.STARS, **fields)
    sentences = save_probe(tmp_path)
    study = load_study(study_file(tmp_path, labels=classifiers.STARS_MAP))
    assert "classify" in str(raybias.plan(study))
    results = raybias.run(study, out=tmp_path / "out", address="none")
    expected_NC = classifiers.of_pipeline(model, sentences)
    sums_NL = np.add.reduceat(expected_NC, [0, 2, 3], axis=1)
    assert labels_of(results) == sums_NL.argmax(axis=1).tolist()
    runs = results.runs.collect()
    assert runs["run_id"].to_list() == ["model.none.classify"]
    assert runs["seed"].to_list() == [None]
    again = raybias.run(study, out=tmp_path / "out", address="none")
    assert again.study == results.study
    (method,) = again.study.methods
    assert method.dtype == "float32"
    assert dict(method.labels)["negative"] == ("1 star", "2 stars")


def test_the_page_of_one_run_claims_nothing_of_seeds(tmp_path: Path) -> None:
    model = classifiers.save("bert", tmp_path / "model", ("NEG", "POS"))
    own = classifiers.of_pipeline(model, save_probe(tmp_path, 90)).argmax(axis=1).tolist()
    # Six sentences are neutral; of the others it is right in six of seven.
    right = [2 * place if n % 7 else 2 - 2 * place for n, place in enumerate(own)]
    labels = [1 if n // 3 % 15 == 0 else label for n, label in enumerate(right)]
    probe = pl.read_csv(tmp_path / "probe.csv").with_columns(label=pl.Series(labels))
    probe.write_csv(tmp_path / "probe.csv")
    results = raybias.run(load_study(study_file(tmp_path)), out=tmp_path / "out", address="none")
    text = " ".join(Page((tmp_path / "out" / "report.html").read_text()).text.split())
    assert (
        "model, classify on mine: the model never says neutral. 6 sentences with that label are"
        " neither right nor wrong" in text
    )
    for claim in (
        "A classifier of sentiment, model, was taken as published, and asked about 90 sentences",
        "Significant if sentences are redrawn: ",
        "as if sentences are redrawn",
        "Every gap is of one deterministic run: nothing was tuned or sampled",
        "counts as drawn anew: the sentences; also the words",
    ):
        assert claim in text
    assert "Significant if sentences are redrawn: " in str(results)
    assert "another seed" not in text
    assert "seeds and sentences" not in text
    estimates = pl.read_parquet(tmp_path / "out/tables/estimates.parquet")
    assert estimates.filter(scope="runs")["low"].is_null().all()
    # It is judged on the sentences whose label it can give; of the others only what they are
    # called is told.
    rates = estimates.filter(statistic="rate", condition="")
    told = [(label, 2 * place) for label, place in zip(labels, own, strict=True) if label != 1]
    whole = rates.filter(score="accuracy", group="all")["value"].item()
    assert whole == pytest.approx(np.mean([label == pred for label, pred in told]))
    assert rates.filter(score="negative_fpr")["n"].sum() == sum(label == 2 for label, _ in told)
    called = pl.DataFrame({"label": labels, "pred": [2 * place for place in own], "n": range(90)})
    neutral = called.filter(label=1).with_columns(group=pl.col("n") % 3)
    outcome = neutral.group_by("group").agg((pl.col("pred") == 2).mean()).sort("group")["pred"]
    found = rates.filter(score="outcome_positive").sort("group")
    assert found["n"].sum() == 6
    # Groups are red, blue and green in turn.
    assert found["value"].to_list() == [outcome[place] for place in (1, 2, 0)]
    measured = raybias.measure(tmp_path / "out").filter(statistic="rate", score="accuracy")
    assert measured.filter(group="all")["value"].item() == whole


@pytest.mark.parametrize(
    ("config", "method", "message"),
    [
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, {},
         'labels: {negative: ["LABEL_0"], positive: ["LABEL_1"]}} if that is what they mean'),
        ({}, {"labels": {"negative": "NEG"}}, "`labels` leaves out the class 'POS'"),
        ({}, {"labels": {"bad": "NEG"}},
         "`labels` has 'bad', and the labels of the study are negative, neutral, positive"),
        ({}, {"labels": {"negative": 0}}, "labels"),
        ({"problem_type": "multi_label_classification"}, {},
         'labels: {positive: ["POS"]}, thresholds: [0.5]}'),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}},
         {"labels": {"negative": "a", "neutral": "b", "positive": "c"}}, "asks for [3]"),
    ],
)  # fmt: skip
def test_what_cannot_be_classified_is_one_line(
    config: dict[str, Any], method: dict[str, Any], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = classifiers.save("bert", tmp_path / "model", ("NEG", "POS"))
    classifiers.edit_config(model, config | {"label2id": None} if "id2label" in config else config)
    save_probe(tmp_path, 12)
    file = study_file(tmp_path, **method)
    out = tmp_path / "out"
    assert exit_code("run", file, "--out", out, "--address", "none") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (out / "predictions").exists()


@pytest.fixture
def audited(tmp_path: Path, shared: Path) -> Path:
    """A folder with a classifier (`model`) of English letters, and `data` of the probe alone."""
    folder = prompting.save("opt", tmp_path / "letters")
    fields = {"vocab_size": 400, "max_position_embeddings": 256}
    model = classifiers.save("bert", tmp_path / "model", classifiers.SENTIMENT, **fields)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder / name, model / name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/amazon").symlink_to(shared / "data/amazon_templates")
    return tmp_path


def test_an_audit_measures_the_head_that_a_checkpoint_has(audited: Path) -> None:
    told: list[str] = []
    results = raybias.audit(
        str(audited / "model"), probe="age", data=audited / "data", out=audited / "out",
        address="none", tell=told.append,
    )  # fmt: skip
    assert [method.kind for method in results.study.methods] == ["classify"]
    assert not results.study.training
    assert "classify, 1 run, all sentences; 3 groups of age" in told[1]
    assert not (audited / "out/pilot").exists()
    assert not (audited / "data/sst5").exists()
    items = pl.read_parquet(audited / "out/items/amazon.parquet")
    found = items.select("item_id", "text").join(
        results.predictions.collect().with_columns(pl.col("item_id").cast(pl.String)),
        on="item_id", maintain_order="left",
    )  # fmt: skip
    assert found.height == items.height
    texts = found["text"].unique(maintain_order=True)
    expected = classifiers.of_pipeline(audited / "model", texts.to_list()).argmax(axis=1)
    assert len({*expected}) > 1
    labels = dict(zip(texts, expected.tolist(), strict=True))
    assert found["pred"].to_list() == [labels[text] for text in found["text"]]
    again = raybias.audit(
        str(audited / "model"), probe="age", data=audited / "data", out=audited / "out",
        address="none", tell=told.append,
    )  # fmt: skip
    assert any("resuming the audit" in line for line in told)
    assert again.gaps.collect().equals(results.gaps.collect())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("full", "its trained classification head is replaced by a new one, which full tunes"),
        ("soft_prompt", "its trained classification head is not used by soft_prompt"),
        ("classify", ""),
    ],
)
def test_an_audit_says_what_becomes_of_the_head(
    method: str, message: str, audited: Path, shared: Path
) -> None:
    question = Question(str(audited / "model"), "age", method, shared / "data")
    assert message in question.unused_head
    assert bool(message) == bool(question.unused_head)
    transformers.BertConfig(hidden_size=8, num_attention_heads=1).save_pretrained(audited / "bare")
    assert Question(str(audited / "bare"), "age", method, shared / "data").unused_head == ""


def test_an_audit_that_tunes_says_that_the_head_is_replaced(
    audited: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Begun(Exception):
        pass

    def begin(*_: object, **__: object) -> None:
        raise Begun

    monkeypatch.setattr("raybias.api.audits.run", begin)
    with pytest.raises(Begun):
        raybias.audit(
            str(audited / "model"), probe="age", method="full", budget="9000h", address="none",
            data=shared / "data", out=audited / "out", tell=told.append,
        )  # fmt: skip
    assert "its trained classification head is replaced" in told[-1]


def test_a_head_whose_classes_are_unclear_is_refused_before_anything_is_written(
    audited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = {str(place): f"LABEL_{place}" for place in range(3)}
    classifiers.edit_config(audited / "model", {"id2label": unnamed})
    options = ("--data", audited / "data", "--out", audited / "out", "--address", "none")
    assert exit_code("audit", audited / "model", "--probe", "age", *options) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "it is not clear which label each class is" in line
    assert "of 'The meeting is on Tuesday.'" in line
    assert not (audited / "out").exists()
    # The study that is written to paste the option into reads no training set.
    file = audited / "mine.yaml"
    assert exit_code("audit", audited / "model", "--probe", "age", "--write", file) == 0
    study = load_study(file)
    assert [method.kind for method in study.methods] == ["classify"]
    assert not study.training
