"""Every method of Kohankhaki2024 on real Ray: the same answers however it is spread (2 min)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from raybias.errors import BadInput, DataError, ModelError
from support.method_study import NO_RAY, run

pytestmark = pytest.mark.cluster
PROMPTED = ("zero_shot", "few_shot", "cot")


def predictions(out: Path) -> pl.DataFrame:
    files = sorted((out / "predictions").rglob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files]).sort("run_id", "item_id")


def assert_same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    assert one.drop("scores").equals(other.drop("scores"))
    np.testing.assert_allclose(
        np.array(one["scores"].to_list()), np.array(other["scores"].to_list()), atol=1e-4
    )


def test_every_method_leaves_its_runs_and_answers(method_out: Path) -> None:
    runs = pl.read_parquet(method_out / "runs.parquet")
    assert dict(runs.group_by("method").len().iter_rows()) == {
        "zero_shot": 2, "few_shot": 2, "cot": 1, "soft_prompt": 2, "lora": 2, "full": 2,
    }  # fmt: skip
    found = predictions(method_out)
    assert found.group_by("run_id").len()["len"].unique().to_list() == [30]
    said = found.filter(pl.col("method").is_in(PROMPTED))
    assert said["answer"].null_count() == 0
    assert said.filter(method="few_shot")["dataset"].unique().to_list() == ["sentences"]
    assert said.filter(method="zero_shot")["dataset"].unique().to_list() == ["none"]
    recipe = json.loads((method_out / "prompts/tiny.sentences.few_shot.s1.json").read_text())
    assert len(recipe["shots"]) == 9
    assert recipe["sampling"]["top_k"] == 20
    assert recipe["prompt"].endswith("Answer:")
    assert "likelihood" in (method_out / "tables/gaps.csv").read_text()


def test_without_ray_every_file_is_the_same_to_the_bit(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """The runs' seconds aside, and the chart of which device did what when."""
    out = tmp_path / "out"
    printed = run(method_file, out, *NO_RAY)
    assert printed == (method_out.parent / "printed").read_text().replace(str(method_out), str(out))
    for folder in ("predictions", "prompts", "items", "readers"):
        assert contents(out / folder) == contents(method_out / folder)
    tensors = "*/adapter_model.safetensors"
    assert contents(out / "adapters", tensors) == contents(method_out / "adapters", tensors)
    timed = ["seconds"]
    one, other = (pl.read_parquet(each / "runs.parquet").drop(timed) for each in (out, method_out))
    assert one.equals(other)


def contents(folder: Path, pattern: str = "**/*.*") -> dict[str, bytes]:
    found = {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.glob(pattern))
        if f.is_file()
    }
    assert found
    return found


def test_what_is_tuned_opens_elsewhere(method_file: Path, method_out: Path) -> None:
    tuned = pl.read_parquet(method_out / "runs.parquet").filter(pl.col("adapter").is_not_null())
    folders = {row["method"]: method_out / row["adapter"] for row in tuned.iter_rows(named=True)}
    base = AutoModelForSequenceClassification.from_pretrained(
        method_file.parent / "tiny", num_labels=3
    )
    assert PeftModel.from_pretrained(base, folders["lora"])
    assert AutoModelForSequenceClassification.from_pretrained(folders["full"]).num_labels == 3


@pytest.mark.slow
def test_the_same_answers_however_spread_and_after_a_resume(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    content = yaml.safe_load(method_file.read_text())
    content["methods"] = [m for m in content["methods"] if m["kind"] in ("few_shot", "cot", "lora")]
    content["resources"] = {
        "rows_per_shard": 7, "tokens_per_batch": 128, "replicas_max": 2, "train_workers": 2,
    }  # fmt: skip
    spread = method_file.with_name("spread.yaml")
    spread.write_text(yaml.safe_dump(content))
    out = tmp_path / "out"
    run(spread, out)
    methods = pl.col("method").is_in(["few_shot", "cot", "lora"])
    assert_same(predictions(method_out).filter(methods), predictions(out))
    files = sorted((out / "predictions").rglob("*.parquet"))
    lost = [file for file in files if "few_shot" in str(file)][1::2]
    for file in lost:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in files if file not in lost}
    run(spread, out)
    assert_same(predictions(method_out).filter(methods), predictions(out))
    assert lost
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("methods.1.shots_per_label=20", DataError, "has 12 negative sentences, not the 20"),
        ("methods.1.shots_per_label=11", ModelError, r"of 30 texts are longer .* demonstrations"),
        ("methods.4.target=[nowhere]", ModelError, "'nowhere' matches no linear layer"),
        ("methods.4.select=test", DataError, "has no test split"),
        ("verbalizer.neutral=neg", BadInput, "neg"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    method_file: Path, tmp_path: Path, change: str, kind: type[BadInput], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(method_file, tmp_path / "out", "--set", change)
    assert not (tmp_path / "out").exists()
