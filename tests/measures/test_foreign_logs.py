"""Logs that other harnesses wrote of `questions()` are read like our own.

inspect_ai 0.3.285, lm_eval 0.4.13 and crfm-helm 0.5.16, with stand-ins for models.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import raybias
from raybias.config import QuestionProbe
from raybias.errors import DataError
from raybias.measures.reading import read
from raybias.probes import question_items
from raybias.stats.checks import StatisticsWarning
from support.answer_data import questions

FOREIGN = Path(__file__).parents[1] / "support" / "foreign"
SAMPLES = FOREIGN / "samples_bbq.jsonl.gz"
LOG = FOREIGN / "inspect_bbq.json.gz"
PAIRS = FOREIGN / "samples_crows_pairs_english.jsonl.gz"
STATE = FOREIGN / "scenario_state.json.gz"


def text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def sample(**changes: Any) -> dict[str, Any]:
    """A sample that lm-eval wrote, changed."""
    return json.loads(text(SAMPLES).splitlines()[0]) | changes


def state(change: str, value: Any) -> dict[str, Any]:
    """A run that HELM wrote, the first answer changed."""
    content = json.loads(text(STATE))
    content["request_states"][0][change] = value
    return content


def write(folder: Path, name: str, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_samples_of_lm_eval(tmp_path: Path) -> None:
    folder = tmp_path / "org__tiny"
    folder.mkdir()
    shutil.copy(SAMPLES, folder)
    answers = read([folder])["options"]
    assert answers["model"].unique().to_list() == ["org__tiny"]
    logged = [json.loads(line) for line in text(SAMPLES).splitlines()]
    for row, line in zip(answers.iter_rows(named=True), logged, strict=True):
        said = [float(each[0]) for each in line["filtered_resps"]]
        # Two named options, then ten wordings of the unknown one, whose likeliest counts.
        assert row["scores"] == pytest.approx([*said[:2], max(said[2:])])
        assert (row["pred"] == row["label"]) == bool(line["acc"])
    # Results lie beside samples, and hold no answers.
    write(folder, "results.json", [{"results": {}, "higher_is_better": {}}])
    with pytest.warns(StatisticsWarning, match=r"without answers: results.json \(lm-eval's resu"):
        assert read([folder])["options"].equals(answers)


def test_answers_that_lm_eval_had_generated(tmp_path: Path) -> None:
    said = ["the grandson.", "Perhaps nobody"]
    lines = [sample(filtered_resps=[each]) for each in said]
    lines[1]["doc"]["example_id"] = 1
    answers = read([write(tmp_path / "m", "samples_bbq_generate.jsonl", lines)])["options"]
    assert answers.select("pred", "answer").rows() == [(1, "the grandson."), (None, said[1])]


def test_a_log_of_inspect() -> None:
    answers = read([LOG])["options"].sort("prompt", maintain_order=True)
    assert answers["model"].unique().to_list() == ["mockllm/model"]
    assert answers["pred"].to_list() == [0, 1, 2, None] * 6
    assert answers["label"].to_list()[:4] == [line["label"] for line in questions()[:4]]
    assert answers["prompt"].unique().sort().to_list() == ["epoch 1", "epoch 2"]
    log = json.loads(text(LOG))
    (own,) = log["results"]["scores"]
    table = raybias.measure([LOG]).filter(style="all", scope="templates", score="accuracy")
    weights = table["n"] / table["n"].sum()
    assert (table["value"] * weights).sum() == pytest.approx(own["metrics"]["accuracy"]["value"])


def test_a_run_of_helm_has_the_scores_that_helm_computes(tmp_path: Path) -> None:
    items = write(tmp_path, "Age.jsonl", questions())
    probe = QuestionProbe(source="bbq", data=str(items))
    answers = read([STATE], items=question_items(probe))["options"]
    assert answers["answer"].to_list() == ["A", "B", "C", "None"] * 3
    assert answers["pred"].to_list() == [0, 1, 2, None] * 3
    assert answers["model"].unique().to_list() == ["openai/gpt2"]
    own = json.loads((FOREIGN / "helm_scores.json").read_text())
    wanted = [own["bbq_metric_ambiguous_bias"], own["bbq_metric_unambiguous_bias"]]
    found = raybias.measure([STATE], items=items).filter(score="helm").sort("condition")
    assert found["value"].to_list() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (state("output_mapping", None), "instance .*: has no output_mapping"),
        (state("result", None), "instance .*: has no result; give scenario_state.json of a run"),
        (state("instance", {"input": {"text": "?"}, "references": []}), "not in the items"),
        (state("train_trial_index", "x"), "request_states.0.train_trial_index: Input should be"),
    ],
)
def test_a_wrong_run_is_one_line(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    items = write(tmp_path / "items", "Age.jsonl", questions())
    path = write(tmp_path, "scenario_state.json", [content])
    with pytest.raises(DataError, match=message):
        raybias.measure([path], items=items)


def test_a_run_of_helm_needs_the_questions() -> None:
    with pytest.raises(DataError, match="give BBQ's questions as --items"):
        raybias.measure([STATE])


def test_pairs_of_lm_eval(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    shutil.copy(PAIRS, folder)
    scores = read([folder])["pairs"]
    logged = [json.loads(line) for line in text(PAIRS).splitlines()]
    assert scores["preference"].to_list() == [line["pct_stereotype"] for line in logged]
    assert scores["bias_type"].to_list() == ["age"] * 3 + ["gender"] * 3
    assert scores.row(0, named=True)["model"] == "tiny"
    assert set(raybias.measure(folder)["kind"]) == {"pairs"}


PAIR: dict[str, Any] = json.loads(text(PAIRS).splitlines()[0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (sample(filtered_resps=[[]]), "filtered_resps has '\\[\\]', which is no log-likelihood"),
        (sample(filtered_resps=[["-1.0", "True"]]), "has 12 continuations and 1 responses"),
        (sample(arguments=[], filtered_resps=[]), "an option has no log-likelihood"),
        (sample(doc={"question": "?"}), "is lm-eval's samples of another task"),
        (sample(doc={"question_polarity": "neg"}), "example_id: Field required, and so are quest"),
        (PAIR | {"doc": PAIR["doc"] | {"bias_type": 3}}, "bias_type is 3, not its name"),
    ],
)
def test_a_wrong_sample_is_one_line(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", "samples.jsonl", [line])
    with pytest.raises(DataError, match=message):
        read([path])
