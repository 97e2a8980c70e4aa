"""cluster/with_gpus.py: asks, waits, runs, and takes the wish back whatever came of it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.autoscaler import sdk

from support.cluster_files import CLUSTER

EXITS_WITH_3 = [sys.executable, "-c", "raise SystemExit(3)"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A cluster that comes to have `most` GPUs, one more at each look."""
    seen = SimpleNamespace(wishes=[], have=0, most=8)

    def look() -> dict[str, float]:
        seen.have = min(seen.have + 1, seen.most)
        return {"GPU": float(seen.have)}

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", look)
    monkeypatch.setattr(sdk, "request_resources", lambda *, bundles: seen.wishes.append(bundles))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return seen


def main() -> Callable[[list[str]], int]:
    names: dict[str, Any] = runpy.run_path(str(CLUSTER / "with_gpus.py"))
    names["main"].__globals__["WAIT"] = 0.2
    found: Callable[[list[str]], int] = names["main"]
    return found


def test_the_command_runs_once_the_gpus_are_there(cluster: SimpleNamespace) -> None:
    assert main()(["4", "--", *EXITS_WITH_3]) == 3
    assert cluster.wishes == [[{"GPU": 1}] * 4, []]
    assert cluster.have >= 4


def test_gpus_that_do_not_come_are_said(
    cluster: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.most = 2
    assert main()(["4", "--", *EXITS_WITH_3]) == 1
    assert "2 of 4 GPUs came" in capsys.readouterr().err
    assert cluster.wishes[-1] == []


@pytest.mark.parametrize("wrong", [["0", "--", "true"], ["x", "true"], ["4"]])
def test_a_wrong_call_asks_for_nothing(cluster: SimpleNamespace, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main()(wrong)
    assert stopped.value.code == 2
    assert cluster.wishes == []
