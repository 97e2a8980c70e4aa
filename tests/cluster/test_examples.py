"""The scripts of docs/examples do what they say, on the embedded model and on real files."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import polars as pl
import pytest

from raybias.stats.metric import metrics
from support.commands import free_port
from support.documents import ROOT

DECISIONS = pl.DataFrame(
    [
        {"text": f"The {term} clerk was {how} .", "label": label, "attribute": "seniority",
         "group": group, "term": term, "template_id": how, "pred": (label + (place % 4 == 0)) % 3}
        for label, hows in enumerate((("awful", "rude"), ("here", "late"), ("kind", "good")))
        for how in hows
        for place, (term, group) in enumerate(
            {"young": "young", "junior": "young", "old": "old", "senior": "old"}.items())
    ]
)  # fmt: skip


pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def test_every_recipe_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    DECISIONS.write_csv("decisions.csv")
    recipes = {
        "gaps_with_intervals": ("wording", "decisions.csv"),
        "outside_metric": ("muted", "decisions.csv"),
        "score_probe": ("old", "decisions.csv", "scored"),
        "packed_prompts": ("validation_accuracy", "prompts"),
        "serve_endpoint": ("probabilities", "prompts", str(free_port())),
    }
    assert {*recipes} == {path.stem for path in (ROOT / "docs/examples").glob("*.py")}
    for name, (shown, *words) in recipes.items():
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(ROOT / f"docs/examples/{name}.py"), run_name="__main__")
        assert shown in capsys.readouterr().out, name
    # Other tests of this process compute all metrics there are.
    metrics._entries.pop("muted")
