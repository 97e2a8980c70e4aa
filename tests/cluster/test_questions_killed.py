"""A study of questions whose replica and driver die has the rows of one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from support import question_data, studies
from support.studies import run

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_the_same_rows_after_a_replica_and_then_the_driver_are_killed(
    tmp_path: Path, ray_cluster: None
) -> None:
    study = studies.questions(tmp_path)
    small = ("--set", "resources.rows_per_shard=2")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    printed = run(study, whole, *small)
    command = [
        *(sys.executable, "-c", "from raybias.cli import main; main()", "run", study, "--out", cut),
        *("--address", ray.get_runtime_context().gcs_address, *small),
    ]
    said = tmp_path / "said"
    with said.open("w") as stream:
        driver = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        wait_for(cut, 4, driver, said)
        live = ray._private.state.actors(actor_state_name="ALIVE").values()
        replicas = [each for each in live if "ServeReplica:raybias" in str(each["ActorClassName"])]
        os.kill(replicas[0]["Pid"], signal.SIGKILL)
        wait_for(cut, 12, driver, said)
    finally:
        driver.kill()
        driver.wait()
    done = {file: file.stat().st_mtime_ns for file in answers(cut)}
    assert len(done) < len(answers(whole)), "it was to be killed in the middle"
    assert run(study, cut, *small) == printed.replace(str(whole), str(cut))
    assert {file: file.stat().st_mtime_ns for file in done} == done, "no run is made twice"
    for folder in question_data.FOLDERS:
        assert question_data.answers(cut, folder).equals(question_data.answers(whole, folder))


def answers(out: Path) -> list[Path]:
    """The files of whole runs in an OUT."""
    return [file for name in question_data.FOLDERS for file in (out / name).rglob("*.parquet")]


def wait_for(out: Path, count: int, driver: subprocess.Popen[bytes], said: Path) -> None:
    """Until there are so many files of shards or whole runs."""
    ends = time.monotonic() + 240
    while len([*answers(out), *(out / "parts").rglob("*.parquet")]) < count:
        assert driver.poll() is None, said.read_text()
        assert time.monotonic() < ends, said.read_text()
        time.sleep(0.02)
