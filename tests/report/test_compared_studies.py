"""Arms that are studies: which may be compared, and two models of one study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raybias
from raybias.errors import ConfigError
from support.report_outs import make_study, write_out

FEW = {"methods": [{"seeds": [1, 2, 3, 4, 5], "keep": 4}]}
WORDS = {"negative": "bad", "neutral": "fine", "positive": "good"}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"verbalizer": WORDS}, "the choice of label words is"),
        ({"profile": "paper"}, "is paper|judged differently"),
        ({"statistics": {"metrics": ["accuracy"]}}, "judged differently: metrics"),
        ({"methods": [{"kind": "lora", "name": "soft_prompt", "template": "say {text}"}]},
         "the template of soft_prompt is"),
    ],
)  # fmt: skip
def test_studies_that_read_or_judge_otherwise_are_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    lora = {"methods": [{"kind": "lora", "name": "soft_prompt"}]} if "methods" in changes else {}
    write_out(tmp_path / "a", make_study(**lora))
    write_out(tmp_path / "b", make_study(**changes))
    with pytest.raises(ConfigError, match=what):
        raybias.compare(tmp_path / "a", tmp_path / "b")


def test_two_models_of_one_study_are_compared_at_equal_seeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_out(out, make_study(("m0", "m1"), **FEW))
    found = raybias.compare(out, out, base_is={"model": "m0"}, candidate_is={"model": "m1"})
    assert found.base == f"{out} (model m0)"
    assert found.changes["model"].unique().to_list() == ["m0 -> m1"]
    assert {*found.changes["verdict"]} <= {"cannot tell", "equivalent"}
    assert any("matched by seed" in note or "not matched" in note for note in found.notes)
