"""Studies side by side on an autoscaling cluster: nodes come, and go again (about 120 s)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from arena import PATIENCE_S, until
from bout import Run, undisturbed
from fake_cloud import fake_cloud, workers
from verdict import faults

pytestmark = pytest.mark.chaos


def test_nodes_come_under_load_and_go_when_idle(study: Path, tmp_path: Path) -> None:
    calm, *outs = (tmp_path / name for name in ("alone", "one", "two"))
    with fake_cloud(fewest=1, most=3) as address:
        until(lambda: workers(address) == 1, "a node is there", patience_s=PATIENCE_S)
        undisturbed(study, calm)
        # Each study is planned for the one node that is there; together they need another.
        runs = [Run(address, study, out) for out in outs]
        most = 0
        while any(run.driver.poll() is None for run in runs):
            most = max(most, workers(address))
            time.sleep(0.5)
        for run in runs:
            run.end()
        assert most > 1, "no node was added under load"
        until(lambda: workers(address) == 1, "one node is left", patience_s=PATIENCE_S)
    for out in outs:
        assert faults(out, calm) == []
