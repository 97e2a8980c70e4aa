"""Whatever a file holds: one line or a result, never a traceback, and never part of an OUT.

`pytest --hypothesis-profile long --hypothesis-show-statistics` tries over ten thousand files and
says how many of each class were taken and refused.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from raybias.config import parse_study
from support import hostile
from support.answer_data import bbq_file, option_answers, stereoset, triple_file
from support.tried import (
    ITEMS,
    PAIRS,
    PREDICTIONS,
    STUDY,
    begun_out,
    checked,
    model_folder,
    planned,
    small_out,
    small_pair_out,
    taken,
    write_study,
)
from support.tried_files import (
    ANSWERS,
    CARDS,
    SCORES,
    SHEET,
    TSV,
    annotated,
    card_cases,
    checked_card,
    contradictory,
    contradictory_scores,
    damaged_out,
    damaged_pair_out,
    log_cases,
    measured_file,
    model,
    pair_file,
    prediction_file,
    probe_file,
    question_cases,
    read_log,
    read_questions,
    run_again,
    study_file,
    training_file,
    triple_files,
)

CASES = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
BBQ = bbq_file()
OPTIONS = option_answers(12, 3, 0)
MINE = PREDICTIONS.select("label", "pred", "group", "template_id", "run_id").with_columns(score=0.5)
TRIPLES = json.dumps(stereoset(3, 2)).encode()
TRIPLE_SCORES = triple_file(stereoset(3, 2), 0)
ANNOTATORS = st.sampled_from(("anna", *SHEET.columns, "share", "same", "n" * 200, "=1", "a.b", " "))


def prediction_files() -> st.SearchStrategy[tuple[str, bytes]]:
    return st.one_of(
        hostile.damaged(TSV).map(lambda data: ("regard_m.tsv", data)),
        hostile.damaged(TSV).map(lambda data: ("m.tsv.gz", gzip.compress(data))),
        hostile.damaged(gzip.compress(TSV)).map(lambda data: ("m.tsv.gz", data)),
        hostile.table_files(PREDICTIONS),
    )


class Class(NamedTuple):
    """A class of input: what is drawn, what is done with it, and its share of all cases."""

    cases: st.SearchStrategy[Any]
    check: Callable[[Any], bool]
    share: int = 4


FULL_STUDY = parse_study(STUDY).model_dump(mode="json")
CLASSES = {
    "study files": Class(
        hostile.changed(STUDY).map(hostile.dumped)
        | hostile.damaged(yaml.safe_dump(STUDY, sort_keys=False).encode("utf-8")),
        study_file,
    ),
    "YAML": Class(hostile.yaml_files(STUDY), study_file),
    "numbers": Class(hostile.numbers_in(FULL_STUDY).map(hostile.dumped), study_file),
    "names": Class(hostile.names_in(STUDY).map(hostile.dumped), study_file),
    "model folders": Class(st.deferred(lambda: hostile.model_files(model_folder())), model),
    "training files": Class(hostile.table_files(ITEMS.select("text", "label")), training_file),
    "probe files": Class(hostile.table_files(ITEMS), probe_file),
    "pair files": Class(hostile.table_files(PAIRS), pair_file),
    "prediction files": Class(prediction_files(), prediction_file),
    "score files": Class(hostile.table_files(SCORES) | hostile.table_files(ANSWERS), measured_file),
    "tables of others": Class(hostile.table_files(MINE) | prediction_files(), measured_file, 1),
    "answers to options": Class(
        hostile.table_files(OPTIONS)
        | hostile.damaged(BBQ).map(lambda data: ("x.jsonl", data))
        | hostile.damaged(gzip.compress(BBQ)).map(lambda data: ("x.jsonl.gz", data)),
        measured_file,
    ),
    "triples": Class(
        st.tuples(
            st.just(TRIPLE_SCORES) | hostile.damaged(TRIPLE_SCORES),
            st.just(TRIPLES) | hostile.damaged(TRIPLES),
        ),
        triple_files,
    ),
    "cards": Class(st.sampled_from(sorted(CARDS)).flatmap(card_cases), checked_card),
    "logs of others": Class(st.deferred(log_cases), read_log, 2),
    "question files": Class(st.deferred(question_cases), read_questions, 2),
    "annotations": Class(st.tuples(ANNOTATORS, hostile.table_files(SHEET)), annotated),
    "damaged OUT": Class(st.deferred(lambda: hostile.outs(small_out())), damaged_out, 1),
    "damaged OUT of pairs": Class(
        st.deferred(lambda: hostile.outs(small_pair_out())), damaged_pair_out, 1
    ),
    "run again": Class(st.deferred(lambda: hostile.outs(begun_out())), run_again),
    "contradictions": Class(st.sampled_from(sorted(hostile.CONTRADICTIONS)), contradictory, 1),
    "contradictory scores": Class(
        st.sampled_from([row for row, each in enumerate(SCORES["preference"]) if each is not None]),
        lambda row: contradictory_scores(row) and pytest.fail("was taken"),
        1,
    ),
}


@pytest.mark.long
def test_what_is_whole_is_taken(tmp_path: Path) -> None:
    """The fuzz begins at input that passes every check."""
    study = write_study(tmp_path, yaml.safe_dump(STUDY).encode())
    assert checked(study)
    assert planned(study)
    for command, name, data in (
        ("measure", "x.parquet", hostile.parquet_bytes(PREDICTIONS)),
        ("measure", "x.tsv", TSV),
        ("measure", "x.csv", hostile.csv_bytes(MINE)),
        ("measure", "y.parquet", hostile.parquet_bytes(SCORES)),
        ("measure", "y.csv", hostile.csv_bytes(ANSWERS)),
        ("measure", "z.jsonl", BBQ),
        ("measure", "z.parquet", hostile.parquet_bytes(OPTIONS)),
    ):
        (tmp_path / name).write_bytes(data)
        assert taken(command, str(tmp_path / name), "--out", str(tmp_path / f"{name}.out"))
    assert triple_files((TRIPLE_SCORES, TRIPLES))
    for kind, (fields, rows) in CARDS.items():
        card = {"kind": kind, "file": "x.csv", "about": "what", "harm": "higher", **fields}
        assert checked_card((hostile.dumped(card), "x.csv", hostile.csv_bytes(rows))), kind
    assert model(dict(model_folder()))
    assert damaged_out(dict(small_out()))
    assert damaged_pair_out(dict(small_pair_out()))
    assert run_again(dict(begun_out()))


@pytest.mark.long
@pytest.mark.parametrize("kind", CLASSES)
def test_a_file_gives_a_result_or_one_line(kind: str) -> None:
    cases, check, share = CLASSES[kind]

    @settings(CASES, max_examples=max(2, settings.default.max_examples * share // 16))
    @given(cases)
    def tried(case: Any) -> None:
        event("taken" if check(case) else "refused")

    tried()
