"""A study chosen for a model and a budget: what is chosen, what is said, and what is refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import raybias
from raybias.cli import main
from raybias.config import Study, load_study
from raybias.errors import ConfigError, PlanError
from raybias.planning.audit import Question, choose, said, seconds
from raybias.runtime.inventory import read_inventory
from support import prompting, stories
from support.tiny import save_model


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(prompting.save_chat("opt", tmp_path_factory.mktemp("audited")))


def size(study: Study) -> float:
    """What a design costs, more or less."""
    (method,) = study.methods
    tuned = getattr(method, "max_steps", 0) or 0
    return method.n_runs * (min(study.limit or 4_000, 4_000) / 100 + tuned)


def test_designs_become_cheaper_and_the_first_that_fits_is_taken(causal: str) -> None:
    question = Question(causal, "race", None, Path("data"))
    designs = list(question.designs())
    kinds = [study.methods[0].kind for study in designs]
    assert kinds == ["lora"] * 2 + ["zero_shot"] * 6
    read = [size(study) for study in designs[2:]]
    assert read == sorted(read, reverse=True)
    found = choose(question, budget=180.0, estimate=size)
    assert found.study.limit == 600
    assert [study.methods[0].kind for study, _ in found.dearer] == ["lora", "lora", "zero_shot"]
    with pytest.raises(PlanError, match="the smallest design may take"):
        choose(question, budget=0.1, estimate=size)
    (asked,) = {s.methods[0].kind for s in Question(causal, "age", "cot", Path("d")).designs()}
    assert asked == "cot"


def test_an_encoder_is_tuned(tmp_path: Path) -> None:
    from transformers import BertConfig

    folder = tmp_path / "encoder"
    BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(folder)
    designs = list(Question(str(folder), "age", None, tmp_path).designs())
    assert {study.methods[0].kind for study in designs} == {"full"}
    assert all(study.training for study in designs)


def test_data_is_found_by_its_files_whatever_its_folder_is_called(
    causal: str, shared: Path
) -> None:
    question = Question(causal, "gender", "zero_shot", shared / "data")
    (study, *_) = question.designs()
    assert question.sets(study) == {"amazon": shared / "data/amazon_templates"}
    found = choose(question, budget=1e9, estimate=size)
    text = said(found, 600.0)
    assert "zero_shot, 5 seeds, all sentences" in text
    assert "other sentences like these" in text


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "0m", "1e9m", "10 m", "1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time; such as"):
        seconds(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--probe", "rase"], "no attribute 'rase'; choose from age"),
        (["--method", "zero"], "--method 'zero' is none that an audit can choose"),
        (["--budget", "soon"], "--budget 'soon' is not a time"),
    ],
)
def test_a_typo_is_one_line_and_nothing_is_written(
    causal: str, shared: Path, tmp_path: Path, options: list[str], message: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["audit", causal, "--data", str(shared / "data"), *options])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_answers_begin_alike_is_tuned(shared: Path, tmp_path: Path) -> None:
    """ "negative" and "neutral" have one first token in a vocabulary of 512."""
    model = stories.convert(shared / "models/stories260K", tmp_path)
    question = Question(str(model), "age", None, shared / "data")
    assert {study.methods[0].kind for study in question.designs()} == {"lora"}
    assert _code(["init", str(model), "--out", str(tmp_path / "mine.yaml")]) == 0
    assert [method.kind for method in load_study(tmp_path / "mine.yaml").methods] == ["lora"]


def test_a_study_file_is_written_once_and_can_be_read(
    causal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    main_code = _code(["init", causal, "--probe", "age", "--out", str(file)])
    assert main_code == 0
    study = load_study(file)
    assert [method.kind for method in study.methods] == ["zero_shot", "lora"]
    assert study.probes[0].attributes == ("age",)
    assert _code(["init", causal, "--out", str(file)]) == 2
    assert "is there already; give another --out" in capsys.readouterr().err
    typo = tmp_path / "typo.yaml"
    assert _code(["init", causal, "--probe", "ages", "--out", str(typo)]) == 2
    assert "--probe: no attribute 'ages'; choose from age" in capsys.readouterr().err
    assert not typo.exists()


def _code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return int(stopped.value.code or 0)


@pytest.mark.slow
def test_an_audit_ends_with_a_page_and_goes_on_with_its_study(shared: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path / "tiny")
    told: list[str] = []
    out = tmp_path / "out"
    results = raybias.audit(
        str(model), probe="age", method="zero_shot", data=shared / "data", budget="60s", out=out,
        tell=told.append,
    )  # fmt: skip
    assert "zero_shot" in told[-1]
    gaps = results.gaps
    frame = gaps.collect() if isinstance(gaps, pl.LazyFrame) else gaps
    assert set(frame["attribute"]) == {"age"}
    assert (out / "report.html").stat().st_size
    again = raybias.audit(str(model), data=shared / "data", out=out, tell=told.append)
    assert "gone on with" in told[-1]
    assert again.report == results.report


@pytest.mark.parametrize("address", ["none", "local", None])
def test_what_is_done_on_this_machine_is_planned_for_it(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raybias.runtime.inventory.connected", None)  # No Ray is asked.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert read_inventory(address).source == "this machine"
