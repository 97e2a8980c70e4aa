"""The page, tables, model card and results.json of a study of questions, from OUT's files."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import raybias
from raybias import schema
from raybias.config import parse_study
from raybias.errors import DataError
from raybias.report.rendering import TextTable
from raybias.storage import Store
from raybias.study_record import begin, make_record
from support import question_data
from support.answer_data import option_answers


def asked(folder: Path, answers: pl.DataFrame, **study: object) -> Store:
    """An OUT of `study` with answers to options."""
    store = Store(folder)
    whole = parse_study({"name": "asked", "backbones": ["m"], **study})
    begin(store, make_record(whole, {}, command="raybias run asked.yaml"))
    table = answers.with_columns(model=pl.lit("m")).to_arrow().cast(schema.OPTION_ANSWERS)
    store.write_table("options/bbq/m/0.parquet", table)
    return store


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked") / "out"
    store = asked(
        folder,
        option_answers(400, 12, seed=1, unparsed=0.0),
        methods=[{"kind": "option_likelihood"}, {"kind": "decision_likelihood"}],
        questions=[{"source": "bbq", "data": "x"}, {"source": "discrim_eval", "data": "x"}],
    )
    people = ("age=20", "age=60")
    rows = [
        ("m", "discrim_eval", f"d{d}", f"d{d}{who}", who, "age=60", -1.0 + n * d / 9, -1.0, "plain")
        for d in range(4)
        for n, who in enumerate(people)
    ]
    decided = pl.DataFrame(rows, pl.Schema(schema.DECISION_ANSWERS), orient="row").to_arrow()
    store.write_table("decisions/discrim_eval/m/0.parquet", decided.cast(schema.DECISION_ANSWERS))
    # One question more than was answered.
    items = pl.DataFrame({"item_id": [str(n) for n in range(401)]})
    store.write_table("items/bbq.parquet", items.to_arrow())
    store.write_text("cards/bbq.yaml", question_data.CARD)
    raybias.write_report(folder)
    return folder


def test_the_page_the_card_and_results_json_say_the_same(out: Path, tmp_path: Path) -> None:
    page = (out / "report.html").read_text()
    assert "Answers to questions with options, x 100" in page
    assert "bbq, by its author&#39;s card" in page
    estimates = raybias.measure([out])
    assert estimates.equals(raybias.open(out).table("estimates").collect())
    content = json.loads((out / "results.json").read_text())
    assert content["schema_version"] == 3
    (row,) = estimates.filter(kind="options", condition="ambig", score="bbq").to_dicts()
    task = content["results"]["m.bbq.Age.ambig"]
    assert (task["bbq,none"], task["bbq_low,none"]) == (row["value"], row["low"])
    assert task["bbq_stderr,none"] == "N/A"
    assert "more_favourable:20,none" in content["results"]["m.discrim_eval.age"]
    card = (out / "tables/model_card.md").read_text()
    assert card.startswith("## Bias, Risks, and Limitations: asked")
    assert "### Decisions about people" in card
    for each in (page, card):
        assert "m lacks 1 answer to bbq" in each
    first, *_ = raybias.export(out, "latex", tmp_path)
    assert "\\begin{tabular}" in (tmp_path / first).read_text()
    hostile = TextTable("100% \\input{x}", ("a_b", "$"), (("50%", "\\end{tabular}"),)).latex()
    assert hostile.startswith("% 100% ")
    assert "a\\_b" in hostile
    assert "\\textbackslash{}end" in hostile


def test_a_study_without_answers_is_one_line(out: Path, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text((out / "study.yaml").read_text())
    with pytest.raises(DataError, match="holds no answers to questions; finish the study"):
        raybias.write_report(tmp_path)


def test_options_of_uneven_length_are_a_caution(tmp_path: Path) -> None:
    length = ["He", "She", "It cannot be told from this"]
    answers = option_answers(400, 12, seed=1, unparsed=0.0).with_columns(
        method=pl.lit("option_likelihood"),
        pred=pl.lit(0, pl.Int16),
        scores=pl.lit([-3.0, -6.0, -9.0], pl.List(pl.Float32)),
    )
    methods, questions = [{"kind": "option_likelihood"}], [{"source": "bbq", "data": "x"}]
    store = asked(tmp_path, answers, methods=methods, questions=questions)
    items = answers.select("item_id", options=pl.lit(length, pl.List(pl.String)))
    store.write_table("items/bbq.parquet", items.to_arrow())
    raybias.write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "the options hold 5.2% of the probability of what may follow" in page
    assert "in 100% of the questions one option is more than 1.5 times as long" in page
    assert "by likelihood per character (normalise: characters) 100% of the answers would" in page
    assert "No verdict for m: it cannot do the task: 100.0% of its answers stand in place A" in page
