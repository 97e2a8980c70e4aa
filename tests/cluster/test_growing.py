"""Placing on real nodes: a wide task is not starved, and a node that joins is used (about 40 s)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from growing import NARROW, NARROW_S

DRIVER = Path(__file__).with_name("growing.py")


@pytest.mark.slow
def test_a_wide_task_waits_for_one_narrow_one_and_a_node_that_joins_is_used() -> None:
    done = subprocess.run(
        [sys.executable, str(DRIVER)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, DRIVER.parents[1:3]))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    ran, placed = found["ran"], found["placed"]
    assert len(ran) == NARROW + 1
    assert placed["wide"] - found["ready"] < NARROW_S + 2
    begun, ended, node = ran.pop("wide")
    assert sum(at > placed["wide"] for at in placed.values()) > NARROW / 2, "narrow ones waited"
    # All four devices of its node were its own; those of the other went on.
    beside = [where for at, until, where in ran.values() if at < ended and until > begun]
    assert beside
    assert node not in beside
    joined = [placed[key] for key, (*_, where) in ran.items() if where == found["third"]]
    assert min(joined) - found["joined"] < 10
