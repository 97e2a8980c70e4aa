"""`raybias doctor` beside a real cluster: what it has, who can reach it, and exit code 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from raybias.cli import app as cli
from raybias.runtime import ray_internals

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def test_a_cluster_is_measured_and_its_weaknesses_only_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = "raybias-0123456789abcdef-ffffffff-tiny-soft_prompt"
    monkeypatch.setattr(ray_internals, "applications", lambda: ["raybias", app])
    result = CliRunner().invoke(cli, ["doctor", "--no-hub", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.stdout
    assert ray.is_initialized(), "a cluster that others use stays up"
    lines = result.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    (there,) = (line for line in lines if " ray: " in line)
    assert there.startswith("ok    ray: 1 node, 4 CPUs, ")
    assert there.endswith("(the connected Ray cluster)")
    ended = f"warn  left behind: {app}, whose driver has ended: job ffffffff; "
    assert [line for line in lines if "left behind" in line and line.startswith(ended)]
    (chosen,) = (line for line in lines if "dtype auto" in line)
    assert any(name in chosen for name in ("float32: ", "bfloat16: "))
    assert any(line.startswith(("ok    Ray's token", "warn  Ray's token")) for line in lines)
    assert any(" open ports: " in line for line in lines)
    assert "is not there; give the OUT of a study that was run" in lines[-1]


def test_the_private_parts_of_ray_that_ask_a_cluster() -> None:
    """Written for Ray 2.60; the others are in tests/runtime/test_ray_internals.py."""
    (node,) = (each["NodeID"] for each in ray.nodes())
    own = ray.get_runtime_context().get_job_id()
    assert not ray_internals.drivers()[own][1]
    assert ray_internals.leaving_nodes() == set()
    assert ray_internals.free_by_node()[node]["CPU"] <= 4
    assert not any(app.startswith("none-") for app in ray_internals.applications())
    ray_internals.delete_apps([])
