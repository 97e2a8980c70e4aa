"""Chunks of rewritten pairs without Ray: plans, files, refusals, and the items they become."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from transformers import T5Config

from raybias.config import PairProbe, Study
from raybias.engine.memory import total
from raybias.errors import ConfigError, DataError, ModelError, PlanError
from raybias.planning.costs import costs_of, describe
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy, read_items
from raybias.planning.stage_plans import Plan
from raybias.planning.tasks import fetched_models, tasks_of
from raybias.probes import base_pairs
from raybias.schema import REPEAT
from support import rewriters, studies
from support.mirrored import mirror

SMALL = "cpus=2,memory=8GiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a study names, and the shape of a large T5."""
    root = rewriters.save(tmp_path_factory.mktemp("stage"))
    # Weights of the small one would be those of another model.
    shutil.copytree(root / "t5", root / "large-t5", ignore=shutil.ignore_patterns("*.safetensors"))
    T5Config(d_model=8192, num_layers=12, decoder_start_token_id=0).save_pretrained(
        root / "large-t5"
    )
    return root


def study(folder: Path, *, styles: Any = None, **change: Any) -> Study:
    return rewriters.study(folder, {"styles": styles} if styles else {}, **change)


def planned(folder: Path, machine: str = SMALL, **change: Any) -> Plan:
    return plan(PreparedStudy.of(study(folder, **change)), assumed(machine))


def test_a_plan_shows_the_stage_and_counts_its_pairs(folder: Path) -> None:
    made = planned(folder)
    (stage,) = made.rewriting
    assert (stage.shards, stage.replicas_max, stage.need.cpus, stage.gpus) == (2, 2, 1, 0)
    assert (stage.layout.tokens, stage.items) == (512, {"mine": 70})
    (scoring,) = made.scoring
    assert scoring.items == {"mine": 140}
    shown = describe(made, costs_of(made))
    assert "rewrite as formal with t5, judged by judge (mirror): mine 70 pairs" in shown
    assert "2 replicas, each 1 CPU; 2 chunks, 512 tokens at a time" in shown
    assert shown.index("rewrite as formal") < shown.index("score with tiny")


def test_models_of_the_hub_are_fetched_before_they_rewrite(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "76543210" * 5
    models = {f"rewriting/{name}": folder / name for name in ("t5", "judge")}
    held = mirror(models, commit, tmp_path, monkeypatch)
    judge = {"model": "rewriting/judge", "revision": commit, "threshold": 0.05}
    prepared = PreparedStudy.of(
        study(folder, model="rewriting/t5", revision=commit, adequacy=judge)
    )
    made = plan(prepared, assumed(SMALL))
    tasks = {task.key: task for task in tasks_of(made)}
    fetching = {f"fetch/rewriting/{name}@{commit}" for name in ("t5", "judge")}
    assert {key for key, task in tasks.items() if task.kind == "fetch"} == fetching
    assert {*tasks["rewrite/formal"].after} == fetching
    for key, (spec, count) in fetched_models(made).items():
        assert (key in fetching, spec.revision) == (True, commit)
        weights = held[spec.id] / "model.safetensors"
        assert count == pytest.approx(weights.stat().st_size, rel=0.2)


def test_memory_takes_a_smaller_budget_and_then_refuses(folder: Path) -> None:
    large = {"model": str(folder / "large-t5"), "max_length": 128, "candidates": 3}
    roomy = planned(folder, "cpus=2,memory=256GiB", **large).rewriting[0]
    tight = planned(folder, "cpus=2,memory=11500MiB", **large).rewriting[0]
    assert roomy.layout.tokens == 512 > tight.layout.tokens >= 64
    assert roomy.replicas_max == 2 > tight.replicas_max == 1
    assert total(tight.memory) <= tight.device_memory
    with pytest.raises(
        PlanError, match=r"large-t5, which makes the style 'formal', needs .* judge"
    ):
        planned(folder, "cpus=2,memory=8GiB", **large)
    with_gpus = planned(folder, "cpus=8,memory=64GiB,gpus=1,gpu_memory=80GiB").rewriting[0]
    assert (with_gpus.replicas_max, with_gpus.gpus, with_gpus.layout.tokens) == (1, 1, 4096)


def test_what_cannot_be_rewritten_is_refused_before_any_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load"):
        planned(folder, model=str(folder / "tiny"))
    made = study(folder)
    wino = made.model_copy(
        update={"pairs": (made.pairs[0].model_copy(update={"source": "winobias"}),)}
    )
    with pytest.raises(ConfigError, match=r"no probe of the study has the style 'formal'"):
        read_items(wino)
    file = tmp_path / "own.csv"
    pairs = base_pairs(PairProbe(source="pairs", data=str(folder / "pairs.csv")))
    pairs.with_columns(style=pl.lit("formal")).write_csv(file)
    both = {**made.styles.model_dump(), "files": [str(file)]}
    with pytest.raises(ConfigError, match=r"'formal' is in styles.files and in styles.rewriting"):
        read_items(study(folder, styles=both))
    # The other style may come from a file.
    pairs.with_columns(style=pl.lit("informal")).write_csv(file)
    both["names"] = ["original", "formal", "informal"]
    assert read_items(study(folder, styles=both))["mine"].height == 3 * 70
    both["files"] = [str(tmp_path / "none.csv")]
    with pytest.raises(DataError, match=r"none.csv"):
        read_items(study(folder, styles=both))


def test_a_pair_comes_so_many_times_and_each_is_rewritten_with_draws_of_its_own(
    folder: Path, tmp_path: Path
) -> None:
    made = study(folder, paired="separate")
    asked = study(folder, styles={**made.styles.model_dump(), "repeats": 3})
    items = read_items(asked)["mine"]
    assert items.group_by("style").len().sort("style").rows() == [
        ("formal", 210), ("original", 210),
    ]  # fmt: skip
    out = tmp_path / "out"
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(asked.model_dump(mode="json", exclude_unset=True)))
    studies.run(path, out, *studies.NO_RAY)
    pairs = pl.read_parquet(out / "styled/mine/formal.parquet").filter(~pl.col("kept"))
    base = pairs.with_columns(pl.col("pair_id").str.replace(REPEAT, ""))
    drawn = base.group_by("pair_id").agg(pl.col("sent_more", "sent_less").n_unique())
    assert drawn.filter((pl.col("sent_more") > 1) | (pl.col("sent_less") > 1)).height >= 5
    found = pl.read_parquet(out / "tables/estimates.parquet")
    scores = found.filter(score="preference", statistic="score", attribute="avg_weighted")
    assert set(scores.filter(pl.col("style") != "all")["n"]) == {70}
    # A style of the study's own file is that of each pair's first repeat.
    styled = {"names": ["original", "formal"], "files": [str(out / "styled/mine/formal.parquet")]}
    again = read_items(study(folder, styles=styled))["mine"].filter(style="formal")
    assert again["pair_id"].to_list() == items.filter(style="original")["pair_id"].to_list()[:70]
