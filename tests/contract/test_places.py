"""Files and folders that say no: each is one line, and no traceback; some are no hindrance."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from jinja2 import TemplateNotFound

from raybias import cli
from support import hostile, prompting
from support.documents import ROOT
from support.tried import PREDICTIONS, checked, fill, planned, small_out, taken, write_study

NOBODY = 65534


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read and write everything, so it becomes nobody for a while; others stay."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        # Modules and templates are read when they are needed, by whoever runs then.
        for file in (cli.__file__, typer.__file__):
            if not os.access(file, os.R_OK, effective_ids=True):
                pytest.skip(f"another user than root may not read {file}")
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user may enter; `tmp_path` is the user's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        for each in (folder, *folder.rglob("*")):
            if each.is_dir() and not each.is_symlink():
                each.chmod(0o755)


def test_what_a_user_may_not_read_is_one_line(place: Path) -> None:
    for each in prompting.save("opt", place / "model").iterdir():
        each.chmod(0o644)
    study = write_study(place, backbones=[{"id": "model", "dtype": "float32"}])
    # What is imported late may be closed to another user too.
    assert checked(study)
    assert planned(study)
    with as_another_user():
        assert checked(study)
    data = ("study.yaml", "probe.csv", "pairs.csv", "mine/train.csv", "mine")
    for closed in (*data, "model/config.json", "model/model.safetensors", "model"):
        (place / closed).chmod(0)
        with as_another_user():
            assert not checked(study), closed
            assert closed not in data or not planned(study), closed
        (place / closed).chmod(0o755)


@pytest.mark.long
def test_an_out_that_a_user_may_not_read_is_one_line(place: Path) -> None:
    out = fill(place / "out", small_out())
    assert taken("report", out)
    for closed in ("study.yaml", "runs.parquet", "items", "predictions", "planted.json", ""):
        (out / closed).chmod(0)
        with as_another_user():
            assert not taken("report", out), closed
            if closed in ("predictions", ""):
                assert not taken("measure", out), closed
        (out / closed).chmod(0o755)


@pytest.mark.long
def test_a_place_that_a_user_may_not_write_is_one_line(place: Path) -> None:
    out = fill(place / "out", small_out())
    (place / "x.parquet").write_bytes(hostile.parquet_bytes(PREDICTIONS))
    (place / "x.parquet").chmod(0o644)
    assert taken("report", out)
    place.chmod(0o755)
    if not os.geteuid():
        with as_another_user():
            assert not taken("report", out, out=out)
            assert not taken("measure", place / "x.parquet", "--out", place / "new")
    assert not (place / "new").exists()
    assert not taken("measure", place / "x.parquet", "--out", place / "x.parquet")


def test_what_no_file_or_study_can_be_is_one_line(place: Path) -> None:
    (place / "loop").symlink_to(place / "loop")
    study = write_study(place)
    loop, long = place / "loop", "n" * 300
    for wrong in (loop, place / long, "s3://", "a\x00b", "gs:///x"):
        assert not taken("plan", study, "--out", wrong), wrong
        for command in ("plan", "report", "measure", "probes write file --out x.csv --data"):
            assert not taken(*command.split(), wrong), (command, wrong)
    for key in ("backbones.0.id", "probes.0.data", "training.0.data", "pairs.0.data"):
        for wrong in (loop, long):
            assert not taken("plan", study, "--set", f"{key}={wrong}"), (key, wrong)
    assert not taken("plan", place)
    out = fill(place / "out", small_out())
    (out / "study.yaml").unlink()
    (out / "study.yaml").mkdir()
    assert not taken("report", out)


@pytest.mark.long
def test_an_out_may_have_any_name(place: Path) -> None:
    out = fill(place / "50%41 of a?b=1#c %zz größe", small_out())
    assert not taken("measure", out, "--out", out / "gaps %20")
    assert taken("measure", out, "--out", place / "gaps %20")
    assert taken("compare", out, out)


def test_home_and_temporary_folder_may_be_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "home").mkdir(mode=0)
    for each in prompting.save("opt", place / "model").iterdir():
        each.chmod(0o644)
    study = write_study(place, backbones=[{"id": "model", "dtype": "float32"}])
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(place / "home"))
    monkeypatch.setenv("TMPDIR", str(place / "nowhere"))
    with as_another_user():
        assert checked(study)


def test_memory_that_is_not_enough_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a real limit some libraries abort, or try for ever, by where it is met."""

    def report(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("raybias.api.studies.write_report", report)
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "out"])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.startswith("raybias: this machine's memory is not enough")


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (TemplateNotFound("page.js"), "template page.js"),
        (ModuleNotFoundError("none", name="raybias.report.page"), "module raybias.report.page"),
        (
            PermissionError(13, "denied", f"{ROOT}/raybias/assets/demo.yaml"),
            "file assets/demo.yaml",
        ),
    ],
)
def test_a_package_that_a_user_may_not_read_is_one_line_and_no_bug(
    error: Exception, own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("raybias.api.studies.write_report", report)
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "out"])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.startswith(f"raybias: {ROOT}/raybias: its own {own} cannot be read; let this user")


@pytest.mark.long
def test_a_full_disk_under_out_is_one_line_and_leaves_whole_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is there whole, as it was or as it is to be, and none is left of a writer."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets the user mount nothing")
    try:
        out = fill(tmp_path / "out", small_out())
        (tmp_path / "ballast").write_bytes(bytes(os.statvfs(tmp_path).f_bavail * 4096 - 65_536))
        for command in (f"report {out}", f"measure {out} --out {tmp_path}/gaps"):
            with pytest.raises(SystemExit) as ended:
                cli.main(command.split())
            said = capsys.readouterr().err.splitlines()
            assert ended.value.code == 1
            assert [line for line in said if not line.startswith("raybias: warning: ")] == said[-1:]
            assert "No space left on device" in said[-1]
        assert small_out() == {name: (out / name).read_bytes() for name in small_out()}
        assert not [*tmp_path.rglob("*.tmp")]
    finally:
        subprocess.run(["umount", tmp_path], check=True)
