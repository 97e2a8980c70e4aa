"""A whole study on an S3 service that fails and goes away, and on a full disk (`make slow`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from raybias.cli import app
from raybias.errors import StorageError
from raybias.storage import Store
from support.moto_s3 import BUCKET, S3, served
from support.tiny import save_study

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
PATIENCE_S = 600

#: Columns of tables that say how long the work took.
TIMED = {"tables/runs.": "seconds", "tables/design.": "cost"}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with served() as service:
        yield service


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_study(tmp_path_factory.mktemp("study"), items=240)


@pytest.fixture(scope="module")
def local(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    out = tmp_path_factory.mktemp("local") / "out"
    run(study, str(out))
    return Store(out)


def place(s3: S3, name: str) -> str:
    endpoint = s3.endpoint.removeprefix("http://")
    return f"s3://{BUCKET}/{name}?scheme=http&endpoint_override={endpoint}"


def run(study: Path, out: str) -> None:
    result = CliRunner().invoke(app, ["run", str(study), "--out", out])
    if result.exception is not None:
        raise result.exception


def failure(study: Path, out: str) -> str:
    """The line that a run ends with."""
    with pytest.raises(StorageError) as raised:
        run(study, out)
    assert raised.value.exit_code == 1
    said = str(raised.value)
    assert "\n" not in said
    return said


@contextmanager
def once(store: Store, folder: str, suffix: str, action: Callable[[], None]) -> Iterator[None]:
    """Do `action` as soon as a folder holds a file, while the body runs."""
    done = threading.Event()

    def wait() -> None:
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends and not done.is_set():
            if store.files(folder, suffix=suffix, recursive=True):
                action()
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_study_on_s3_survives_what_a_service_does_and_equals_the_local_one(
    s3: S3, study: Path, local: Store
) -> None:
    out = place(s3, "out")
    store = Store(out)
    with once(store, "train", ".safetensors", lambda: s3.fail("gone")):
        said = failure(study, out)
    s3.fail("open")
    assert "AWS Error" in said
    assert "the same command then goes on with what is there" in said

    def busy() -> None:
        with s3.being("busy", 2):
            pass

    with once(store, "predictions", ".parquet", busy):
        run(study, out)
    assert not store.exists("train") or not store.files("train", recursive=True)
    for folder in ("predictions", "tables", "items"):
        names = local.files(folder, recursive=True)
        assert names == store.files(folder, recursive=True)
        for name in names:
            if not name.startswith(tuple(TIMED)):
                assert store.read_bytes(name) == local.read_bytes(name), name
        if folder == "tables":
            for name, column in TIMED.items():
                frames = [pl.read_csv(each.read_bytes(f"{name}csv")) for each in (store, local)]
                assert_frame_equal(*(frame.drop(column) for frame in frames))


def test_a_bucket_that_is_deleted_in_the_middle_is_one_line(s3: S3, study: Path) -> None:
    out = place(s3, "lost")
    with once(Store(out), "train", ".safetensors", s3.empty):
        said = failure(study, out)
    assert "create the bucket or give another URI" in said
