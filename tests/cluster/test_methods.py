"""Methods of Kohankhaki2024 on real Ray: the same answers however they are spread (1 min)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from support import studies
from support.studies import NO_RAY, run

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
    """The runs' seconds aside, and the chart of which device did what when.

    Also where Ray's workers were to repeat their bits, which CPUs do anyway.
    """
    out = tmp_path / "out"
    printed = run(method_file, out, *NO_RAY, "--set", "resources.deterministic=false")
    assert printed == (method_out.parent / "printed").read_text().replace(str(method_out), str(out))
    for folder in ("predictions", "prompts", "items"):
        assert contents(out / folder) == contents(method_out / folder)
    here, there = records(out), records(method_out)
    assert {each.pop("deterministic") for each in here.values()} == {False}
    assert {each.pop("deterministic") for each in there.values()} == {True}
    assert here == there
    tensors = "*/adapter_model.safetensors"
    assert contents(out / "adapters", tensors) == contents(method_out / "adapters", tensors)
    timed = ["seconds"]
    one, other = (pl.read_parquet(each / "runs.parquet").drop(timed) for each in (out, method_out))
    assert one.equals(other)


def records(out: Path) -> dict[str, dict[str, Any]]:
    """What was written down of each reader and each tuned run, and of the torch they had."""
    readers = {f.name: json.loads(f.read_text()) for f in (out / "readers").glob("*.json")}
    tuned = {
        f.parent.name: json.loads(f.read_text())["computed"]
        for f in (out / "adapters").glob("*/raybias.json")
    }
    assert readers
    assert tuned
    return readers | tuned


def contents(folder: Path, pattern: str = "**/*.*") -> dict[str, bytes]:
    found = {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.glob(pattern))
        if f.is_file()
    }
    assert found
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_same_answers_of_every_method_however_spread_and_after_a_resume(tmp_path: Path) -> None:
    study, alone = studies.save(tmp_path), tmp_path / "alone"
    run(study, alone, *NO_RAY)
    content = yaml.safe_load(study.read_text())
    content["resources"] = {
        "rows_per_shard": 7, "tokens_per_batch": 128, "replicas_max": 2, "train_workers": 2,
    }  # fmt: skip
    spread = study.with_name("spread.yaml")
    spread.write_text(yaml.safe_dump(content))
    out = tmp_path / "out"
    run(spread, out)
    assert_same(predictions(alone), predictions(out))
    files = sorted((out / "predictions").rglob("*.parquet"))
    lost = [file for file in files if "few_shot" in str(file)][:1]
    for file in lost:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in files if file not in lost}
    run(spread, out)
    assert_same(predictions(alone), predictions(out))
    assert lost
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
