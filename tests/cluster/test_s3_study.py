"""A whole study on an S3 service that fails and goes away (`make slow`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from raybias.errors import StorageError
from raybias.storage import Store
from support.moto_s3 import BUCKET, S3, served
from support.studies import run, save

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
PATIENCE_S = 600

#: Columns of tables that say how long the work took.
TIMED = {"tables/runs.": "seconds", "tables/design.": "cost"}


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


@pytest.fixture
def s3() -> Iterator[S3]:
    with served() as service:
        yield service


def test_a_study_on_s3_survives_what_a_service_does_and_equals_the_local_one(
    s3: S3, tmp_path: Path
) -> None:
    study, local = save(tmp_path, "soft_prompt"), Store(tmp_path / "local")
    run(study, tmp_path / "local")
    endpoint = s3.endpoint.removeprefix("http://")
    out = f"s3://{BUCKET}/out?scheme=http&endpoint_override={endpoint}"
    store = Store(out)
    gone = once(store, "train", ".safetensors", lambda: s3.fail("gone"))
    with gone, pytest.raises(StorageError) as raised:
        run(study, out)
    s3.fail("open")
    said = str(raised.value)
    assert (raised.value.exit_code, "\n" in said) == (1, False)
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
