"""Faults of the machine under a study with a Ray of its own or without: no effect, or one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_stopped import RAYBIAS, study

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("address", ["none", "local"])]


def ran(
    words: list[str], study_file: Path, out: Path, address: str, **variables: str
) -> tuple[int, str]:
    """Code and standard error of `raybias run` under other words, such as `unshare`."""
    command = [*words, *RAYBIAS, "run", str(study_file), "--out", str(out)]
    command += ["--address", address]
    # Ray's own folder is not on the disk that fills.
    own = study_file.with_name("ray")
    own.mkdir(exist_ok=True)
    environment = os.environ | {"RAY_TMPDIR": str(own)} | variables
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=environment, check=False
    )
    print(f"\n{' '.join(words)}: code {done.returncode}\n{done.stderr}")
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A file system in memory of so many bytes."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine lets the user mount nothing")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def within_namespaces(*options: str) -> list[str]:
    """The words that give a command namespaces of its own."""
    words = ["unshare", *options]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("this machine lets the user make no namespaces")
    return words


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose path is short enough for Ray's sockets."""
    place = Path(f"/tmp/rb{os.getpid()}")
    place.mkdir()
    yield place
    shutil.rmtree(place)


def test_a_disk_that_fills_is_one_line_and_the_same_command_goes_on(
    short: Path, address: str
) -> None:
    made = study(short, steps=60)
    with mounted(short / "disk", "300k") as disk:
        code, said = ran([], made, disk / "out", address)
        assert code == 1
        assert "No space left on device" in said.splitlines()[-1]
        assert not [*disk.rglob("*.tmp"), *disk.rglob("lease.json")]
        subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
        assert ran([], made, disk / "out", address)[0] == 0


def test_no_network_little_shared_memory_and_a_closed_home_are_no_hindrance(
    short: Path, address: str
) -> None:
    """As in a locked-down container; root gives up its right to open what is closed."""
    inside = within_namespaces("--net", "--mount")
    (short / "home").mkdir(mode=0)
    script = (
        "ip link set lo up && mount -t tmpfs -o size=20m tmpfs /dev/shm && exec setpriv"
        ' --bounding-set=-dac_override,-dac_read_search "$@"'
    )
    words = [*inside, "sh", "-c", script, "sh"]
    closed = {"HOME": str(short / "home"), "TMPDIR": str(short / "nowhere")}
    assert ran(words, study(short, steps=60), short / "out", address, **closed)[0] == 0
