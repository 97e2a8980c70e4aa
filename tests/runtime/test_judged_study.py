"""Continuations labelled by a judge: its own verdicts, corrected by people's labels."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import transformers
import yaml

import raybias
from raybias.config import parse_study
from raybias.engine.backbone import ModelContext
from raybias.errors import BadInput
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.tasks import tasks_of
from raybias.report.judges import UNMEASURED
from raybias.schema import LABELS
from raybias.storage import Store
from support.commands import exit_code
from support.documents import ROOT, blocks
from support.mirrored import mirror
from support.reading import labelled
from support.studies import GROUPS, NO_RAY, judged, run, save_judge

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a judge, prompts and a study file."""
    return judged(tmp_path_factory.mktemp("judged")).parent


@pytest.fixture(scope="module")
def out(place: Path) -> Path:
    run(place / "study.yaml", place / "out", *NO_RAY)
    return place / "out"


def predictions(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "predictions/mine/*.parquet").sort("run_id", "item_id")


def test_verdicts_are_the_classifiers_own(place: Path, out: Path, tmp_path: Path) -> None:
    rows = predictions(out)
    assert rows.height == 3 * 21
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "judge").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "judge")
    prompts = pl.read_parquet(out / "items/mine.parquet").select("item_id", "text")
    seen = set()
    for row in rows.join(prompts, on="item_id").iter_rows(named=True):
        said = row["answer"]
        joined = said[:1].isspace() or said[:1] in ".,;:!?')-"
        read = tokenizer(row["text"] + said if joined else f"{row['text']} {said}")["input_ids"]
        if len(read) > 40 or not said.strip():
            assert row["pred"] is None
            assert not row["parsed"]
            seen.add(None)
            continue
        with torch.no_grad():
            share = model(torch.tensor([read])).logits[0].double().softmax(-1)
        assert row["pred"] == int(share.argmax())
        assert row["scores"] == [pytest.approx(float(share.max()), rel=1e-4)]
        seen.add(row["pred"])
    assert len(seen) > 1
    # Neither shards, passes nor a second command change anything; a new key draws anew.
    spread = ("--set", "resources.rows_per_shard=5", "--set", "resources.tokens_per_batch=64")
    run(place / "study.yaml", tmp_path / "spread", *spread, *NO_RAY)
    other = predictions(tmp_path / "spread")
    assert other.drop("scores").equals(rows.drop("scores"))
    assert rows["answer"].n_unique() > 12
    # One reading: a judge's probability is no second way to read the answer.
    gaps = raybias.open(out).gaps.collect()
    assert set(gaps["method"]) == {"continuation"}


def test_the_worst_of_a_prompts_draws_is_that_of_the_judges_own_probabilities(
    place: Path, out: Path, tmp_path: Path
) -> None:
    """A judge of two classes; of three, the probability that a text is negative is not stored."""
    classes = {0: "fine", 1: "toxic"}
    save_judge(tmp_path / "toxicity", place / "tiny", classes)
    content = yaml.safe_load((place / "study.yaml").read_text())
    content["backbones"][0]["id"] = str(place / "tiny")
    content["methods"][0]["judge"] = {"model": "toxicity", "negative": ["toxic"]}
    content["probes"][0]["data"] = str(place / "prompts.csv")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    run(tmp_path / "study.yaml", tmp_path / "out", *NO_RAY)
    prompts = pl.read_parquet(tmp_path / "out/items/mine.parquet").select("item_id", "text")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "toxicity")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "toxicity")
    worst: dict[tuple[str, str], list[float]] = {}
    for row in predictions(tmp_path / "out").join(prompts, on="item_id").iter_rows(named=True):
        if row["pred"] is None:
            continue
        said = row["answer"]
        joined = said[:1].isspace() or said[:1] in ".,;:!?')-"
        read = tokenizer(row["text"] + said if joined else f"{row['text']} {said}")["input_ids"]
        with torch.no_grad():
            share = model.eval()(torch.tensor([read])).logits[0].double().softmax(-1)
        worst.setdefault((row["group"], row["item_id"]), []).append(float(share[1]))
    every = raybias.open(tmp_path / "out").estimates.collect()
    found = every.filter(condition="3 draws of a prompt", statistic="rate")
    for group in (*GROUPS, "all"):
        draws = [each for (name, _), each in worst.items() if group in (name, "all")]
        values = dict(found.filter(group=group).select("score", "value").iter_rows())
        assert values["expected_maximum"] == pytest.approx(
            sum(map(max, draws)) / len(draws), rel=1e-4
        )
        assert values["any_draw"] == sum(max(each) >= 0.5 for each in draws) / len(draws)
    page = (tmp_path / "out/report.html").read_text()
    assert "The worst of a prompt" in page
    assert "Gehman et al. 2020" in page
    of_three = raybias.open(out).estimates.collect().filter(score="expected_maximum")
    assert of_three["reason"].to_list() == [
        "the probability of the verdict is stored alone, and the judge has 3 classes"
    ]


def test_the_judges_errors_are_measured_or_said_not_to_be(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands of the guide."""
    plain = (each for each in blocks(ROOT / "docs/guides/judging.md") if not each.language)
    export, imported = (line for each in plain for line in each.commands)
    page = (out / "report.html").read_text()
    assert "How the judge errs" in page
    assert "were not measured, and no interval covers them" in page
    assert "its errors were not measured and are in no interval" in page
    assert raybias.open(out).table("judged").collect().is_empty()

    copy = shutil.copytree(out, tmp_path / "out/bold")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="19 texts of a group are too few"):
        raybias.judge_sheet(copy, tmp_path / "few.csv", of_group=19)
    assert not Path("few.csv").exists()
    words = shlex.split(export.replace("--of-group 50", "--of-group 20"))
    assert exit_code(*words[1:]) == 0
    sheet = raybias.judge_sheet(copy, tmp_path / "again.csv", of_group=20)
    assert Path("again.csv").read_bytes() == Path("sheet.csv").read_bytes()
    assert (sheet.height, sheet.columns) == (60, ["row", "prompt", "continuation", "label"])
    for change, message in (
        (lambda rows: rows, "sheet.csv row 1: label is empty"),
        (lambda rows: _filled(rows).head(56), r"lacks row 't000\d\d' \(4 of 60\)"),
        (lambda rows: pl.concat([_filled(rows), _filled(rows).head(1)]), "row"),
        (lambda rows: _filled(rows).with_columns(row=pl.lit("t9")), "row"),
        (lambda rows: _filled(rows).with_columns(label=pl.lit("bad")), "'bad' is none of"),
    ):
        change(sheet).write_csv(tmp_path / "sheet.csv")
        with pytest.raises(BadInput, match=message):
            raybias.judge_labels(copy, tmp_path / "sheet.csv")
    with pytest.raises(BadInput, match="--label: 'worst' is no label of the study; choose from"):
        raybias.judge_labels(copy, tmp_path / "sheet.csv", labels={"bad": "worst"})
    raybias.judge_labels(copy, tmp_path / "sheet.csv", labels={"bad": "negative"})
    assert set(pl.read_parquet(copy / "labels/judged.parquet")["human"]) == {0}
    _filled(sheet).write_csv(tmp_path / "sheet.csv")
    assert exit_code(*shlex.split(imported)[1:]) == 0
    judged = raybias.open(copy).table("judged").collect()
    assert set(judged["group"]) == {*GROUPS}
    assert set(judged["score"]) == {"negative_fpr", "positive_fpr"}
    assert (judged["labelled"] == 20).all()
    known = judged.filter(pl.col("reason").is_null())
    assert known.height
    assert (known["low"] < known["value"]).all()
    page = (copy / "report.html").read_text()
    assert "Angelopoulos et al. 2023" in page
    assert UNMEASURED[:40] not in page.replace("&#39;", "'")
    with pytest.raises(BadInput, match="has labels already"):
        raybias.judge_sheet(copy, tmp_path / "other.csv")


def _filled(sheet: pl.DataFrame) -> pl.DataFrame:
    labels = ("negative", "neutral", "positive")
    return sheet.with_columns(label=pl.Series([labels[n % 3] for n in range(sheet.height)]))


def test_a_judge_of_the_hub_is_fetched_before_anything_is_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for two methods."""
    commit = "89abcdef" * 5
    mirror({"example/judge": place / "judge"}, commit, tmp_path, monkeypatch)
    content = yaml.safe_load((place / "study.yaml").read_text())
    content["backbones"][0]["id"] = str(place / "tiny")
    content["probes"][0]["data"] = str(place / "prompts.csv")
    (method,) = content["methods"]
    method["judge"] = {"model": "example/judge", "revision": commit}
    content["methods"].append({**method, "name": "again", "seeds": [9]})
    made = plan(PreparedStudy.of(parse_study(content)), assumed("cpus=2,memory=8GiB"))
    tasks = tasks_of(made)
    key = f"fetch/example/judge@{commit}"
    assert [task.key for task in tasks if task.kind == "fetch"] == [key]
    after = [task.after for task in tasks if task.kind == "read"]
    assert len(after) == 2
    assert all(key in each for each in after)


def test_a_run_judges_as_it_labels(place: Path, tmp_path: Path) -> None:
    change = ("--set", "methods=[{kind: zero_shot, seeds: [1], temperature: 0}]")
    run(place / "study.yaml", tmp_path / "own", *change, *NO_RAY)
    name = "tiny.none.zero_shot.s1"
    judge = f"{{model: {tmp_path / 'own'}, run: {name}, reads: continuation}}"
    asked = ("--set", f"methods.0.judge={judge}", "--set", "methods.0.seeds=[1]")
    run(place / "study.yaml", tmp_path / "out", *asked, *NO_RAY)
    rows = predictions(tmp_path / "out").filter("parsed")
    # The same run labels the continuations as it labels the sentences of a probe.
    spec = raybias.open(tmp_path / "own").study.backbones[0]
    method = raybias.open(tmp_path / "own").study.methods[0]
    predictor: Any = method.reader(ModelContext(spec, LABELS), Store(tmp_path / "own"))
    said = [text.strip() for text in rows["answer"]]
    own = labelled(predictor, predictor.load(name), rows["item_id"].to_list(), said)
    assert own["labels"] == rows["pred"].to_list()
    # Another run under its name is another judge.
    recipe = tmp_path / f"own/prompts/{name}.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "seed": 2}))
    with pytest.raises(BadInput, match=r"methods\.0\.judge\.revision is .*now"):
        run(place / "study.yaml", tmp_path / "out", *asked, *NO_RAY)


@pytest.mark.parametrize(
    ("judge", "change", "message"),
    [
        ("judge, negative: toxic", {}, "has no class 'toxic'; it has NEGATIVE, other"),
        ("judge, negative: other, positive: '1'", {}, "has two labels for the class"),
        ("own", {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}},
         "no class called negative or"),
        ("own", {"problem_type": "multi_label_classification"},
         "its classification head gives a probability of its own for each of"),
        ("nowhere", {}, "nowhere"),
        ("judge, run: r", {}, "holds no study.yaml"),
        ("judge, run: r, negative: a", {}, "take out the judge's"),
    ],
)  # fmt: skip
def test_a_judge_that_cannot_judge_is_one_line(
    place: Path, tmp_path: Path, judge: str, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path if judge == "own" else place
    if judge == "own":
        shutil.copytree(place / "judge", tmp_path / "own")
        config = json.loads((tmp_path / "own/config.json").read_text())
        (tmp_path / "own/config.json").write_text(json.dumps(config | change))
    asked = ("--set", f"methods.0.judge={{model: {folder}/{judge}}}")
    with pytest.raises(BadInput) as caught:
        run(place / "study.yaml", tmp_path / "out", *asked, *NO_RAY)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
