"""A locked-down container is no hindrance to a study with a Ray of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_stopped import RAYBIAS, study

pytestmark = pytest.mark.slow
#: Becomes a command without network, with little shared memory and without root's right to open
#: what is closed.
CONTAINED = (
    "ip link set lo up && mount -t tmpfs -o size=20m tmpfs /dev/shm && exec setpriv"
    ' --bounding-set=-dac_override,-dac_read_search "$@"'
)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for Ray's sockets."""
    place = Path(f"/tmp/rb{os.getpid()}")
    place.mkdir()
    yield place
    shutil.rmtree(place)


def test_no_network_little_shared_memory_and_a_closed_home_are_no_hindrance(short: Path) -> None:
    inside = ["unshare", "--net", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this machine lets the user make no namespaces")
    (short / "home").mkdir(mode=0)
    (short / "ray").mkdir()
    command = [*inside, "sh", "-c", CONTAINED, "sh", *RAYBIAS, "run", str(study(short, steps=60))]
    environment = os.environ | {
        "HOME": str(short / "home"), "TMPDIR": str(short / "nowhere"),
        "RAY_TMPDIR": str(short / "ray"),
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [*command, "--out", str(short / "out"), "--address", "local"],
        capture_output=True, text=True, timeout=500, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
