"""A study chosen for a model and a budget: what is chosen, what is said, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.testing as pl_testing
import pytest

import raybias
from raybias.config import Study, load_study
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.measures.prediction_rows import KIND
from raybias.planning import audit
from raybias.planning.audit import Question, choose, forecast, reached, said, seconds
from raybias.planning.pilot import shrunk, told_apart, ways_of
from raybias.schema import ESTIMATES
from raybias.storage import Store
from raybias.study_record import read_record
from support import prompting
from support.commands import exit_code, refused
from support.pages import Page


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(prompting.save_chat("opt", tmp_path_factory.mktemp("audited")))


def size(study: Study) -> float:
    """What a design costs, more or less."""
    (method,) = study.methods
    tuned = getattr(method, "max_steps", 0) or 0
    return method.n_runs * (min(study.limit or 4_000, 4_000) / 100 + tuned)


def test_designs_become_cheaper_and_the_first_that_fits_is_taken(causal: str, shared: Path) -> None:
    question = Question(causal, "race", None, shared / "data")
    designs = list(question.designs())
    kinds = [study.methods[0].kind for study in designs]
    assert kinds == ["lora", "soft_prompt"] * 4 + ["zero_shot"] * 6
    assert all(study.methods[0].n_runs == 5 for study in designs)
    read = [size(study) for study in designs[8:]]
    assert read == sorted(read, reverse=True)
    found = choose(question, budget=180.0, estimate=size)
    assert found.study.limit == 600
    assert [study.methods[0].kind for study, _ in found.dearer] == [*kinds[:8], "zero_shot"]
    with pytest.raises(PlanError, match="the smallest design may take"):
        choose(question, budget=0.1, estimate=size)
    (asked,) = {s.methods[0].kind for s in Question(causal, "age", "cot", Path("d")).designs()}
    assert asked == "cot"
    # Data is found by its files, whatever its folder is called.
    question = Question(causal, "gender", "zero_shot", shared / "data")
    assert question.folders["amazon"] == shared / "data/amazon_templates"
    text = said(choose(question, budget=1e9, estimate=size), 600.0)
    assert "zero_shot, read by answer, 5 runs, all sentences; 8 groups of gender" in text
    assert "other sentences like these" in text


def predictions(*ways: tuple[str, list[int | None], list[list[float]]]) -> pl.DataFrame:
    """Predictions of 12 sentences, four of each label, by some ways of asking."""
    return pl.concat(
        pl.DataFrame(
            {
                "method": [name] * 12,
                "item_id": [f"{n:02}" for n in range(12)],
                "label": [0, 1, 2] * 4,
                "pred": pl.Series(answers, dtype=pl.Int16),
                "scores": scores,
            }
        )
        for name, answers, scores in ways
    )


def test_the_pilot_decides_how_a_model_is_asked(causal: str, shared: Path) -> None:
    """One way is right once calibrated, one answers nothing that can be read."""
    right = [[-1.0 if n % 3 == label else -2.0 for label in range(3)] for n in range(12)]
    biased = [[row[0], row[1] + 3.0 - 6.0, row[2] + 3.0 - 3.0] for row in right]
    flat = [[-1.0, -1.1, -1.2]] * 12
    piloted = predictions(("zero_shot_chat", [0] * 12, biased), ("few_shot_raw", [None] * 12, flat))
    question = Question(causal, "age", None, shared / "data", ways_of(piloted))
    best, *_ = question.ways
    assert (best.options, best.read) == (
        {"kind": "zero_shot", "prompt_format": "chat"}, "calibrated",
    )  # fmt: skip
    assert best.accuracy == 1.0
    assert best.named == (4, 4, 4)
    unread = next(way for way in question.ways if way.unread)
    assert (unread.read, unread.accuracy, unread.unread) == ("answer", 0.0, 1.0)
    assert [way.options["kind"] for way in question.best_ways] == ["zero_shot", "few_shot"]
    # What reads labels well goes before a short tuning, and is read once: nothing is drawn.
    designs = list(question.designs())
    kinds = [study.methods[0].kind for study in designs]
    assert kinds == ["lora", "soft_prompt"] * 2 + ["zero_shot"] * 6
    method = designs[-1].methods[0]
    assert (method.prompt_format, method.read, method.n_runs) == ("chat", "calibrated", 1)
    unread_alone = ways_of(predictions(("few_shot_raw", [None] * 12, flat)))
    poor = replace(question, ways=unread_alone)
    kinds = [study.methods[0].kind for study in poor.designs()]
    assert kinds == ["lora", "soft_prompt"] * 4 + ["few_shot"] * 6


def test_ways_that_are_not_told_apart_are_chosen_by_a_fixed_preference() -> None:
    """The raw answer is right once more than the calibrated reading, which is preferred."""
    right = [[-1.0 if n % 3 == label else -2.0 for label in range(3)] for n in range(12)]
    once_wrong = [right[1], *right[1:]]
    answers: list[int | None] = [n % 3 for n in range(12)]
    ways = ways_of(predictions(("zero_shot_raw", answers, once_wrong)))
    assert [way.read for way in ways] == ["calibrated", "likelihood", "answer"]
    assert ways[-1].accuracy == 1.0 > ways[0].accuracy
    assert "of 12 right" in str(ways[0])


def test_what_is_expected_of_a_way_is_not_what_it_reached_by_chance() -> None:
    """Of twelve ways that are alike, the best is expected to be as right as all of them are."""
    random = np.random.default_rng(3)
    cursed, expected = [], []
    for _ in range(300):
        right_WN = random.random((12, 24)) < 0.6
        accuracy_W = right_WN.mean(axis=1)
        cursed.append(accuracy_W.max() - 0.6)
        expected.append(shrunk(right_WN)[accuracy_W.argmax()] - 0.6)
    assert np.mean(cursed) > 0.12
    assert abs(np.mean(expected)) < 0.04
    # Of ways that truly differ, the shrunken accuracies keep their order and most of their range.
    far_WN = random.random((12, 400)) < np.linspace(0.3, 0.9, 12)[:, None]
    accuracy_W = far_WN.mean(axis=1)
    np.testing.assert_array_equal(shrunk(far_WN).argsort(), accuracy_W.argsort())
    assert np.ptp(shrunk(far_WN)) > 0.9 * np.ptp(accuracy_W)


def test_ways_are_told_apart_by_mcnemars_test() -> None:
    one, other = np.arange(24) < 20, np.arange(24) < 14
    assert told_apart(one, other)
    assert not told_apart(one, np.arange(24) < 15)
    assert not told_apart(one, one)


def test_out_is_named_by_the_question_and_refuses_another(
    causal: str, shared: Path, tmp_path: Path
) -> None:
    age = Question(causal, "age", None, shared / "data")
    assert age.name == f"audit-{Path(causal).name}-age"
    assert Question("org/my model", "race", "lora", Path("data")).name == "audit-my-model-race-lora"
    study = next(age.designs())
    age.check(study, where="out")
    for model, attribute, method in (
        (causal, "race", None), (causal, "age", "few_shot"), ("other", "age", None),
    ):  # fmt: skip
        other = Question(model, attribute, method, Path("data"))
        with pytest.raises(OutputError, match=r"holds a study of age in .* by lora; give another"):
            other.check(study, where="out")


def test_the_end_sets_the_forecast_beside_what_was_reached(causal: str, shared: Path) -> None:
    question = Question(causal, "age", "zero_shot", shared / "data")
    study = [*question.designs()][2]
    expected = forecast(study)
    assert expected["group"].to_list() == ["adult", "old", "young"]
    scopes = pl.DataFrame(
        {
            "model": "tiny", "method": "zero_shot", "condition": "", "statistic": "gap",
            "group": ["adult", "adult", "old", "young"], "scope": "wording",
            "low": [-0.1, -0.3, -0.01, None], "high": [0.1, 0.3, 0.01, None],
        }
    ).with_columns(reason=pl.lit(None, pl.String))  # fmt: skip
    told = reached(study, scopes, None)
    assert f"adult                    +-{expected['wording'][0]:.2f}  +-0.30" in told
    assert "old                      +-" in told
    needed = (0.3 / expected["wording"][0]) ** 2 * 240
    assert f"some {math.ceil(needed):,} sentences instead of 240" in told
    over_runs = scopes.with_columns(scope=pl.lit("runs"))
    assert "no interval over sentences" in reached(study, over_runs, None)
    unable = scopes.with_columns(reason=pl.lit("99.0% of its answers are 'neutral'"))
    assert reached(study, unable, None).startswith("no gap is judged. A larger --budget")
    # Who errs often varies more; who hardly errs, as Regard's classifiers do.
    often, hardly = (forecast(study, accuracy)["sentences"] for accuracy in (0.55, 0.99))
    assert (often > expected["sentences"]).all()
    assert hardly.equals(expected["sentences"])


def test_an_encoder_is_tuned(tmp_path: Path) -> None:
    from transformers import BertConfig

    folder = tmp_path / "encoder"
    BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(folder)
    designs = list(Question(str(folder), "age", None, tmp_path).designs())
    assert {study.methods[0].kind for study in designs} == {"full"}
    assert all(study.training for study in designs)


def test_a_budget_is_a_time() -> None:
    assert [seconds(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]
    for text in ("", "10", "m", "-1m", "0m", "1e9m", "10 m", "1d"):
        with pytest.raises(ConfigError, match="is not a time; such as"):
            seconds(text)


def test_a_typo_is_one_line_and_nothing_is_written(
    causal: str, shared: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for option, message in (
        (("--probe", "rase"), "no attribute 'rase'; choose from age"),
        (("--method", "zero"), "--method 'zero' is none that an audit can choose"),
    ):
        assert exit_code("audit", causal, "--data", shared / "data", *option) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_answers_begin_alike_is_tuned(shared: Path, tmp_path: Path) -> None:
    """ "negative" and "neutral" have one first token where letters are all the tokens."""
    model = prompting.save("llama", tmp_path / "model")
    words = json.loads((model / "tokenizer.json").read_text())
    words["model"]["merges"] = []
    (model / "tokenizer.json").write_text(json.dumps(words))
    question = Question(str(model), "age", None, shared / "data")
    assert {study.methods[0].kind for study in question.designs()} == {"lora", "soft_prompt"}
    assert question.pilot(Store(tmp_path / "pilot")) is None
    assert exit_code("audit", model, "--write", tmp_path / "mine.yaml") == 0
    assert [method.kind for method in load_study(tmp_path / "mine.yaml").methods] == ["lora"]


def test_a_study_file_is_written_once_and_can_be_read(
    causal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    assert exit_code("audit", causal, "--probe", "age", "--write", file) == 0
    study = load_study(file)
    assert [method.kind for method in study.methods] == ["zero_shot", "lora"]
    assert study.probes[0].attributes == ("age",)
    said = refused(capsys, "audit", causal, "--write", file)
    assert "is there already; give another --write" in said


def test_an_audit_looks_first_and_resumes_its_study(
    causal: str, shared: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    out = tmp_path / "out"
    options: dict[str, Any] = {"data": shared / "data", "out": out, "address": "none"}
    first: dict[str, Any] = {"budget": "40s", "command": "raybias audit M --budget 40s"}
    results = raybias.audit(causal, probe="age", tell=told.append, **first, **options)
    assert told[0] == f"{causal}: looking at the model"
    assert "of 24 right" in told[2]
    assert told[-1].startswith("no gap is judged.")
    assert set(results.gaps.collect()["attribute"]) == {"age"}
    assert (out / "pilot" / "study.yaml").is_file()
    for page in ("report.html", "statement.html"):
        text = " ".join(Page((out / page).read_text()).text.split())
        assert "The way of asking was chosen among" in text
        assert "Text: {text}" in text
    made = [(out / name).read_bytes() for name in ("study.yaml", "results.json")]
    assert read_record(Store(out)).command == first["command"]
    with pytest.raises(OutputError, match="holds a study of age"):
        raybias.audit(causal, probe="race", **options)
    with pytest.raises(OutputError, match=r"study of age .*, --looks 1, --margin None; "):
        raybias.audit(causal, probe="age", margin=0.1, **options)
    second: dict[str, Any] = {"budget": "2h", "command": "raybias audit M --budget 2h"}
    again = raybias.audit(causal, probe="age", tell=told.append, **second, **options)
    assert any("resuming the audit" in each for each in told)
    # What made the results stays on record, not what shows them.
    assert [(out / name).read_bytes() for name in ("study.yaml", "results.json")] == made
    assert again.gaps.collect().equals(results.gaps.collect())


def test_looks_ask_what_none_before_has_asked_and_stop_at_an_answer(
    causal: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    options: dict[str, Any] = {"data": shared / "data", "out": tmp_path, "address": "none"}
    options |= {"method": "zero_shot", "looks": 2, "probe": "age", "tell": told.append}
    with pytest.raises(ConfigError, match="tuning costs the same at each look"):
        raybias.audit(causal, **options | {"method": "lora"})
    with monkeypatch.context() as patch:
        patch.setattr(audit, "answered", lambda estimates, scope: "a difference is shown")
        results = raybias.audit(causal, budget="100s", **options)
    assert told[-2] == f"{tmp_path}/look-1, 420 sentences: a difference is shown"
    assert not (tmp_path / "look-2").exists()
    assert results.study.statistics.level == 0.9707
    raybias.audit(causal, **options)
    # The tiny model answers at random.
    assert told[-2].startswith(f"{tmp_path}/look-2, 840 sentences: no gap is judged: it ")
    # OUT stands for its last look in every command, and holds no second audit.
    assert raybias.open(tmp_path).study.limit == 840
    assert raybias.write_report(tmp_path).out == f"{tmp_path}/look-2"
    both = (raybias.measure(place) for place in (tmp_path, tmp_path / "look-2"))
    pl_testing.assert_frame_equal(*both)
    assert exit_code("compare", tmp_path, tmp_path) == 0
    with pytest.raises(OutputError, match="by zero_shot, --looks 2"):
        raybias.audit(causal, **options | {"looks": 1})
    text = " ".join(Page((tmp_path / "look-2" / "report.html").read_text()).text.split())
    assert "One of at most 2 looks at growing samples" in text
    assert "find what is not there in 5% of audits" in text
    first, second = (
        raybias.open(tmp_path / name).predictions.collect().sort("run_id", "item_id")
        for name in ("look-1", "look-2")
    )
    same = second.join(first, on=("run_id", "item_id"), how="semi", maintain_order="left")
    assert same["pred"].equals(first["pred"])
    memory = [*(tmp_path / "answers").rglob("*.parquet")]
    # As many of each label, and 128 or more.
    calibration = 3 * 43
    assert sum(pl.read_parquet(file).height for file in memory) == 840 + calibration


def test_what_ends_an_audit_with_looks() -> None:
    place = {"kind": KIND, "model": "m", "statistic": "gap", "scope": "sentences", "condition": ""}
    rows = [
        {"significant": True, "survives": False, "reason": None},
        {"significant": False, "survives": False, "reason": "smaller than the margin of 0.1"},
        {"significant": True, "survives": True, "reason": None},
        {"significant": None, "survives": None, "reason": "it cannot do the task: ..."},
    ]
    unsure, small, shown, unable = (
        pl.DataFrame([place | row], pl.Schema(ESTIMATES)) for row in rows
    )
    for parts, ends in (
        ([unsure, small], None), ([unable], None), ([small, unable], "smaller than the margin"),
        ([unsure, shown], "a difference is shown"),
    ):  # fmt: skip
        said = audit.answered(pl.concat(parts), "widest")
        assert said is None if ends is None else ends in (said or "")
    assert audit.unanswered(pl.concat([unsure, unable]), "widest") == "no difference is shown"
    why = "no gap is judged: it cannot do the task: ..."
    assert audit.unanswered(unable, "widest") == why
    assert audit.unanswered(unable.clear(), "widest") == "no gap is judged: there is no gap"
