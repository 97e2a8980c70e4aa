"""A reader sees a file whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from raybias.errors import OutputError, StorageError
from raybias.storage import Store


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
