"""Commands as users give them: taken, or refused in one line with nothing written; whole inputs."""

from __future__ import annotations

import io
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typer.main import get_command

from raybias import cli
from raybias.config import load_study
from raybias.runtime import study as running
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import begin
from support import hostile
from support.report_outs import GROUPS, make_study, pair_study, write_out, write_pair_out
from support.stats_data import predictions
from support.tiny import save_model

ITEMS = pl.DataFrame(
    {
        "text": ["I met a nurse.", "I like him.", "She was unkind.", "So, they left."],
        "label": ["1", "2", "0", "neutral"],
        "attribute": ["age", "age", "race", "race"],
        "group": ["old", "young", "a", "b"],
        "item_id": ["1", "2", "3", "4"],
        "template_id": ["t1", "t1", "t2", "t2"],
    }
)
PAIRS = pl.DataFrame(
    {
        "sent_more": ["They are loud.", "He is poor."],
        "sent_less": ["They are quiet.", "He is rich."],
        "bias_type": ["nationality", "socioeconomic"],
        "pair_id": ["1", "2"],
    }
)
STUDY: dict[str, Any] = {
    "name": "fuzzed",
    "profile": "strict",
    "limit": 4,
    "backbones": [{"id": "planted", "name": "m", "dtype": "float32"}],
    "methods": [
        {"kind": "soft_prompt", "seeds": [1, 2], "keep": 1, "learning_rates": [0.01]},
        {"kind": "lora", "seeds": [1], "keep": 1, "learning_rates": [0.01]},
        {"kind": "pair_score", "scores": ["bias_bench"]},
    ],
    "training": [{"source": "file", "data": "mine"}],
    "probes": [{"source": "file", "data": "probe.csv", "reference_groups": {"age": ["old"]}}],
    "pairs": [{"source": "pairs", "data": "pairs.csv"}],
    "styles": {"names": ["original", "prefix_1"]},
    "statistics": {"interval": "t", "level": 0.95},
    "resources": {"train_workers": 1, "memory_per_device": "1GiB", "nodes": [{"memory": "1GiB"}]},
}


PREDICTIONS = predictions(models=1, runs=2, templates=2, groups=("a", "b"))


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def fill(folder: Path, files: dict[str, bytes | None]) -> Path:
    for name, data in files.items():
        if data is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folder


class Hung(BaseException):
    """A command takes more than a minute."""


@contextmanager
def within_a_minute() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def commands() -> Any:
    """The commands, put together once, which takes longer than to refuse a file."""
    return get_command(cli.app)


def taken(*arguments: str, out: Path | None = None) -> bool:
    """Run a command; whether it did it. It refuses in one line, and OUT is as it was."""
    said = io.StringIO()
    before = files_in(out) if out else {}
    try:
        with (
            within_a_minute(),
            redirect_stderr(said),
            redirect_stdout(io.StringIO()),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(cli, "app", commands())
            cli.main(arguments)
        return True
    except SystemExit as end:
        code = end.code
    if not code:
        return True
    assert code == 2, said.getvalue()
    lines = [line for line in said.getvalue().split("\n")[:-1] if line.startswith("raybias: ")]
    *warnings, last = lines
    assert all(line.startswith("raybias: warning: ") for line in warnings), lines
    assert said.getvalue().endswith(f"{last}\n")
    assert "\r" not in last
    assert len(last) < 5000, len(last)
    if out:
        assert files_in(out) == before, f"{files_in(out).keys() ^ before.keys()} after {last}"
    return False


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class _Checked(BaseException):
    """All checks of a study were passed."""


def _end(address: str | None) -> None:
    raise _Checked


def checked(study: Path) -> bool:
    """`raybias run` up to where it would start Ray; whether it came there. Leaves no OUT."""
    out = study.with_name("out")
    before = files_in(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "connected", _end)
        patch.setattr(running, "names_no_cluster", lambda address: False)
        try:
            taken("run", str(study), "--out", str(out), out=out)
        except _Checked:
            assert files_in(out) == before
            return True
    return False


def planned(study: Path) -> bool:
    """`raybias plan`; whether it made one."""
    out = study.with_name("out")
    return taken("plan", str(study), "--assume", "cpus=2,memory=8GiB", "--out", str(out), out=out)


def write_study(place: Path, data: bytes) -> Path:
    """A study file, and beside it the data that `STUDY` names."""
    (place / "probe.csv").write_bytes(hostile.csv_bytes(ITEMS))
    (place / "pairs.csv").write_bytes(hostile.csv_bytes(PAIRS))
    (place / "mine").mkdir()
    for split in ("train", "validation"):
        sentences = hostile.csv_bytes(ITEMS.select("text", "label"))
        (place / "mine" / f"{split}.csv").write_bytes(sentences)
    (place / "study.yaml").write_bytes(data)
    return place / "study.yaml"


@cache
def model_folder() -> dict[str, bytes]:
    with folder() as place:
        return files_in(save_model(place / "m"))


@cache
def small_out() -> dict[str, bytes]:
    groups = GROUPS[:3]
    study = make_study(
        methods=[{"kind": "soft_prompt", "seeds": [1, 2, 3], "keep": 2}],
        probes=[{"source": "planted", "reference_groups": {"origin": list(groups[1:])}}],
    )
    with folder() as place:
        write_out(place, study, groups=groups)
        return files_in(place)


@cache
def small_pair_out() -> dict[str, bytes]:
    with folder() as place:
        write_pair_out(place, pair_study())
        return files_in(place)


@cache
def begun_out() -> dict[str, bytes]:
    """An OUT of `STUDY` as it is when its runs are tuned."""
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        store = Store(place / "out")
        record = running.prepare(load_study(study), store).record
        begin(store, record)
        runs = [{**dict.fromkeys(RUNS.names), **RUN}]
        store.write_table("runs.parquet", pa.Table.from_pylist(runs, schema=RUNS))
        here = str(place.resolve()).encode()
        return {
            name: data.replace(here, b"/HERE/IS/THE/STUDY")
            for name, data in files_in(place / "out").items()
        }


RUN = {
    **{"run_id": "r", "model": "m", "method": "lora", "dataset": "mine", "stage": "final"},
    **{"steps": 1, "selected": True},
}
