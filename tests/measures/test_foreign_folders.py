"""Folders as other harnesses write them: what is not answers is named, and passed over."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raybias import memory_limits
from raybias.config import QuestionProbe
from raybias.errors import DataError
from raybias.measures.reading import held, read
from raybias.probes import question_items
from raybias.stats.checks import StatisticsWarning
from support.answer_data import bbq_file, questions

FOREIGN: Final = Path(__file__).parents[1] / "support" / "foreign"
PAIRS: Final = FOREIGN / "samples_crows_pairs_english.jsonl.gz"
QUESTIONS: Final = FOREIGN / "samples_bbq.jsonl.gz"
LOG: Final = FOREIGN / "inspect_bbq.json.gz"
#: The log LOG, by `inspect log convert --to eval`: members in Zstandard.
ARCHIVE: Final = FOREIGN / "inspect_bbq.eval"
#: The keys that lm-eval 0.4.13 writes into results_TIME.json.
RESULTS: Final[dict[str, Any]] = {
    "results": {
        "crows_pairs_english": {"alias": "crows_pairs_english", "pct_stereotype,none": 0.5}
    },
    "group_subtasks": {"crows_pairs_english": []},
    "configs": {"crows_pairs_english": {"task": "crows_pairs_english", "eval": "sent_more"}},
    "versions": {"crows_pairs_english": 1.0},
    "n-shot": {"crows_pairs_english": 0},
    "higher_is_better": {"crows_pairs_english": {"pct_stereotype": False}},
    "n-samples": {"crows_pairs_english": {"original": 6, "effective": 6}},
    "config": {"model": "hf", "model_args": "pretrained=tiny"},
    "git_hash": None,
    "date": 1764000000.0,
    "model_name": "org/tiny",
    "model_name_sanitized": "org__tiny",
    "total_evaluation_time_seconds": "9.1",
}
#: Files that lie beside answers, by name, and what each is called.
COMPANIONS: Final[dict[str, tuple[object, str]]] = {
    "results_2026-01-01T00-00-00.json": (RESULTS, "lm-eval's results"),
    "samples_hellaswag.jsonl": (
        {"doc_id": 0, "doc": {"ctx": "eval"}, "arguments": [], "filtered_resps": []},
        "lm-eval's samples of another task",
    ),
    "gsm8k.json": (
        {"status": "success", "eval": {"model": "m"}, "samples": [{"id": 1, "metadata": {}}]},
        "inspect's log of another task, or without samples",
    ),
    "run_spec.json": (
        {"name": "bbq", "adapter_spec": {}, "scenario_spec": {}},
        "HELM's description of a run",
    ),
    "promptfoo.json": ({"evalId": "e", "results": {}, "config": {}}, "promptfoo's results"),
    "promptfoo.jsonl": ({"promptIdx": 0, "testIdx": 0, "response": {}}, "promptfoo's results"),
    "deepeval.json": ({"testCases": [], "metricsScores": []}, "deepeval's test run"),
    "batch_output.jsonl": (
        {"id": "b", "custom_id": "1", "response": {"body": {}}, "error": None},
        "OpenAI's batch output",
    ),
    "dev.json": (
        {"version": "1.1", "data": {"intrasentence": []}},
        "StereoSet's items, without scores",
    ),
    "list.json": ([1, {"eval": "request_states"}], ""),
    "torn.json": ('{"results": ', ""),
    "rows.jsonl": ({"a": 1}, ""),
    "table.csv": ("a,b\n1,2\n", ""),
    "README.md": ("read me", ""),
}


def write_folder(folder: Path, answers: Path | None, companions: list[str]) -> Path:
    folder.mkdir(parents=True)
    if answers is not None:
        shutil.copy(answers, folder)
    for name in companions:
        content = COMPANIONS[name][0]
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    answers=st.sampled_from([PAIRS, QUESTIONS, LOG, ARCHIVE]),
    companions=st.sets(st.sampled_from(sorted(COMPANIONS)), min_size=1, max_size=5),
)
def test_other_files_of_a_folder_are_named_and_passed_over(
    answers: Path, companions: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("folder") / "res" / "org__tiny"
    write_folder(folder, answers, sorted(companions))
    (alone,) = read([answers]).values()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (table,) = read([folder.parent]).values()
    assert table.drop("model").equals(alone.drop("model"))
    (warning,) = (str(each.message) for each in caught)
    for name in companions:
        what = COMPANIONS[name][1]
        assert f"org__tiny/{name}" + f" ({what})" * bool(what) in warning


@pytest.mark.parametrize("name", sorted(COMPANIONS))
def test_another_harness_alone_is_one_line(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", None, [name])
    with pytest.raises(DataError, match=f"no file holds answers: {name}") as caught:
        read([folder])
    assert "\n" not in str(caught.value)
    what = COMPANIONS[name][1]
    if what:
        with pytest.raises(DataError, match=f"is {what}, which holds no answers") as caught:
            read([folder / name])
        assert str(caught.value).count("; ") == 1


def test_the_folder_of_lm_eval_as_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "res" / "org__tiny"
    results = "results_2026-01-01T00-00-00.json"
    write_folder(folder, None, [results])
    samples = gzip.decompress(PAIRS.read_bytes())
    (folder / "samples_crows_pairs_english_2026-01-01T00-00-00.jsonl").write_bytes(samples)
    with pytest.warns(StatisticsWarning, match=rf"{results} \(lm-eval's results\)"):
        scores = read([tmp_path / "res"])["pairs"]
    assert scores["model"].unique().to_list() == ["org__tiny"]
    logged = [json.loads(line)["pct_stereotype"] for line in samples.splitlines()]
    assert scores["preference"].to_list() == logged
    assert held(tmp_path / "res") == ["pairs"]


def test_a_damaged_log_in_a_folder_is_refused(tmp_path: Path) -> None:
    shutil.copy(PAIRS, tmp_path)
    (tmp_path / "log.json").write_text('{"eval": {"model": "m"}, "samples": [{"question_polarity"')
    with pytest.raises(DataError, match=r"log\.json: Invalid JSON"):
        read([tmp_path])


def members() -> dict[str, bytes]:
    """The members of an archive of LOG, as inspect names them."""
    log = json.loads(gzip.decompress(LOG.read_bytes()))
    header = {key: value for key, value in log.items() if key not in ("samples", "reductions")}
    samples = {
        f"samples/{each['id']}_epoch_{each['epoch']}.json": json.dumps(each).encode()
        for each in log["samples"]
    }
    start = {"version": 2, "eval": log["eval"], "plan": log["plan"]}
    return {
        "_journal/start.json": json.dumps(start).encode(),
        **samples,
        "summaries.json": b"[]",
        "header.json": json.dumps(header).encode(),
    }


def write_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def test_an_archive_of_inspect_is_read_like_its_json(tmp_path: Path) -> None:
    wanted = read([LOG])["options"].sort("prompt", "item_id")
    assert wanted.height == 24
    assert read([ARCHIVE])["options"].sort("prompt", "item_id").equals(wanted)
    folder = tmp_path / "logs"
    folder.mkdir()
    shutil.copy(ARCHIVE, folder)
    assert read([folder])["options"].sort("prompt", "item_id").equals(wanted)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("without", ["header.json", "_journal/start.json"])
def test_archives_of_other_versions_and_unfinished_ones(
    method: int, without: str, tmp_path: Path
) -> None:
    files = members()
    del files[without]
    path = write_zip(tmp_path / "log.eval", files, method)
    wanted = read([LOG])["options"].sort("prompt", "item_id")
    assert read([path])["options"].sort("prompt", "item_id").equals(wanted)


def test_a_retried_sample_counts_once(tmp_path: Path) -> None:
    files = members()
    name = "samples/Age_00000_epoch_1.json"
    torn = json.loads(files[name]) | {"scores": None}
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, json.dumps(torn))
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr(name, files.pop(name))
    with zipfile.ZipFile(path, "a") as file:
        for other, data in files.items():
            file.writestr(other, data)
    assert read([path])["options"].height == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"header.json": None, "_journal/start.json": None}, "is inspect's log of another task"),
        ({"header.json": b"{}"}, r"log\.eval, header\.json: eval\.model: Field required"),
        ({"header.json": b"{"}, r"log\.eval, header\.json: Invalid JSON"),
        ({"samples/Age_00001_epoch_1.json": b"{}"}, r"Age_00001_epoch_1\.json: id: Field required"),
    ],
)
def test_a_wrong_archive_is_one_line(
    changes: dict[str, bytes | None], message: str, tmp_path: Path
) -> None:
    files = {name: data for name, data in (members() | changes).items() if data is not None}
    with pytest.raises(DataError, match=message):
        read([write_zip(tmp_path / "log.eval", files)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_read(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(ARCHIVE.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "log.eval"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    # Bytes that no member has, such as a date, may differ.
    with suppress(DataError):
        assert read([path])["options"].height <= 24


@pytest.mark.parametrize("zstandard", [False, True])
def test_an_archive_that_fills_the_memory_is_refused(
    zstandard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "log.eval", {"samples/1.json": b" " * 2**22})
    if zstandard:
        path.write_bytes(ARCHIVE.read_bytes())
    monkeypatch.setattr(memory_limits, "MOST_UNPACKED", 2**14)
    with pytest.raises(DataError, match="unpacks to more than"):
        read([path])


def test_a_member_larger_than_it_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", b" " * 2**22)
        file.writestr("samples/1.json", b"{}")
    size = (2**22).to_bytes(4, "little")
    path = tmp_path / "log.eval"
    path.write_bytes(whole.getvalue().replace(size, (2**10).to_bytes(4, "little")))
    monkeypatch.setattr(memory_limits, "MOST_UNPACKED", 2**16)
    with pytest.raises(DataError):
        read([path])


def test_questions_where_helm_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "scenarios" / "bbq" / "data"
    folder.mkdir(parents=True)
    (folder / "Age").write_text("\n".join(map(json.dumps, questions())))
    (tmp_path / "Age.jsonl").write_text((folder / "Age").read_text())
    wanted = question_items(QuestionProbe(source="bbq", data=str(tmp_path / "Age.jsonl")))
    for data in (folder, folder / "Age"):
        items = question_items(QuestionProbe(source="bbq", data=str(data)))
        assert items.equals(wanted)
    state = FOREIGN / "scenario_state.json.gz"
    assert read([state], items=wanted)["options"].height == 12


def test_rows_of_bbq_name_every_field_that_they_lack(tmp_path: Path) -> None:
    line = json.loads(bbq_file().splitlines()[0])
    row = {key: line[key] for key in ("ans0", "ans1", "ans2", "label")}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row | {"question_polarity": "neg", "prediction": "A"}))
    message = "example_id: Field required, and so are question_index, context_condition, category"
    with pytest.raises(DataError, match=message) as caught:
        read([path])
    assert "or a table of answers with the columns model, category" in str(caught.value)


def test_answers_as_json_lines_or_in_tabs_are_tables(tmp_path: Path) -> None:
    answers = read([LOG])["options"].drop("scores")
    answers.write_ndjson(tmp_path / "rows.jsonl")
    answers.write_csv(tmp_path / "rows.tsv", separator="\t")
    for name in ("rows.jsonl", "rows.tsv"):
        table = read([tmp_path / name])["options"].drop("scores")
        assert table.with_columns(pl.col("answer").fill_null("")).equals(answers)
