"""Files and folders that say no: each is one line, and no traceback; some are no hindrance."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raybias import cli
from support import hostile
from support.tiny import save_model
from support.tried import PREDICTIONS, STUDY, checked, fill, planned, small_out, taken, write_study

NOBODY = 65534


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read and write everything, so it becomes nobody for a while; others stay."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
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
    study = write_study(place, hostile.dumped(STUDY))
    # What is imported late may be closed to another user too.
    assert checked(study)
    assert planned(study)
    with as_another_user():
        assert checked(study)
    for closed in ("study.yaml", "probe.csv", "pairs.csv", "mine/train.csv", "mine"):
        (place / closed).chmod(0)
        with as_another_user():
            assert not checked(study), closed
            assert not planned(study), closed
        (place / closed).chmod(0o755)


def test_a_model_that_a_user_may_not_read_is_one_line(place: Path) -> None:
    model = save_model(place / "model")
    tree = {**STUDY, "backbones": [{"id": "model", "dtype": "float32"}]}
    study = write_study(place, hostile.dumped(tree))
    assert checked(study)
    for closed in (model / "config.json", model / "model.safetensors", model):
        closed.chmod(0)
        with as_another_user():
            assert not checked(study), closed
        closed.chmod(0o755)


@pytest.mark.long
def test_an_out_that_a_user_may_not_read_is_one_line(place: Path) -> None:
    out = fill(place / "out", small_out())
    assert taken("report", str(out))
    for closed in ("study.yaml", "runs.parquet", "items", "predictions", "planted.json", ""):
        (out / closed).chmod(0)
        with as_another_user():
            assert not taken("report", str(out)), closed
            if closed in ("predictions", ""):
                assert not taken("measure", str(out)), closed
        (out / closed).chmod(0o755)


@pytest.mark.long
def test_a_place_that_a_user_may_not_write_is_one_line(place: Path) -> None:
    out = fill(place / "out", small_out())
    (place / "x.parquet").write_bytes(hostile.parquet_bytes(PREDICTIONS))
    (place / "x.parquet").chmod(0o644)
    assert taken("report", str(out))
    place.chmod(0o755)
    if not os.geteuid():
        with as_another_user():
            assert not taken("report", str(out), out=out)
            assert not taken("measure", str(place / "x.parquet"), "--out", str(place / "new"))
    assert not (place / "new").exists()
    assert not taken("measure", str(place / "x.parquet"), "--out", str(place / "x.parquet"))


def test_links_in_a_circle_and_names_that_no_file_has_are_one_line(place: Path) -> None:
    (place / "loop").symlink_to(place / "loop")
    study = write_study(place, hostile.dumped(STUDY))
    for wrong in (str(place / "loop"), str(place / ("n" * 300)), "s3://", "a\x00b", "gs:///x"):
        assert not taken("plan", str(study), "--out", wrong), wrong
        assert not taken("plan", wrong), wrong
        assert not taken("report", wrong), wrong
        assert not taken("measure", wrong), wrong
        assert not taken("probes", "write", "file", "--data", wrong, "--out", "x.csv"), wrong
    for key in ("backbones.0.id", "probes.0.data", "training.0.data", "pairs.0.data"):
        for wrong in (str(place / "loop"), "n" * 300):
            assert not taken("plan", str(study), "--set", f"{key}={wrong}"), (key, wrong)


def test_a_folder_is_no_study(place: Path) -> None:
    write_study(place, hostile.dumped(STUDY))
    assert not taken("plan", str(place))
    out = fill(place / "out", small_out())
    (out / "study.yaml").unlink()
    (out / "study.yaml").mkdir()
    assert not taken("report", str(out))


@pytest.mark.long
@pytest.mark.parametrize("name", ["50%41 of it", "a?b=1#c", "%zz", "größe"])
def test_an_out_may_have_any_name(place: Path, name: str) -> None:
    out = fill(place / name, small_out())
    assert taken("measure", str(out), "--out", str(out / "gaps %20"))
    assert taken("compare", str(out), str(out))


def test_home_and_temporary_folder_may_be_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "home").mkdir(mode=0)
    save_model(place / "model")
    for each in (place / "model").iterdir():
        each.chmod(0o644)
    tree = {**STUDY, "backbones": [{"id": "model", "dtype": "float32", "name": "m"}]}
    study = write_study(place, hostile.dumped(tree))
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(place / "home"))
    monkeypatch.setenv("TMPDIR", str(place / "nowhere"))
    with as_another_user():
        assert checked(study)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets the user mount nothing")
    yield place
    subprocess.run(["umount", str(place)], check=True)


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


@pytest.mark.long
def test_a_file_that_may_not_grow_is_one_line(place: Path) -> None:
    out = fill(place / "out", small_out())
    # Who measures its coverage writes a file too.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = ["prlimit", "--fsize=20000", sys.executable, "-c"]
    done = subprocess.run(
        [*command, "from raybias.cli import main; main()", "report", str(out)],
        capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("raybias: "), done.stderr
    assert "File too large" in last
    assert "Traceback" not in done.stderr
    assert not [*out.rglob("*.tmp")]


@pytest.mark.long
def test_a_full_disk_under_out_is_one_line_and_leaves_whole_files(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is there whole, as it was or as it is to be, and none is left of a writer."""
    out = fill(small_disk / "out", small_out())
    before = {name: (out / name).read_bytes() for name in small_out()}
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 65_536))
    for command in (("report", str(out)), ("measure", str(out), "--out", str(small_disk / "gaps"))):
        with pytest.raises(SystemExit) as ended:
            cli.main(command)
        said = capsys.readouterr().err.splitlines()
        assert ended.value.code == 1
        assert [line for line in said if not line.startswith("raybias: warning: ")] == said[-1:]
        assert "No space left on device" in said[-1]
    assert before == {name: (out / name).read_bytes() for name in before}
    assert not [*small_disk.rglob("*.tmp")]
