"""`raybias doctor` beside a real cluster: what it has, who can reach it, and exit code 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from raybias.cli import app

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def test_a_cluster_is_measured_and_its_weaknesses_only_warn(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--no-hub", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stdout
    assert ray.is_initialized(), "a cluster that others use stays up"
    lines = result.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    (there,) = (line for line in lines if " ray: " in line)
    assert there.startswith("ok    ray: 1 node, 4 CPUs, ")
    assert there.endswith("(the connected Ray cluster)")
    (chosen,) = (line for line in lines if "dtype auto" in line)
    assert any(name in chosen for name in ("float32: ", "bfloat16: "))
    assert any(line.startswith(("ok    Ray's token", "warn  Ray's token")) for line in lines)
    assert any(" ports: " in line for line in lines)
    assert "is not there; give the OUT of a study that was run" in lines[-1]
