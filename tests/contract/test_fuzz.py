"""Whatever a file holds: one line or a result, never a traceback, and never part of an OUT.

`pytest tests/contract/test_fuzz.py --hypothesis-profile=long` tries ten thousand files and more.
"""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybias.cli import main
from raybias.runtime import study as running
from support import inputs
from support.answer_data import bbq_file, option_answers, stereoset, triple_file
from support.pair_data import answers, pair_scores
from support.stats_data import predictions

CASES = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
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
BBQ = bbq_file()
OPTIONS = option_answers(12, 3, 0)
TRIPLES = json.dumps(stereoset(3, 2)).encode()
TRIPLE_SCORES = triple_file(stereoset(3, 2), 0)
ANSWERS = answers(pairs=2, styles=("original", "prefix_1"), prompts=("represent",))


def taken(*arguments: str) -> bool:
    """Run a command; whether it did it. It refuses in one line, with exit code 2 and no OUT."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            main(arguments)
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
    out = Path(arguments[arguments.index("--out") + 1])
    assert not out.exists(), f"{[*out.rglob('*')]} after {last}"
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "connected", _end)
        try:
            taken("run", str(study), "--out", str(out))
        except _Checked:
            assert not out.exists()
            return True
    return False


def planned(study: Path) -> bool:
    """`raybias plan`; whether it made one."""
    out = study.with_name("out")
    return taken("plan", str(study), "--assume", "cpus=2,memory=8GiB", "--out", str(out))


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


@pytest.mark.long
def test_what_is_whole_is_taken(tmp_path: Path) -> None:
    """The fuzz begins at input that passes every check."""
    study = write_study(tmp_path, yaml.safe_dump(STUDY).encode())
    assert checked(study)
    assert planned(study)
    for command, name, data in (
        ("gaps", "x.parquet", inputs.parquet_bytes(PREDICTIONS)),
        ("gaps", "x.tsv", TSV),
        ("pairs", "y.parquet", inputs.parquet_bytes(SCORES)),
        ("pairs", "y.csv", inputs.csv_bytes(ANSWERS)),
    ):
        (tmp_path / name).write_bytes(data)
        assert taken(command, str(tmp_path / name), "--out", str(tmp_path / f"{name}.out"))


def files_of_a_study() -> st.SearchStrategy[bytes]:
    written = inputs.studies(STUDY).map(lambda tree: yaml.safe_dump(tree).encode("utf-8"))
    return written | inputs.damaged(yaml.safe_dump(STUDY, sort_keys=False).encode("utf-8"))


@CASES
@given(data=files_of_a_study())
def test_study_files(data: bytes) -> None:
    with folder() as place:
        study = write_study(place, data)
        checked(study)
        planned(study)


def table_files(table: pl.DataFrame) -> st.SearchStrategy[tuple[str, bytes]]:
    """A table as CSV, TSV or Parquet, changed before or after it was written."""
    return st.one_of(
        inputs.tables(table).map(lambda t: ("x.parquet", inputs.parquet_bytes(t))),
        inputs.tables(table.cast(pl.String)).map(lambda t: ("x.csv", inputs.csv_bytes(t))),
        inputs.damaged(inputs.csv_bytes(table)).map(lambda data: ("x.csv", data)),
        inputs.damaged(inputs.csv_bytes(table, separator="\t")).map(lambda d: ("x.tsv", d)),
        inputs.damaged(inputs.parquet_bytes(table)).map(lambda data: ("x.parquet", data)),
    )


@CASES
@given(file=table_files(ITEMS))
def test_probe_files(file: tuple[str, bytes]) -> None:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        taken("probes", "write", str(place / name), "--out", str(place / "out.parquet"))


def prediction_files() -> st.SearchStrategy[tuple[str, bytes]]:
    made = inputs.parquet_bytes(PREDICTIONS)
    return st.one_of(
        inputs.tables(PREDICTIONS).map(lambda t: ("x.parquet", inputs.parquet_bytes(t))),
        inputs.damaged(made).map(lambda data: ("x.parquet", data)),
        inputs.damaged(TSV).map(lambda data: ("regard_m.tsv", data)),
        inputs.damaged(TSV).map(lambda data: ("m.tsv.gz", gzip.compress(data))),
        inputs.damaged(gzip.compress(TSV)).map(lambda data: ("m.tsv.gz", data)),
    )


@CASES
@given(file=prediction_files())
def test_prediction_files(file: tuple[str, bytes]) -> None:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        taken("gaps", str(place / name), "--out", str(place / "out"))


@CASES
@given(file=table_files(SCORES) | table_files(ANSWERS))
def test_score_files(file: tuple[str, bytes]) -> None:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        taken("pairs", str(place / name), "--out", str(place / "out"))


@CASES
@given(
    file=table_files(OPTIONS)
    | inputs.damaged(BBQ).map(lambda data: ("x.jsonl", data))
    | inputs.damaged(gzip.compress(BBQ)).map(lambda data: ("x.jsonl.gz", data))
)
def test_files_of_answers_to_options(file: tuple[str, bytes]) -> None:
    name, data = file
    with folder() as place:
        (place / name).write_bytes(data)
        taken("options", str(place / name), "--out", str(place / "out"))


@CASES
@given(
    scores=st.just(TRIPLE_SCORES) | inputs.damaged(TRIPLE_SCORES),
    items=st.just(TRIPLES) | inputs.damaged(TRIPLES),
)
def test_files_of_triples(scores: bytes, items: bytes) -> None:
    with folder() as place:
        (place / "x.json").write_bytes(scores)
        (place / "dev.json").write_bytes(items)
        files = str(place / "x.json"), "--items", str(place / "dev.json")
        taken("triples", *files, "--out", str(place / "out"))
