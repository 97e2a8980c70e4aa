"""A file is there whole or not at all; an object store holds what a folder holds, or says why."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from raybias.errors import DataError, OutputError, StorageError
from raybias.methods.base import Shard
from raybias.runtime import lease
from raybias.runtime.lease import leased
from raybias.runtime.predict.shards import ShardFiles
from raybias.schema import OutputSpec
from raybias.storage import Store, split_uri
from support.moto_s3 import BUCKET, S3, served

TABLE = pa.table({"x": [1, 2], "y": ["p", None]})
OUT = f"s3://{BUCKET}/out"


@pytest.fixture(scope="module")
def service() -> Iterator[S3]:
    with served() as s3:
        yield s3


@pytest.fixture
def s3(service: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    return service


def fill(store: Store) -> None:
    store.write_text("study.yaml", "name: a")
    store.write_text("study.yaml", "name: b")
    store.write_table("predictions/p/r/00000000.parquet", TABLE)
    store.write_bytes("predictions/p/r/.hidden", b"x")
    store.write_bytes("train/a/state", b"x")
    store.write_bytes("gone", b"x")
    store.delete("gone")
    store.delete("never")
    store.delete_folder("train/a")


def test_a_bucket_has_one_driver_at_a_time(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_SETTLES_S", 0.01)
    store = Store(f"{OUT}-of-one")
    with leased(store):
        with pytest.raises(OutputError, match="another raybias works on it"), leased(store):
            pass
        assert store.exists(lease.NAME)
    assert not store.exists(lease.NAME)
    with pytest.raises(OutputError, match="NO_SUCH_BUCKET"), leased(Store("s3://not-there/out")):
        pass


def test_a_bucket_holds_what_a_folder_holds(s3: S3, tmp_path: Path) -> None:
    stores = [Store(tmp_path / "out"), pickle.loads(pickle.dumps(Store(OUT)))]
    for store in stores:
        fill(store)
        assert store.read_table("predictions/p/r/00000000.parquet") == TABLE
        assert store.exists("predictions")
        assert not store.exists("train/a")
        assert store.is_file("study.yaml")
        assert not store.is_file("predictions")
        assert store.files("nowhere") == []
        (table,) = store.files("predictions", suffix=".parquet", recursive=True)
        assert table == "predictions/p/r/00000000.parquet"
        with pytest.raises(DataError):
            store.read_bytes("never")
    local, remote = stores
    names = local.files(recursive=True)
    assert names == remote.files(recursive=True)
    assert [local.read_bytes(n) for n in names] == [remote.read_bytes(n) for n in names]


def test_options_of_a_uri_stay_behind_its_path(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    place = s3.endpoint.removeprefix("http://")
    options = f"?scheme=http&endpoint_override={place}"
    store = Store(f"{OUT}/options{options}")
    store.write_text("a/b.txt", "x")
    assert store.uri_of("a/b.txt") == f"{OUT}/options/a/b.txt{options}"
    folder, name = split_uri(store.uri_of("a/b.txt"))
    assert (name, folder.read_text(name)) == ("b.txt", "x")


@pytest.mark.long
def test_a_service_that_fails_for_seconds_is_asked_again(s3: S3) -> None:
    store = Store(OUT)
    with s3.being("busy", 1.5):
        store.write_text("busy", "x")
    # As Ray Train's workers get it.
    with (
        s3.being("gone", 1.5),
        pickle.loads(pickle.dumps(store.fs)).open_input_file(store.path("busy")) as file,
    ):
        assert file.read() == b"x"


@pytest.mark.long
def test_a_service_that_is_gone_is_one_line_and_can_come_back(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    store = Store(f"{OUT}/again")
    shard = Shard("q", "r", "", "", "", 0, 2, "p")
    store.write_table(shard.file, TABLE)
    reading = OutputSpec("p", TABLE.schema)
    with s3.being("gone"):
        for action in (
            lambda: store.write_text("x", "x"),
            lambda: store.read_text("x"),
            lambda: store.read_table(shard.file),
            lambda: store.files("p"),
            lambda: store.exists("p"),
            lambda: ShardFiles(store, [shard], reading).todo,
        ):
            with pytest.raises(StorageError, match=r"check that it answers; the same") as raised:
                action()
            assert "\n" not in str(raised.value)
            assert raised.value.exit_code == 1
    assert ShardFiles(store, [shard], reading).todo == []


def test_what_will_not_come_back_names_its_cure(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="create the bucket or give another URI"):
        Store("s3://nowhere/out").write_text("x", "x")
    with pytest.raises(OutputError, match="set the credentials in the environment") as raised:
        Store(f"s3://key:secret@{BUCKET}/out")
    assert "secret@" not in str(raised.value)


def test_attempts_are_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "many")
    with pytest.raises(OutputError, match="AWS_MAX_ATTEMPTS is 'many'"):
        Store("s3://bucket/out?region=us-east-1")


def test_partial_files_are_not_seen_and_can_be_swept(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.write_text("a/whole.gz", "plain, whatever its suffix")
    assert store.read_text("a/whole.gz") == "plain, whatever its suffix"
    half = tmp_path / "out" / "a" / f".{uuid.uuid4().hex}.tmp"
    for file in (half, half.with_name(".mine.tmp")):
        file.write_text("half")
    assert store.files(recursive=True) == ["a/whole.gz"]
    store.sweep()
    assert sorted(file.name for file in half.parent.iterdir()) == [".mine.tmp", "whole.gz"]


def test_places_that_cannot_be_written_say_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot open 'nowhere://x'"):
        Store("nowhere://x")
    with pytest.raises(OutputError, match=r"a place has no name; write \. for the folder"):
        Store("")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        Store(tmp_path / "file").write_text("x", "y")


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.write_text("x", "before")
    # What is written beside the file goes to a device that is always full.
    name = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: name)
    (tmp_path / f".{name.hex}.tmp").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"cannot write \(No space left on device\); make room"):
        store.write_text("x", "after")
    assert store.read_text("x") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    store.write_text("x", "after")
    assert store.read_text("x") == "after"


def test_a_pipe_is_refused_as_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.tsv")
    with pytest.raises(OutputError, match=r"p\.tsv: is a pipe; write what it holds to a file"):
        Store(tmp_path / "p.tsv")
