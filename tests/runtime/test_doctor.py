"""What `raybias doctor` finds on this machine, and says of one where things are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import raybias
from raybias.cli import app
from raybias.errors import PlanError
from raybias.planning.inventory import assumed
from raybias.runtime import doctor
from raybias.runtime.serve.security_audit import Finding

GIB = 2**30


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that need not be started."""

    @contextmanager
    def connected(address: str | None) -> Iterator[None]:
        if address == "nowhere":
            raise PlanError("no Ray cluster answers", where=address, cure="check `ray status`")
        yield

    monkeypatch.setattr(doctor, "connected", connected)
    monkeypatch.setattr(
        doctor, "read_inventory", lambda address, products: assumed("cpus=2,memory=8GiB")
    )
    monkeypatch.setattr(doctor, "cluster_weaknesses", lambda: [Finding("ok", "ports", "loopback")])


def states(findings: Iterator[Finding]) -> dict[str, str]:
    return {each.what: each.state for each in findings}


@pytest.mark.usefixtures("cluster")
def test_a_machine_that_runs_these_tests_is_fit() -> None:
    found = states(raybias.doctor(hub=False))
    assert set(found) == {
        *("python", "packages", "torch threads", "accelerator", "memory", "temporary files", "ray"),
        *("dtype auto", "ports"),
    }
    for what in ("python", "packages", "ray", "ports"):
        assert found[what] == "ok"


@pytest.mark.usefixtures("cluster")
def test_what_is_broken_fails_with_its_cure_and_an_exit_code() -> None:
    result = CliRunner().invoke(app, ["doctor", "--address", "nowhere", "--no-hub"])
    assert result.exit_code == 2
    assert "fail  ray: no Ray cluster answers; nowhere: check `ray status`" in result.output
    assert "something that is needed is broken" in result.output


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        ("raybias.runtime.doctor.requires", ["torch>=99"], "fail  packages: torch 2"),
        ("raybias.runtime.doctor.requires", ["not-there>=1"], "not-there is missing; install"),
        ("raybias.runtime.doctor.metadata", {"Requires-Python": ">=4"}, "use Python >=4"),
        ("ray._private.utils.get_num_cpus", 0, "on 0 CPUs; set OMP_NUM_THREADS"),
        ("ray._common.utils.get_system_memory", GIB, "warn  memory: 1.0GiB; 4.0GiB or more"),
        ("shutil.disk_usage", SimpleNamespace(free=GIB), "warn  temporary files: 1.0GiB free"),
        (
            "raybias.runtime.doctor.read_inventory",
            assumed("cpus=1,memory=8GiB").__class__(nodes=(), source="x"),
            "fail  ray",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_named(
    place: str, value: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, lambda *_, **__: value)
    assert line in "\n".join(map(str, raybias.doctor(hub=False)))


def test_a_disk_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    (found,) = doctor._disk()
    assert (found.state, found.cure) == ("fail", "set TMPDIR to another place")


def test_the_hub_is_not_tried_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [str(each) for each in doctor._reachable()] == [
        "ok    model hub: not tried, HF_HUB_OFFLINE is set"
    ]
