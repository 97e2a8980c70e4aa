"""The scripts of docs/examples do what they say; a study runs with what a package adds."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import ray

from raybias.measures.prediction_rows import gap_rows
from raybias.stats.metric import metrics
from support import extension
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
        "skewed_sentences": ("raybias run skew/study.yaml", "skew"),
        "serve_endpoint": ("probabilities", "prompts", str(free_port())),
    }
    assert {*recipes} == {path.stem for path in (ROOT / "docs/examples").glob("*.py")}
    for name, (shown, *words) in recipes.items():
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(ROOT / f"docs/examples/{name}.py"), run_name="__main__")
        assert shown in capsys.readouterr().out, name
    # Other tests of this process compute all metrics there are.
    metrics._entries.pop("muted")


@pytest.mark.slow
def test_a_study_runs_with_what_a_package_adds_to_every_node(
    on_every_node: Path, tmp_path: Path
) -> None:
    """Run by a process of its own: this one looked for packages before there was one."""
    address = ray.get_runtime_context().gcs_address
    extension.install(on_every_node)
    (tmp_path / "clerks.yaml").write_text(extension.study())
    call = "import sys; from raybias.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", call, "run", "clerks.yaml", "--out", "out", "--address", address],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(on_every_node), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    found = pl.read_parquet(out / "tables" / "estimates.parquet")
    gaps = gap_rows(found, "widest")
    assert set(gaps["method"]) == {"lexicon"}
    assert set(gaps["group"]) == {"young", "old"}
    assert set(gaps["score"]) == {"negative_fpr", "unneutral"}
    effects = found.filter(kind="pairs", statistic="difference", condition="")
    assert set(effects["style"]) == {"shouted"}
    (scores,) = (out / "pair_scores").rglob("*.parquet")
    assert pl.read_parquet(scores)["style"].value_counts().sort("style").rows() == [
        ("original", 6),
        ("shouted", 6),
    ]
