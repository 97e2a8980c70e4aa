"""Whole studies of each kind of method, in this process: what they leave, however it is spread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from peft import PeftModel
from safetensors.numpy import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

import raybias
from raybias.config import parse_study
from raybias.errors import BadInput, ConfigError, ModelError
from support import question_data, studies
from support.studies import NO_RAY, STYLES, run

PROMPTED = ("zero_shot", "few_shot", "cot")
SCORED = ["attribute", "condition", "score", "value", "low", "high", "n", "units"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.questions(tmp_path_factory.mktemp("questions"))


def test_every_method_leaves_its_runs_and_answers_and_what_is_tuned_opens_elsewhere(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    run(studies.save(tmp_path), out, *NO_RAY)
    runs = pl.read_parquet(out / "runs.parquet")
    assert dict(runs.group_by("method").len().iter_rows()) == {
        "zero_shot": 2, "few_shot": 2, "cot": 1, "soft_prompt": 2, "lora": 2, "full": 2,
    }  # fmt: skip
    found = pl.read_parquet(out / "predictions/**/*.parquet")
    assert found.group_by("run_id").len()["len"].unique().to_list() == [30]
    said = found.filter(pl.col("method").is_in(PROMPTED))
    assert said["answer"].null_count() == 0
    assert said.filter(method="few_shot")["dataset"].unique().to_list() == ["sentences"]
    assert said.filter(method="zero_shot")["dataset"].unique().to_list() == ["none"]
    recipe = json.loads((out / "prompts/tiny.sentences.few_shot.s1.json").read_text())
    assert len(recipe["shots"]) == 9
    assert recipe["sampling"]["top_k"] == 20
    assert recipe["prompt"].endswith("Answer:")
    assert "likelihood" in (out / "tables/estimates.csv").read_text()

    tuned = runs.filter(pl.col("adapter").is_not_null())
    folders = {row["method"]: out / row["adapter"] for row in tuned.iter_rows(named=True)}
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tiny", num_labels=3)
    assert PeftModel.from_pretrained(base, folders["lora"])
    assert AutoModelForSequenceClassification.from_pretrained(folders["full"]).num_labels == 3


def test_a_method_takes_the_training_sets_that_it_names(tmp_path: Path) -> None:
    study = studies.save(tmp_path, "soft_prompt", "few_shot")
    content = yaml.safe_load(study.read_text())
    (first,) = content["training"]
    content["training"] = [{**first, "name": name} for name in ("one", "two")]
    asked, tuned = content["methods"]
    content["methods"] = [{**tuned, "training": "two"}, asked]
    study.write_text(yaml.safe_dump(content))
    run(study, tmp_path / "out", *NO_RAY)
    runs = pl.read_parquet(tmp_path / "out/runs.parquet").select("method", "dataset")
    assert set(runs.iter_rows()) == {
        ("soft_prompt", "two"), ("few_shot", "one"), ("few_shot", "two"),
    }  # fmt: skip
    read = pl.read_parquet(tmp_path / "out/predictions/**/*.parquet").select("method", "dataset")
    assert set(read.iter_rows()) == set(runs.iter_rows())
    for sets, line in {
        "three": r"method 'soft_prompt' names the training set 'three'; there are one, two",
        "one": r"no method takes the training set 'two'; name it in the `training` of one",
    }.items():
        content["methods"] = [{**each, "training": sets} for each in (tuned, asked)]
        with pytest.raises(ConfigError, match=line):
            parse_study(content, folder=tmp_path)
    content["methods"] = [tuned, {"kind": "zero_shot", "training": "one"}]
    with pytest.raises(ConfigError, match=r"method 'zero_shot' takes nothing from a training set"):
        parse_study(content, folder=tmp_path)


def test_a_sweep_over_prompt_lengths_is_one_pack_and_what_it_chose_is_read(
    tmp_path: Path,
) -> None:
    study = studies.save(tmp_path, "soft_prompt")
    content = yaml.safe_load(study.read_text())
    content["methods"][0] |= {"prompt_lengths": [2, 6], "seeds": [1, 2], "keep": 2}
    study.write_text(yaml.safe_dump(content))
    run(study, tmp_path / "out", *NO_RAY)
    runs = pl.read_parquet(tmp_path / "out/runs.parquet")
    assert set(runs["prompt_length"]) == {2, 6}
    width = AutoConfig.from_pretrained(tmp_path / "tiny").hidden_size
    assert runs["tuned_parameters"].to_list() == [n * width for n in runs["prompt_length"]]
    kept = runs.filter("selected")
    (length,) = set(kept["prompt_length"])
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    opened = PeftModel.from_pretrained(base, tmp_path / "out" / kept["adapter"][0])
    assert opened.peft_config["default"].num_virtual_tokens == length
    read = pl.read_parquet(tmp_path / "out/predictions/**/*.parquet")
    assert set(read["run_id"]) == set(kept["run_id"])
    share = length * width / base.num_parameters()
    page = (tmp_path / "out/report.html").read_text()
    assert f"{length * width:,} ({share:.2g} of the model" in page


def test_a_sweep_over_ranks_and_targets_is_one_pack_and_what_it_chose_is_read(
    tmp_path: Path,
) -> None:
    study = studies.save(tmp_path, "lora")
    content = yaml.safe_load(study.read_text())
    content["methods"][0] |= {"ranks": [1, 4], "targets": ["all_linear", ["q_proj", "v_proj"]]}
    study.write_text(yaml.safe_dump(content))
    run(study, tmp_path / "out", *NO_RAY)
    runs = pl.read_parquet(tmp_path / "out/runs.parquet")
    sizes = set(runs.select("adapter_rank", "target").iter_rows())
    assert sizes == set(product((1, 4), ("all_linear", "q_proj-v_proj")))
    kept = runs.filter("selected")
    assert set(kept["stage"]) == {"final"}
    ((rank, target),) = set(kept.select("adapter_rank", "target").iter_rows())
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tiny", num_labels=3)
    opened = PeftModel.from_pretrained(base, tmp_path / "out" / kept["adapter"][0])
    config = opened.peft_config["default"]
    assert config.r == rank
    assert (len(config.target_modules) == 4) == (target != "all_linear")
    read = pl.read_parquet(tmp_path / "out/predictions/**/*.parquet")
    assert set(read["run_id"]) == set(kept["run_id"])


def spread(
    study: Path, folder: Path, columns: Mapping[str, Sequence[str]], *options: str
) -> tuple[Path, str]:
    """Run a study twice, with other shards and passes; one OUT, and what was printed.

    Parameters
    ----------
    columns: floats that may differ a little, by folder of OUT; all else is the same.
    """
    one, other = folder / "one", folder / "other"
    printed = run(study, one, *NO_RAY)
    run(study, other, *options, *NO_RAY)
    for name, floats in columns.items():
        ours, theirs = (question_data.answers(out, name) for out in (one, other))
        assert ours.drop(floats).equals(theirs.drop(floats))
        for column in floats:
            assert ours[column].is_null().equals(theirs[column].is_null())
            both = zip(ours[column].drop_nulls(), theirs[column].drop_nulls(), strict=True)
            for mine, another in both:
                np.testing.assert_allclose(mine, another, rtol=1e-5)
    assert f"report: {one}/report.html" in printed
    return one, printed


@pytest.mark.long
def test_scores_of_pairs_do_not_depend_on_how_they_are_spread(pairs: Path, tmp_path: Path) -> None:
    one, _ = spread(
        pairs, tmp_path, {"pair_scores": ("score_more", "score_less"), "coreference": ()},
        *("--set", "resources.rows_per_shard=7", "--set", "resources.tokens_per_batch=64"),
    )  # fmt: skip
    assert question_data.answers(one, "pair_scores").height == 24 * len(STYLES) * 2
    # WinoBias has no punctuation style.
    assert question_data.answers(one, "coreference").height == 12 * 3 * 6
    effects = pl.read_parquet(one / "tables/estimates.parquet").filter(statistic="difference")
    assert set(effects["style"]) == set(STYLES) - {"original"}
    record = yaml.safe_load((one / "study.yaml").read_text())
    held = load_file(pairs.parent / "tiny/model.safetensors")
    assert record["parameters"] == {"tiny": sum(tensor.size for tensor in held.values())}
    assert "effects of styles over all pairs" in (one / "report.html").read_text()


@pytest.mark.long
def test_answers_to_questions_do_not_depend_on_how_they_are_spread(
    questions: Path, tmp_path: Path
) -> None:
    columns = {
        "options": ("scores",),
        "triples": ("stereotype", "anti_stereotype", "unrelated"),
        "decisions": ("favourable", "unfavourable"),
        "sentences": ("log_prob",),
    }
    one, printed = spread(
        questions, tmp_path, columns,
        *("--set", "resources.rows_per_shard=5", "--set", "resources.tokens_per_batch=128"),
    )  # fmt: skip
    heights = [question_data.answers(one, folder).height for folder in columns]
    assert heights == [(24 + 16) * (2 + 1), 8, 40, 72]

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
    written = raybias.export(one, "lm-eval", tmp_path / "samples")
    name = "tiny/samples_bbq_option_likelihood_listed_order_1.jsonl"
    assert name in written
    again = raybias.measure([tmp_path / "samples" / name])
    ours = table.filter(style="listed, order 1", probe="bbq")
    assert again.select(SCORED).equals(ours.select(SCORED))
    (letters,) = (each for each in written if "bbq_option_answer" in each)
    assert raybias.measure([tmp_path / "samples" / letters])["n"].sum() > 0


@pytest.mark.parametrize(
    ("study", "change", "kind", "message"),
    [
        ("pairs", "methods.1.answer_tokens=480", ModelError, "texts are longer than"),
        ("pairs", "pairs.0.kinds=[colour]", BadInput, "colour"),
        ("pairs", "pairs=[{source: pairs, data: pairs.csv}]", ConfigError, "source winobias"),
        ("questions", "methods.0.prompts=[{name: a, template: '{text}'}]", ConfigError,
         "has no {question}"),
        ("questions", "methods.0.prompts=[{name: a, template: '{question}'}]", ConfigError,
         "orders: 2 needs {options} in the prompt 'a'"),
        ("questions", "methods.3.prompts=[{name: a, template: '{text} {who}'}]", ConfigError,
         "has {who}, which stands for nothing"),
        ("questions", "questions.1.source=triples", BadInput,
         "is of kind options; read it with source options"),
        ("questions", "methods.1={kind: decision_likelihood, name: again}", ConfigError,
         "'again' and 'decision_likelihood' both fill OUT/decisions"),
        ("questions", "methods.1.prompts=[{name: a, template: '{question}'}]", ConfigError,
         "method option_answer needs {options} in the prompt 'a'"),
        ("questions", "questions=[]", ConfigError, "has nothing to read; give `questions`"),
        ("questions", "methods.0.prompts=[{name: a, template: '" + "x " * 600
         + "{question} {options}'}]", ModelError, "texts are longer than"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(
    study: str, change: str, kind: type[BadInput], message: str,
    tmp_path: Path, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    with pytest.raises(kind) as refused:
        run(request.getfixturevalue(study), tmp_path / "out", "--set", change)
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()
