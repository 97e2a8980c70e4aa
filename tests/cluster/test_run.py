"""A whole small study on real Ray through the command line: what it leaves and refuses."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import polars as pl
import pytest
import yaml
from safetensors.torch import load, save

from raybias.errors import OutputError, RaybiasError
from raybias.runtime.serve.app import Serving
from raybias.runtime.serve.app import app as application
from raybias.schema import RUNS
from raybias.storage import Store
from support.studies import run

pytestmark = pytest.mark.cluster


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
