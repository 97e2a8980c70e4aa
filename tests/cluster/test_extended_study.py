"""A study with what a package adds, on a cluster whose nodes have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import ray

from raybias.measures.prediction_rows import gap_rows
from support import extension

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def test_a_study_runs_with_what_a_package_adds_to_every_node(
    on_every_node: Path, tmp_path: Path
) -> None:
    """Run by a process of its own: this one looked for packages before there was one."""
    address = ray.get_runtime_context().gcs_address
    extension.install(on_every_node)
    (tmp_path / "clerks.yaml").write_text(extension.study())
    call = "import sys; from raybias.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", call, "run", "clerks.yaml", "--out", "out", "--address", address],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(on_every_node), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    found = pl.read_parquet(out / "tables" / "estimates.parquet")
    gaps = gap_rows(found, "widest")
    assert set(gaps["method"]) == {"lexicon"}
    assert set(gaps["group"]) == {"young", "old"}
    assert set(gaps["score"]) == {"negative_fpr", "unneutral"}
    effects = found.filter(kind="pairs", statistic="difference", condition="")
    assert set(effects["style"]) == {"shouted"}
    (scores,) = (out / "pair_scores").rglob("*.parquet")
    assert pl.read_parquet(scores)["style"].value_counts().sort("style").rows() == [
        ("original", 6),
        ("shouted", 6),
    ]
