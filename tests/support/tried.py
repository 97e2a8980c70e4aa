"""What commands do with a file of a user's: take it, or refuse it in one line and write nothing."""

from __future__ import annotations

import io
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typer.main import get_command

from raybias import cli
from raybias.config import Backbone, load_study
from raybias.engine.backbone import load_backbone
from raybias.errors import BadInput
from raybias.runtime import study as running
from raybias.runtime.serve.app import Serving, app
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import begin
from support import hostile, inputs
from support.pair_data import answers, pair_scores
from support.pair_outs import pair_study, write_pair_out
from support.report_outs import GROUPS, make_study, write_out
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
TSV = inputs.csv_bytes(
    pl.DataFrame(
        {
            **{"y_true": [0, 1, 2, 2], "y_pred": [0, 1, 0, 2], "category": "grouped_age"},
            **{"group": ["a", "b", "a", "b"], "text": ["A.", "B.", "C.", "D."], "model": "m"},
            **{"run_id": 1, "dataset": "sst5", "num_params": 1},
        }
    ),
    separator="\t",
)
SCORES = pair_scores(types=("age", "gender"), pairs=3, styles=("original", "prefix_1"))
ANSWERS = answers(pairs=2, styles=("original", "prefix_1"), prompts=("represent",))


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


@contextmanager
def within_a_minute() -> Iterator[None]:
    def end(*_: object) -> None:
        raise KeyboardInterrupt("took more than a minute")

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
    (place / "probe.csv").write_bytes(inputs.csv_bytes(ITEMS))
    (place / "pairs.csv").write_bytes(inputs.csv_bytes(PAIRS))
    (place / "mine").mkdir()
    for split in ("train", "validation"):
        sentences = inputs.csv_bytes(ITEMS.select("text", "label"))
        (place / "mine" / f"{split}.csv").write_bytes(sentences)
    (place / "study.yaml").write_bytes(data)
    return place / "study.yaml"


def study_file(data: bytes) -> bool:
    with folder() as place:
        study = write_study(place, data)
        return checked(study) and planned(study)


def training_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        (place / "mine" / "train.csv").unlink()
        (place / "mine" / f"train.{name.partition('.')[2]}").write_bytes(data)
        return checked(study)


def probe_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        return taken("probes", "write", str(place / name), "--out", f"{out}/x.parquet", out=out)


def pair_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        styles = ("--style", "original", "--style", "prefix_1")
        source = ("probes", "write", "pairs", "--data", str(place / name))
        return taken(*source, *styles, "--out", f"{out}/x.csv", out=out)


def prediction_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        out = place / "out"
        taken("design", str(place / name))
        taken("calibrate", str(place / name), "--studies", "2")
        return taken("gaps", str(place / name), "--out", str(out), out=out)


def given_to(command: str) -> Callable[[tuple[str, bytes]], bool]:
    """A check of what a command that reads one file and writes a folder does with it."""

    def check(file: tuple[str, bytes]) -> bool:
        name, data = file
        with folder() as place:
            (place / name).write_bytes(data)
            out = place / "out"
            return taken(command, str(place / name), "--out", str(out), out=out)

    return check


score_file, metrics_file, option_file = map(given_to, ("pairs", "metrics", "options"))


def triple_files(files: tuple[bytes, bytes]) -> bool:
    with folder() as place:
        for name, data in zip(("x.json", "dev.json"), files, strict=True):
            (place / name).write_bytes(data)
        out, words = place / "out", (str(place / "x.json"), "--items", str(place / "dev.json"))
        return taken("triples", *words, "--out", str(out), out=out)


def annotated(files: tuple[str, tuple[str, bytes]]) -> bool:
    """Sheets of annotators whose names are those of columns."""
    annotator, (name, data) = files
    with folder() as place:
        sheet = place / "sheet.csv"
        sheet.write_bytes(inputs.csv_bytes(SHEET))
        file = place / f"{annotator}.{name.partition('.')[2]}"
        file.write_bytes(data)
        out = place / "out"
        return taken("annotate", "import", str(sheet), str(file), "--out", str(out), out=out)


def corpus_file(file: tuple[str, bytes]) -> bool:
    name, data = file
    with folder() as place:
        out = fill(place / "out", small_out())
        (place / name).write_bytes(data)
        return taken("report", str(out), "--corpus", str(place / name), out=out)


@cache
def model_folder() -> dict[str, bytes]:
    with folder() as place:
        return files_in(save_model(place / "m"))


def model(files: dict[str, bytes | None]) -> bool:
    """Plan and check a study of the model, and load it as a worker does."""
    with folder() as place:
        fill(place / "model", files)
        backbone = {"id": "model", "name": "m", "dtype": "float32"}
        methods = [
            {"kind": "soft_prompt", "learning_rates": [0.01], "seeds": [1], "keep": 1},
            {"kind": "full", "seeds": [1], "keep": 1},
            {"kind": "zero_shot"},
            {"kind": "pair_score", "scores": ["bias_bench"]},
        ]
        tree = {**STUDY, "backbones": [backbone], "methods": methods}
        study = write_study(place, hostile.dumped(tree))
        ready = checked(study) & planned(study)
        with within_a_minute(), redirect_stderr(io.StringIO()):
            try:
                load_backbone(Backbone(id=str(place / "model"), dtype="float32"))
            except BadInput:
                return False
        return ready


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


def damaged_out(files: dict[str, bytes | None]) -> bool:
    """What a finished OUT is asked for; of a study that can be run again."""
    with folder() as place:
        out = fill(place / "out", files)
        for command in ("gaps", "design"):
            taken(command, str(out), out=out)
        taken("compare", str(out), str(out), out=out)
        taken("calibrate", str(out), "--studies", "2", out=out)
        served(out)
        return taken("report", str(out), out=out)


def damaged_pair_out(files: dict[str, bytes | None]) -> bool:
    with folder() as place:
        out = fill(place / "out", files)
        taken("pairs", str(out), out=out)
        return taken("report", str(out), out=out)


def served(out: Path) -> bool:
    """What `raybias serve` reads before it starts."""
    try:
        with within_a_minute(), redirect_stderr(io.StringIO()):
            app(Serving(out=str(out), anyone=True))
    except BadInput:
        return False
    return True


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


def run_again(files: dict[str, bytes | None]) -> bool:
    with folder() as place:
        study = write_study(place, hostile.dumped(STUDY))
        here = str(place.resolve()).encode()
        fill(
            place / "out",
            {n: d and d.replace(b"/HERE/IS/THE/STUDY", here) for n, d in files.items()},
        )
        return checked(study)


def contradictory(what: str) -> bool:
    """Runs that do not hold the same items, or not as the same, are refused."""
    runs = PREDICTIONS.partition_by("run_id", maintain_order=True)
    with folder() as place:
        for number, run in enumerate([runs[0], hostile.CONTRADICTIONS[what](runs[1])]):
            (place / f"{number}.parquet").write_bytes(inputs.parquet_bytes(run))
        for command in (
            ("gaps",),
            ("design",),
            ("calibrate", "--studies", "2"),
            ("compare", str(place)),
        ):
            assert not taken(*command, str(place)), f"{what} was taken by {command[0]}"
    return False


def contradictory_scores(row: int) -> bool:
    """A preference for the side that scores lower."""
    turned = pl.when(pl.int_range(pl.len()) == row).then(1 - pl.col("preference"))
    table = SCORES.with_columns(preference=turned.otherwise("preference"))
    with folder() as place:
        (place / "x.csv").write_bytes(inputs.csv_bytes(table))
        return taken("pairs", str(place / "x.csv"))


RUN = {
    **{"run_id": "r", "model": "m", "method": "lora", "dataset": "mine", "stage": "final"},
    **{"steps": 1, "selected": True},
}
SHEET = pl.DataFrame(
    {
        **{"pair_id": ["1", "2"], "style": ["formal", "formal"], "label": ["same", "different"]},
        **{name: ["a", "b"] for name in ("original_more", "sent_more")},
        **{name: ["c", "d"] for name in ("original_less", "sent_less")},
    }
)
CORPUS = pl.DataFrame(
    [("origin", group, group, "man", 3, 50) for group in GROUPS[:3]],
    schema=["attribute", "group", "term", "noun", "marked", "bare"],
    orient="row",
)
