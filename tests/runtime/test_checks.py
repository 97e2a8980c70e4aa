"""`plan` and `run` refuse the same studies, in the same line, before any work (15 s)."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from transformers import GenerationConfig
from typer.testing import CliRunner

from raybias.cli import app, main
from raybias.config import Backbone, load_study
from raybias.errors import ConfigError, PlanError
from raybias.planning import plan as planning
from raybias.runtime import study as running
from raybias.schema import LABELS
from raybias.storage import Store
from support import studies
from support.words import word_tokenizer

LORA = {"kind": "lora", "learning_rates": [1e-3], "max_steps": 6, "eval_every": 3, "keep": 1}
PAIRS = {"training": [], "probes": [], "pairs": [{"source": "pairs", "data": "pairs.csv"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that passes, methods.yaml, and models that differ from its own in one way."""
    root = tmp_path_factory.mktemp("checks")
    studies.save(root, "soft_prompt")
    (root / "pairs.csv").write_text("sent_more,sent_less,bias_type\nred,blue,age\n")
    for name in ("picky", "unmarked"):
        shutil.copytree(root / "tiny", root / name)
    GenerationConfig(no_repeat_ngram_size=3).save_pretrained(root / "picky")
    word_tokenizer(["<pad>", *LABELS]).save_pretrained(root / "unmarked")
    return root


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line by which a command refuses."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("raybias: ")
    ]
    return line


def model(name: str) -> list[dict[str, str]]:
    return [{"id": name, "dtype": "float32", "bos": "tokenizer"}]


def referring(groups: dict[str, list[str]]) -> dict[str, Any]:
    return {"probes": [{**studies.MINE, "reference_groups": groups}]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"probes": [{"source": "file", "name": "mine", "data": "nowhere.csv"}]}, "nowhere.csv"),
        ({"backbones": ["./nowhere"]}, "neither a folder here nor an id of the hub"),
        (
            {"verbalizer": {"negative": "negative", "neutral": "negative", "positive": "positive"}},
            "both begin with token",
        ),
        ({"methods": [{**LORA, "target": ["nowhere"]}]}, "'nowhere' matches no linear layer"),
        ({"methods": [{**LORA, "select": "test"}]}, "has no test split"),
        ({"methods": [{**LORA, "template": "so " * 600 + "{text}"}]}, "longer than the 512 tokens"),
        ({"methods": [{"kind": "few_shot", "shots_per_label": 99}]}, "not the 99"),
        (
            {**PAIRS, "methods": [{"kind": "pair_score", "scores": ["masked"]}]},
            "has no masked score",
        ),
        (
            {"methods": [{"kind": "zero_shot"}], "backbones": model("picky")},
            "generation_config sets no_repeat_ngram_size: 3",
        ),
        ({"backbones": model("unmarked")}, "neither BOS nor EOS"),
        ({"methods": [LORA], "backbones": model("unmarked")}, "neither a padding nor an EOS"),
        ({"tracking": {"wandb": "project"}}, "wandb is not installed"),
        (referring({"colour": ["yelow"]}), "reference_groups: colour has no group 'yelow'"),
        (referring({"race": ["old"]}), "no items on the attribute 'race'; attributes are colour"),
    ],
)
def test_plan_and_run_refuse_alike(
    changes: dict[str, Any],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raybias.runtime.tracking.find_spec", lambda name: None)
    study = folder / "wrong.yaml"
    whole = yaml.safe_load((folder / "methods.yaml").read_text())
    study.write_text(yaml.safe_dump({**whole, **changes}))
    planned = said(capsys, "plan", str(study), "--assume", "cpus=2,memory=8GiB")
    assert words in planned
    assert said(capsys, "run", str(study), "--out", str(folder / "out")) == planned
    assert not (folder / "out").exists()


def test_plan_passes_what_run_does_and_looks_at_its_out(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def begins(address: str | None) -> None:
        raise PlanError("passed")

    monkeypatch.setattr(running, "connected", begins)
    monkeypatch.setattr(running, "names_no_cluster", lambda address: False)
    study, out = str(folder / "methods.yaml"), tmp_path / "out"
    assert said(capsys, "run", study, "--out", str(out)) == "raybias: passed"
    assumed = ("--assume", "cpus=2,memory=8GiB", "--out", str(out))
    assert "tune tiny on sentences" in CliRunner().invoke(app, ["plan", study, *assumed]).output
    store = Store(out)
    running.begin(store, running.prepare(load_study(study), store).record)
    assert "holds another study (limit is None, now 4" in said(
        capsys, "plan", study, *assumed, "--limit", "4"
    )
    whole = yaml.safe_load(Path(study).read_text())
    other = folder / "other.yaml"
    (method,) = whole["methods"]
    added = [{**method, "max_steps": 5}, {**LORA, "name": "added"}]
    other.write_text(yaml.safe_dump({**whole, "methods": added}))
    refused = said(capsys, "plan", str(other), *assumed)
    assert "(methods.soft_prompt.max_steps is 6, now 5; methods.added was not in" in refused
    shutil.rmtree(out)
    running.begin(Store(out), running.prepare(load_study(other), Store(out)).record)
    assert "methods.added is no longer in the study" in said(capsys, "plan", study, *assumed)


def test_a_sharded_study_without_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = SimpleNamespace(backbone="opt-6.7b", sharded=True, gpus=0)
    study = SimpleNamespace(backbones=[Backbone(id="opt-6.7b")])
    planned: Any = SimpleNamespace(study=study, tuning=[], scoring=[stage])
    monkeypatch.setattr(planning, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs deepspeed; `pip install 'raybias\[zero\]'`"):
        planning.check_libraries(planned)
    stage.sharded = False
    planning.check_libraries(planned)
