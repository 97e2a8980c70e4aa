"""No tensor is left on the CPU that a GPU needs; no copy or step waits for it (`fake_gpu.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.long
def test_every_tensor_of_a_pass_is_made_on_the_device() -> None:
    done = subprocess.run(
        [sys.executable, HERE / "fake_gpu.py"],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": " in line and not line.startswith("[")]
    *sound, waits, misplaced = lines
    assert len(sound) == 11
    assert all(line.endswith(": ok") for line in sound), sound
    assert waits.startswith("waits: Waits")
    assert misplaced.startswith("misplaced: FakeTensorDeviceMismatchError")
