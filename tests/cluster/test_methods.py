"""Methods of Kohankhaki2024 on real Ray: the same answers however they are spread (1 min)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from support.method_study import NO_RAY, run

pytestmark = pytest.mark.cluster


def predictions(out: Path) -> pl.DataFrame:
    files = sorted((out / "predictions").rglob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files]).sort("run_id", "item_id")


def assert_same(one: pl.DataFrame, other: pl.DataFrame) -> None:
    assert one.drop("scores").equals(other.drop("scores"))
    np.testing.assert_allclose(
        np.array(one["scores"].to_list()), np.array(other["scores"].to_list()), atol=1e-4
    )


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
    content["resources"] = {
        "rows_per_shard": 7, "tokens_per_batch": 128, "replicas_max": 2, "train_workers": 2,
    }  # fmt: skip
    spread = method_file.with_name("spread.yaml")
    spread.write_text(yaml.safe_dump(content))
    out = tmp_path / "out"
    run(spread, out)
    assert_same(predictions(method_out), predictions(out))
    files = sorted((out / "predictions").rglob("*.parquet"))
    lost = [file for file in files if "few_shot" in str(file)][1::2]
    for file in lost:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in files if file not in lost}
    run(spread, out)
    assert_same(predictions(method_out), predictions(out))
    assert lost
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
