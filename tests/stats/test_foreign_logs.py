"""Logs of other harnesses are read like answers of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import raybias
from raybias.errors import DataError
from raybias.stats.options import read_option_answers
from raybias.stats.pairs import read_score_files
from support.answer_data import bbq_line

UNKNOWNS = ("Can't be determined", "Not known", "Unknown")


def sample(number: int, **changes: Any) -> dict[str, Any]:
    """What lm-eval logs of a question of BBQ: three wordings of the unknown option."""
    texts = ["The grandfather", "The grandson", *UNKNOWNS]
    scores = [-4.0, -3.0 - number % 2, -5.0, -3.5, -9.0]
    doc = {key: value for key, value in bbq_line(number).items() if key != "m_pred"}
    return {
        "doc_id": number,
        "doc": doc,
        "arguments": {
            f"gen_args_{n}": {"arg_0": "Q:", "arg_1": f" {text}"} for n, text in enumerate(texts)
        },
        "filtered_resps": [[str(score), "False"] for score in scores],
        **changes,
    }


def pair(number: int, **changes: Any) -> dict[str, Any]:
    """What lm-eval logs of a pair of CrowS-Pairs."""
    sides = [f"They are slow, {number}.", f"We are slow, {number}."]
    doc = {
        "id": number,
        "sent_more": sides[0],
        "sent_less": sides[1],
        "bias_type": "age",
        "stereo_antistereo": ("stereo", "antistereo")[number % 2],
    }
    return {
        "doc_id": number,
        "doc": {**doc, **changes},
        "arguments": [["", side] for side in sides],
        "filtered_resps": [[-1.0 - number, False], [-2.0, False]],
    }


def write(folder: Path, name: str, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_samples_of_lm_eval(tmp_path: Path) -> None:
    path = write(tmp_path / "org__tiny", "samples_bbq.jsonl", [sample(n) for n in range(12)])
    answers = read_option_answers([path])
    assert answers["model"].unique().to_list() == ["org__tiny"]
    # The likeliest wording of unknown is -3.5.
    assert answers["scores"].to_list()[:2] == [[-4.0, -3.0, -3.5], [-4.0, -4.0, -3.5]]
    assert answers["pred"].to_list()[:4] == [1, 2, 1, 2]
    # Results lie beside samples, and hold no answers.
    write(path.parent, "results.json", [{"results": {}, "higher_is_better": {}}])
    assert read_option_answers([path.parent]).equals(answers)
    found = raybias.options([path]).filter(score="accuracy")
    assert found["n"].to_list() == [6, 6]


def test_a_log_of_inspect(tmp_path: Path) -> None:
    samples = []
    for number in range(4):
        line = bbq_line(number)
        texts = [line.pop(f"ans{n}") for n in range(3)]
        letter = "ABC"[line.pop("label")]
        samples.append(
            {"id": number, "choices": texts, "target": letter, "metadata": line,
             "scores": {"choice": {"value": "C", "answer": ("A", "B", "C", "")[number]}}}
        )  # fmt: skip
    log = {"eval": {"model": "openai/x", "task": "bbq"}, "samples": samples}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    answers = read_option_answers([path])
    assert answers["pred"].to_list() == [0, 1, 2, None]
    assert answers["label"].to_list() == [2, 0, 2, 1]
    assert answers["model"][0] == "openai/x"


def test_pairs_of_lm_eval(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny", "samples_crows.jsonl", [pair(n) for n in range(4)])
    scores = read_score_files([path]).pair_scores
    assert scores is not None
    assert scores["preference"].to_list() == [1, None, 0, 0]
    assert scores.row(0, named=True)["model"] == "tiny"
    assert "bias_scores" in raybias.pairs([path])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (sample(0, filtered_resps=["text"]), "filtered_resps are no log-likelihoods"),
        (sample(0, filtered_resps=[["-1.0", "True"]]), "has 5 continuations and 1 responses"),
        (sample(0, arguments=[], filtered_resps=[]), "an option has no log-likelihood"),
        (sample(0, doc={"question": "?"}), "example_id: Field required"),
    ],
)
def test_a_wrong_sample_is_one_line(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", "samples.jsonl", [line])
    with pytest.raises(DataError, match=message):
        read_option_answers([path])


def test_a_pair_without_names_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m", "samples.jsonl", [pair(0, bias_type=3)])
    with pytest.raises(DataError, match="bias_type is 3, not its name"):
        read_score_files([path])
