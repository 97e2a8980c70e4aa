"""A study of every method of Kohankhaki2024, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from support import studies
from support.studies import NO_RAY, run

PROMPTED = ("zero_shot", "few_shot", "cot")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.save(tmp_path_factory.mktemp("methods"))


@pytest.fixture(scope="module")
def out(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "out"
    run(study, folder, *NO_RAY)
    return folder


def test_every_method_leaves_its_runs_and_answers(out: Path) -> None:
    runs = pl.read_parquet(out / "runs.parquet")
    assert dict(runs.group_by("method").len().iter_rows()) == {
        "zero_shot": 2, "few_shot": 2, "cot": 1, "soft_prompt": 2, "lora": 2, "full": 2,
    }  # fmt: skip
    found = pl.read_parquet(out / "predictions/**/*.parquet")
    assert found.group_by("run_id").len()["len"].unique().to_list() == [30]
    said = found.filter(pl.col("method").is_in(PROMPTED))
    assert said["answer"].null_count() == 0
    assert said.filter(method="few_shot")["dataset"].unique().to_list() == ["sentences"]
    assert said.filter(method="zero_shot")["dataset"].unique().to_list() == ["none"]
    recipe = json.loads((out / "prompts/tiny.sentences.few_shot.s1.json").read_text())
    assert len(recipe["shots"]) == 9
    assert recipe["sampling"]["top_k"] == 20
    assert recipe["prompt"].endswith("Answer:")
    assert "likelihood" in (out / "tables/estimates.csv").read_text()


def test_what_is_tuned_opens_elsewhere(study: Path, out: Path) -> None:
    tuned = pl.read_parquet(out / "runs.parquet").filter(pl.col("adapter").is_not_null())
    folders = {row["method"]: out / row["adapter"] for row in tuned.iter_rows(named=True)}
    base = AutoModelForSequenceClassification.from_pretrained(study.parent / "tiny", num_labels=3)
    assert PeftModel.from_pretrained(base, folders["lora"])
    assert AutoModelForSequenceClassification.from_pretrained(folders["full"]).num_labels == 3
