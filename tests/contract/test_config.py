"""A study file is checked where it is read, and says what is wrong, where, and the cure."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

from raybias.config import load_study
from raybias.errors import BadInput, ConfigError, PlanError

STUDY = {
    "name": "mine",
    "backbones": ["gpt2"],
    "training": [{"source": "sst5", "data": "sst5"}],
    "probes": [{"source": "amazon", "data": "amazon", "attributes": ["age"]}],
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return path


def test_the_profile_fills_in_what_it_decides(tmp_path: Path) -> None:
    found = {}
    for profile in ("paper", "strict"):
        study = load_study(write(tmp_path), profile=profile)
        (method,) = study.methods
        statistics = study.statistics
        found[profile] = (method.restore_best, statistics.interval, statistics.adjust)
    assert found == {
        "paper": (False, "normal", "none"),
        "strict": (True, "t", "benjamini_hochberg"),
    }


def test_overrides_reach_into_sections_and_lists(tmp_path: Path) -> None:
    study = load_study(
        write(tmp_path, methods=[{"kind": "soft_prompt"}]),
        overrides=(
            "methods.0.keep=3",
            "resources.train_workers=2",
            "backbones.0=facebook/opt-125m",
        ),
        limit=7,
    )
    assert study.methods[0].keep == 3
    assert study.resources.train_workers == 2
    assert study.backbones[0].name == "opt-125m"
    assert study.limit == 7


def test_paths_are_taken_from_the_studys_folder(tmp_path: Path) -> None:
    (tmp_path / "sst5").mkdir()
    study = load_study(write(tmp_path))
    assert study.training[0].data == str(tmp_path / "sst5")
    assert study.backbones[0].id == "gpt2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": []}, "unknown key 'backbone'; did you mean 'backbones'?"),
        ({"methods": [{"sedes": [1]}]}, "methods.0: unknown key 'sedes'; did you mean 'seeds'?"),
        ({"methods": [{"seeds": [1, 2, 1], "keep": 1}]}, "seeds repeat: 1; list each once"),
        ({"methods": [{"seeds": [1], "keep": 2}]}, "keep is 2 but there are 1 seeds"),
        ({"backbones": ["a/gpt2", "b/gpt2"]}, "backbones share the name 'gpt2'"),
        ({"limit": 0}, "limit: Input should be greater than or equal to 1 (got 0)"),
        ({"probes": []}, "probes: "),
    ],
)
def test_one_line_says_what_is_wrong(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(write(tmp_path, **changes))
    line = str(caught.value)
    assert message in line
    assert "study.yaml" in line
    assert "\n" not in line


@pytest.mark.parametrize("text", ["nonsense", "methods.x=1", "=3"])
def test_a_wrong_override_says_so(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load_study(write(tmp_path, methods=[{}]), overrides=(text,))


def test_errors_travel_between_processes() -> None:
    error = PlanError("9 GPUs are needed", where="plan", cure="take fewer")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "plan: 9 GPUs are needed; take fewer"
    assert isinstance(again, BadInput)
    assert again.exit_code == 2
