"""Marked, prompted and long-tuned studies: their tables and their page."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from raybias import schema
from raybias.measures.prediction_rows import gap_rows
from raybias.report import evidence
from raybias.report.files import write_tables
from raybias.storage import Store
from support.commands import exit_code
from support.pages import page_of
from support.report_outs import marked_study, write_marked


@pytest.mark.long
def test_tables_of_marked_and_prompted_runs(tmp_path: Path) -> None:
    """All their numbers are golden values."""
    tables = write_tables(write_marked(tmp_path, marked_study()), marked_study())
    runs = tables["cells"].group_by("method").agg(pl.col("run_id").n_unique())
    assert dict(runs.iter_rows()) == {
        "full": 5, "zero_shot": 5, "nine": 5, "nine+likelihood": 5, "zero_shot+likelihood": 1,
    }  # fmt: skip
    gaps = gap_rows(tables["estimates"], "widest")
    assert {*gaps["method"]} == {*runs["method"]}
    assert not gaps["group"].is_in(schema.EXTRA_GROUPS).any()
    assert sum("count as one run" in note for note in tables["notes"]["note"]) == 2
    marks = tables["markedness"].filter(score="negative_fpr")
    effects = marks.filter(method="full", condition="marking_effect")
    white = effects.filter(group="white")["value"]
    assert white.abs().max() < 0.1 < effects.filter(group="asian")["value"].min()
    # White reads as if no group were named; the others as any marked word does.
    of_white = pl.col("group") == "white"
    found = evidence.readings(marks).filter(pl.col("method").is_in(["full", "nine", "zero_shot"]))
    assert found.filter(of_white)["reading"].to_list() == [evidence.UNNAMED] * 3
    as_marked = [evidence.MARKING, evidence.AMONG, evidence.NOTHING]
    assert found.filter(~of_white)["reading"].is_in(as_marked).mean() > 0.9


@pytest.mark.long
def test_unreadable_answers_come_first_and_have_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_probe = marked_study(probes=[{"source": "planted", "name": "p1"}])
    write_marked(tmp_path, one_probe, silent=("zero_shot",))
    assert exit_code("report", tmp_path) == 0
    text = page_of(Store(tmp_path)).text
    sentence = r"No verdict for m0, zero_shot: (\d\d\.\d%) of its answers name no label word"
    first, said = (
        re.search(sentence, text),
        re.search(r"Significant if only seeds are redrawn: (\d+|none) of \d+ gap", text),
    )
    assert first
    assert said
    # Likelihoods beside a method are no classifiers of their own.
    assert "Of m0, 2 classifiers of sentiment were made, each 5 times, and asked about" in text
    assert "1 more classifier has no verdict" in text
    assert first.end() < said.start()
    assert f"{first[1]} of answers; such an answer counts as the label with the highest" in text
    assert "No gap of it is judged. Use a template that it answers with these words" in text
    assert re.search(sentence, " ".join(capsys.readouterr().out.split()))
    gaps = gap_rows(pl.read_parquet(tmp_path / "tables" / "estimates.parquet"), "widest")
    judged = gaps.group_by("method").agg(pl.col("survives").is_not_null().any())
    assert dict(judged.iter_rows()) == {
        "full": True, "zero_shot": False, "zero_shot+likelihood": True, "nine": True,
        "nine+likelihood": True,
    }  # fmt: skip
    marks = pl.read_parquet(tmp_path / "tables" / "markedness.parquet")
    read = evidence.readings(marks).filter(method="zero_shot")["reading"].unique().to_list()
    assert read == [evidence.UNABLE]
    for said in ("Is this bias, or the template?", "Terms farthest from the mean", "means of 25",
                 "best by test accuracy", "Answers that hold no label", "top_k 50, top_p 1",
                 "3 demonstrations per label, order: shuffled"):  # fmt: skip
        assert said in text
