"""A whole small study on real Ray through the command line: what it leaves and refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from safetensors.torch import load, save

from raybias.errors import OutputError, RaybiasError
from raybias.runtime.serve.app import Serving
from raybias.runtime.serve.app import app as application
from raybias.schema import RUNS
from raybias.storage import Store
from support import studies
from support.studies import NO_RAY, run

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def method_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study file of a prompted method and of adapters."""
    return studies.save(tmp_path_factory.mktemp("methods"), "few_shot", "lora")


@pytest.fixture(scope="module")
def method_out(
    method_file: Path, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> Path:
    """The OUT of an undisturbed run of these methods; beside it, what the command printed."""
    out = tmp_path_factory.mktemp("cold") / "out"
    (out.parent / "printed").write_text(studies.run(method_file, out))
    return out


def test_a_run_leaves_tables_report_and_runs(method_out: Path) -> None:
    printed = (method_out.parent / "printed").read_text()
    assert "colour" in printed
    assert f"report: {method_out}/report.html" in printed
    assert "<html" in (method_out / "report.html").read_text()
    columns = pl.read_csv(method_out / "tables" / "estimates.csv", n_rows=1).columns
    assert columns[:5] == ["kind", "model", "method", "dataset", "probe"]
    runs = Store(method_out).read_table("runs.parquet")
    assert runs.schema == RUNS
    assert sum(runs["selected"].to_pylist()) == 3
    assert yaml.safe_load((method_out / "study.yaml").read_text())["study"]["name"] == "methods"


def test_other_weights_under_the_same_name_are_refused(method_file: Path, method_out: Path) -> None:
    """By a second run and by `raybias serve`; the report names those that were used."""
    file = method_file.parent / "tiny" / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"model.safetensors {digest[:12]}" in (method_out / "report.html").read_text()
    held = file.read_bytes()
    weights = {name: -tensor for name, tensor in load(held).items()}
    file.write_bytes(save(weights, metadata={"format": "pt"}))
    said = rf"holds another study \(models\.tiny\.model\.safetensors is {digest[:12]}\.\., now "
    try:
        with pytest.raises(OutputError, match=said):
            run(method_file, method_out)
        with pytest.raises(OutputError, match=said):
            application(Serving(out=str(method_out), anyone=True))
    finally:
        file.write_bytes(held)
    application(Serving(out=str(method_out), anyone=True))


def test_failed_work_is_one_line_and_exit_code_1(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """An adapter that another program broke; the replica's error reaches the user."""
    out = tmp_path / "out"
    shutil.copytree(method_out, out)
    (read,) = (out / "predictions").rglob("*lora*.parquet")
    read.unlink()
    adapter = read.stem
    (out / "adapters" / adapter / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(RaybiasError) as raised:
        run(method_file, out)
    assert "\n" not in str(raised.value)
    assert adapter in str(raised.value)


def test_without_ray_every_file_is_the_same_to_the_bit(
    method_file: Path, method_out: Path, tmp_path: Path
) -> None:
    """The runs' seconds aside, and the schedule.

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
    study, alone, out = studies.save(tmp_path), tmp_path / "alone", tmp_path / "out"
    run(study, alone, *NO_RAY)
    content = yaml.safe_load(study.read_text())
    content["resources"] = {
        "rows_per_shard": 7, "tokens_per_batch": 128, "replicas_max": 2, "train_workers": 2,
    }  # fmt: skip
    spread = study.with_name("spread.yaml")
    spread.write_text(yaml.safe_dump(content))
    run(spread, out)
    assert_same(alone, out)
    lost, *kept = sorted((out / "predictions").rglob("*few_shot*.parquet"))
    lost.unlink()
    written = [file.stat().st_mtime_ns for file in kept]
    run(spread, out)
    assert_same(alone, out)
    assert [file.stat().st_mtime_ns for file in kept] == written


def assert_same(one: Path, other: Path) -> None:
    first, second = (
        pl.concat(map(pl.read_parquet, sorted((out / "predictions").rglob("*.parquet")))).sort(
            "run_id", "item_id"
        )
        for out in (one, other)
    )
    assert first.drop("scores").equals(second.drop("scores"))
    scores = (np.array(each["scores"].to_list()) for each in (first, second))
    np.testing.assert_allclose(*scores, atol=1e-4)
