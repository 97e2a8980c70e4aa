"""Questions, triples and decisions: a whole study, and the same answers however spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import raybias
from raybias.errors import BadInput, ConfigError, ModelError
from support import question_data, studies
from support.studies import NO_RAY, run

SCORED = ["attribute", "condition", "score", "value", "low", "high", "n", "units"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.questions(tmp_path_factory.mktemp("questions"))


@pytest.mark.long
def test_answers_do_not_depend_on_how_they_are_spread(study: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    printed = run(study, one, *NO_RAY)
    spread = ("--set", "resources.rows_per_shard=5", "--set", "resources.tokens_per_batch=128")
    run(study, other, *spread, *NO_RAY)
    for folder, columns in (
        ("options", ("scores",)),
        ("triples", ("stereotype", "anti_stereotype", "unrelated")),
        ("decisions", ("favourable", "unfavourable")),
        ("sentences", ("log_prob",)),
    ):
        ours, theirs = question_data.answers(one, folder), question_data.answers(other, folder)
        assert ours.drop(columns).equals(theirs.drop(columns))
        for name in columns:
            assert ours[name].is_null().equals(theirs[name].is_null())
            pairs = zip(ours[name].drop_nulls(), theirs[name].drop_nulls(), strict=True)
            for mine, another in pairs:
                np.testing.assert_allclose(mine, another, rtol=1e-5)
    assert question_data.answers(one, "options").height == (24 + 16) * (2 + 1)
    assert question_data.answers(one, "triples").height == 8
    assert question_data.answers(one, "decisions").height == 40
    assert question_data.answers(one, "sentences").height == 72

    # What the commands say of OUT's files is what the report says.
    table = raybias.open(one).table("estimates").collect()
    assert raybias.measure(one).equals(table)
    assert set(table["kind"]) == {*question_data.FOLDERS}
    assert "Decisions about people" in printed
    page = (one / "report.html").read_text()
    assert "by its author&#39;s card" in page
    assert "old people, called slow where nothing says so; higher is worse" in page
    table = table.filter(kind="options")
    assert set(table["method"]) == {"option_likelihood", "option_answer"}
    assert set(table["style"]) == {"listed, order 1", "listed, order 2", "all", "letter"}
    assert set(table["scope"]) == {"templates", "templates, prompts"}

    # As lm-eval's samples, they are read again with the same scores.
    written = raybias.samples(one, tmp_path / "samples")
    name = "tiny/samples_bbq_option_likelihood_listed_order_1.jsonl"
    assert name in written
    again = raybias.measure([tmp_path / "samples" / name])
    ours = table.filter(style="listed, order 1", probe="bbq")
    assert again.select(SCORED).equals(ours.select(SCORED))
    (letters,) = (each for each in written if "bbq_option_answer" in each)
    again = raybias.measure([tmp_path / "samples" / letters])
    assert again["n"].sum() > 0


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("methods.0.read=word", ConfigError, "methods.0.read: Input should be 'text' or 'letter'"),
        ("methods.0.prompts=[{name: a, template: '{text}'}]", ConfigError, "has no {question}"),
        ("methods.0.prompts=[{name: a, template: '{question}'}]", ConfigError,
         "orders: 2 needs {options} in the prompt 'a'"),
        ("methods.3.prompts=[{name: a, template: '{text} {who}'}]", ConfigError,
         "has {who}, which stands for nothing"),
        ("questions=[{source: bbq, data: Age.jsonl}]", ConfigError,
         "'triple_likelihood' has nothing to read"),
        ("questions.0.data=nowhere", BadInput, "nowhere"),
        ("questions.1.source=triples", BadInput, "is of kind options; read it with source options"),
        ("methods.1={kind: decision_likelihood, name: again}", ConfigError,
         "'again' and 'decision_likelihood' both fill OUT/decisions"),
        ("methods.1.prompts=[{name: a, template: '{question}'}]", ConfigError,
         "method option_answer needs {options} in the prompt 'a'"),
        ("questions=[]", ConfigError, "has nothing to read; give `questions`"),
        ("methods.0.prompts=[{name: a, template: '" + "x " * 600 + "{question} {options}'}]",
         ModelError, "texts are longer than"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(
    study: Path, tmp_path: Path, change: str, kind: type[BadInput], message: str
) -> None:
    with pytest.raises(kind) as refused:
        run(study, tmp_path / "out", "--set", change)
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()
