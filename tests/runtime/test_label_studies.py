"""Studies whose labels are not negative, neutral and positive, from their data to their page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

import raybias
from raybias.config import Probe, load_study
from raybias.probes import probe_items
from raybias.stats.classes import labels_of_metadata
from support import planted_toxicity, prompting, studies
from support.commands import exit_code
from support.pages import Page

STARS = ["one", "two", "three", "four", "five"]
TOPICS = {"arts": "red", "money": "blue", "sport": "green", "war": "old"}


def run(folder: Path, name: str, **content: Any) -> raybias.Results:
    study = load_study(studies.write(folder, name, **content))
    return raybias.run(study, out=folder / f"{name}-out", address="none")


def names_in(out: Path) -> set[tuple[str, ...]]:
    """The labels that the metadata of each file of predictions names."""
    files = out.glob("predictions/**/*.parquet")
    return {labels_of_metadata(pq.read_metadata(file).metadata) for file in files}


@pytest.fixture(scope="module")
def toxic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier that is planted to call sentences about Muslims toxic."""
    folder = tmp_path_factory.mktemp("toxic")
    items = probe_items(Probe(source="toxicity"))
    planted_toxicity.save(folder / "model", items, ("LABEL_0", "LABEL_1"))
    return folder


CLASSIFY = {"kind": "classify", "labels": {"harmless": "LABEL_0", "toxic": "LABEL_1"}}
OTHERS = ["atheist", "buddhist", "christian", "hindu", "jewish"]


def test_a_planted_group_is_found_and_no_other(
    toxic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {"source": "toxicity", "reference_groups": {"religion": OTHERS}}
    results = run(toxic, "mine", backbones=["model"], probes=[probe], methods=[CLASSIFY])
    gaps = results.gaps.collect().filter(score="fpr")
    assert gaps["attribute"].n_unique() == 7
    significant = gaps.filter(pl.col("survives").fill_null(False))
    assert significant["group"].to_list() == [planted_toxicity.GROUP]
    assert significant["value"].item() > 0.4
    assert gaps.filter(pl.col("group") != planted_toxicity.GROUP)["value"].abs().max() == 0
    assert names_in(toxic / "mine-out") == {("harmless", "toxic")}
    text = " ".join(Page((toxic / "mine-out/report.html").read_text()).text.split())
    assert "Sentences about muslim (religion) whose label is not toxic are predicted toxic" in text
    assert "Classifiers of harmless and toxic read sentences" in text
    for claim in (
        "sentiment",
        "benefit:",
        "harm:",
        "the class for",
        "called the class",
        "favoured",
    ):
        assert claim not in text.split("How to make it again")[0], claim
    assert "predicted toxic" in str(results)
    composition = results.table("composition").collect()
    assert composition.columns[3:6] == ["items_harmless", "items_toxic", "items"]
    assert composition["items_harmless"].equals(composition["items_toxic"].rename("items_harmless"))
    record = yaml.safe_load((toxic / "mine-out/study.yaml").read_text())["study"]
    assert record["verbalizer"] == {"harmless": "harmless", "toxic": "toxic"}
    assert record["statistics"]["positive"] == "toxic"
    # Scores of the files give the areas under curves.
    wanted = ["subgroup_auc", "bpsn_auc", "bnsp_auc", "fpr"]
    estimates = raybias.measure(toxic / "mine-out", metric=wanted)
    areas = estimates.filter(pl.col("score").is_in(wanted[:3]), attribute="religion")
    lowest = areas.sort("value").group_by("score", maintain_order=True).first()
    assert {*lowest.filter(score="bpsn_auc")["group"]} == {planted_toxicity.GROUP}
    assert exit_code("measure", toxic / "mine-out") == 0
    printed = capsys.readouterr()
    assert "Rates of one class are those of the label toxic." in printed.out
    assert "predicted toxic more often, of those whose label is not toxic" in printed.out
    assert not re.search("benefit|harm:|favour", printed.out)
    # Written again, the same study is resumed.
    again = run(toxic, "mine", backbones=["model"], probes=[probe], methods=[CLASSIFY])
    assert again.gaps.collect().equals(results.gaps.collect())


def test_the_papers_profile_is_refused_for_a_finished_study(
    toxic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {"source": "toxicity", "attributes": ["age"]}
    run(toxic, "age", backbones=["model"], probes=[probe], methods=[CLASSIFY])
    assert exit_code("report", toxic / "age-out", "--profile", "paper") == 2
    assert "the profile paper reproduces studies of negative" in capsys.readouterr().err


def test_labels_in_another_order_are_another_study_of_an_out(
    toxic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.DataFrame(
        {"text": ["I hate women."], "label": "toxic", "attribute": "gender", "group": "women"}
    ).write_csv(toxic / "probe.csv")
    content = {"backbones": ["model"], "methods": [CLASSIFY], "probes": [studies.MINE]}
    run(toxic, "order", **content, verbalizer=["harmless", "toxic"])
    file = studies.write(toxic, "turned", **content, verbalizer=["toxic", "harmless"])
    options = ("--out", toxic / "order-out", "--address", "none")
    assert exit_code("run", file, *options) == 2
    assert "labels.0 is 'harmless', now 'toxic'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, with a probe and training sentences of four topics, and a probe of stars."""
    folder = tmp_path_factory.mktemp("topics")
    prompting.save("opt", folder / "tiny")
    studies.write_probe(folder)
    probe = pl.read_csv(folder / "probe.csv")
    for name, labels in (("probe", [*TOPICS]), ("stars", STARS)):
        words = [labels[n % len(labels)] for n in range(probe.height)]
        probe.with_columns(label=pl.Series(words)).write_csv(folder / f"{name}.csv")
    (folder / "sentences").mkdir()
    texts = prompting.texts(64)
    for split, part in {"train": texts[:40], "validation": texts[40:]}.items():
        labels = [n % 4 for n in range(len(part))]
        frame = pl.DataFrame({"text": part, "label": labels})
        frame.write_csv(folder / "sentences" / f"{split}.csv")
    return folder


TRAINING = [{"source": "file", "name": "sentences", "data": "sentences"}]


@pytest.mark.parametrize("kind", ["lora", "full", "soft_prompt", "label_tokens", "few_shot"])
def test_methods_give_as_many_labels_as_the_study_has(kind: str, topics: Path) -> None:
    more: dict[str, Any] = {
        "soft_prompt": {"prompt_length": 4},
        "label_tokens": {"kind": "lora", "head": "label_tokens"},
        "few_shot": {"seeds": [1], "shots_per_label": 1},
    }.get(kind, {})
    method = {"kind": kind, **({} if kind == "few_shot" else studies.TUNED), **more}
    results = run(
        topics, kind, probes=[studies.MINE], training=TRAINING, methods=[method], verbalizer=TOPICS,
        statistics={"positive": "sport"},
    )  # fmt: skip
    predictions = results.predictions.collect()
    assert predictions["scores"].list.len().unique().to_list() == [4]
    likeliest = predictions["scores"].list.arg_max().cast(pl.Int64)
    if kind != "few_shot":
        assert (likeliest == predictions["pred"].cast(pl.Int64)).all()
    assert names_in(topics / f"{kind}-out") == {tuple(TOPICS)}
    own = predictions.filter(~pl.col("method").cast(pl.String).str.ends_with("+likelihood"))
    expected = own.select((pl.col("label") == 2) & (pl.col("pred") == 2)).to_series().sum()
    cells = results.table("cells").collect()
    counted = cells.filter(pl.col("label") == 2, pl.col("pred") == 2, method=method["kind"])
    assert counted["n"].sum() == expected
    assert {"accuracy", "tpr", "fpr"} <= {*results.estimates.collect()["score"]}
    if kind == "full":
        config = json.loads(next(topics.glob("full-out/adapters/*/config.json")).read_text())
        assert len(config["id2label"]) == 4


def test_five_labels_are_asked_for_by_their_words(topics: Path) -> None:
    method = {"kind": "zero_shot", "seeds": [1, 2], "unparsed": "likelihood"}
    probe = {"source": "file", "name": "stars", "data": "stars.csv"}
    words = dict(zip(STARS, ["red", "blue", "green", "old", "man"], strict=True))
    results = run(topics, "stars", probes=[probe], methods=[method], verbalizer=words)
    predictions = results.predictions.collect()
    assert predictions["scores"].list.len().unique().to_list() == [5]
    assert predictions["pred"].max() > 2
    assert {*predictions["label"].to_list()} == {*range(5)}
    (method,) = results.study.methods
    assert "sentiment" not in method.template + method.cue
    recipe = json.loads(next((topics / "stars-out/prompts").glob("*.json")).read_text())
    assert "red, blue, green, old, or man" in json.dumps(recipe)
    accuracy = predictions.select((pl.col("pred") == pl.col("label")).mean()).item()
    estimates = results.estimates.collect()
    whole = estimates.filter(score="accuracy", statistic="rate", group="all", method="zero_shot")
    assert np.isclose(whole["value"][0], accuracy)
    assert {*estimates["score"]} >= {"accuracy"}
    assert "items_five" in results.table("composition").collect().columns


def test_a_judge_gives_the_labels_that_its_classes_are_called(
    topics: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = probe_items(Probe(source="toxicity"))
    for name, classes in (("judge", ("TOXIC", "Harmless")), ("unnamed", ("LABEL_0", "LABEL_1"))):
        planted_toxicity.save(topics / name, items, classes)
    pl.read_csv(topics / "probe.csv").with_columns(label=pl.lit("harmless")).write_csv(
        topics / "prompts.csv"
    )
    content: dict[str, Any] = {
        "probes": [{"source": "file", "name": "prompts", "data": "prompts.csv"}],
        "verbalizer": ["harmless", "toxic"],
    }
    method = {"kind": "continuation", "seeds": [1], "answer_tokens": 4}
    judged = [{**method, "judge": {"model": "judge"}}]
    results = run(topics, "judged", **content, methods=judged)
    # The judge knows no word of theirs, and gives its first class; long texts it cannot read.
    labels = results.predictions.collect()["pred"]
    assert labels.null_count() < len(labels)
    assert labels.drop_nulls().unique().to_list() == [1]
    unnamed = [{**method, "judge": {"model": "unnamed"}}]
    file = studies.write(topics, "unnamed-study", **content, methods=unnamed)
    assert exit_code("plan", file, "--assume", "cpus=2,memory=8GiB") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "the classes of the judge" in line
    assert "are LABEL_0, LABEL_1, and the labels of the study harmless, toxic" in line
