"""Pairs in styles: a whole study, and the same scores and answers however they are spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from safetensors.numpy import load_file

from raybias.errors import BadInput, ConfigError, ModelError
from support import studies
from support.studies import NO_RAY, STYLES, run


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.pairs(tmp_path_factory.mktemp("pairs"))


def read(out: Path, folder: str, *keys: str) -> pl.DataFrame:
    files = sorted((out / folder).rglob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files]).sort(*keys)


@pytest.mark.long
def test_scores_and_answers_do_not_depend_on_how_they_are_spread(
    study: Path, tmp_path: Path
) -> None:
    printed = run(study, tmp_path / "one", *NO_RAY)
    spread = ("resources.rows_per_shard=7", "resources.tokens_per_batch=64")
    options = [word for change in spread for word in ("--set", change)]
    run(study, tmp_path / "other", *options, *NO_RAY)

    keys = ("score", "style", "pair_id")
    ours, theirs = (read(tmp_path / name, "pair_scores", *keys) for name in ("one", "other"))
    assert ours.height == 24 * len(STYLES) * 2
    sides = ("score_more", "score_less")
    assert ours.drop(sides).equals(theirs.drop(sides))
    for side in sides:
        np.testing.assert_allclose(ours[side], theirs[side], rtol=1e-5)
    answers = [read(tmp_path / name, "coreference", "style", "item_id", "prompt")
               for name in ("one", "other")]  # fmt: skip
    assert answers[0].equals(answers[1])
    # WinoBias has no punctuation style.
    assert answers[0].height == 12 * 3 * 6

    assert f"report: {tmp_path / 'one'}/report.html" in printed
    found = pl.read_parquet(tmp_path / "one/tables/estimates.parquet")
    effects = found.filter(statistic="difference")
    assert set(effects["style"]) == set(STYLES) - {"original"}
    record = yaml.safe_load((tmp_path / "one/study.yaml").read_text())
    held = load_file(study.parent / "tiny/model.safetensors")
    assert record["parameters"] == {"tiny": sum(tensor.size for tensor in held.values())}
    assert "effects of styles over all pairs" in (tmp_path / "one/report.html").read_text()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("methods.0.scores=[masked]", ModelError, "causal language model and has no masked score"),
        ("methods.0.scores=[mask]", ConfigError, "unknown pair score 'mask'"),
        ("methods.1.answer_tokens=480", ModelError, "texts are longer than"),
        ("styles.names=[original, shouting]", ConfigError, "shouting"),
        ("pairs.0.kinds=[colour]", BadInput, "colour"),
        ("pairs=[{source: pairs, data: pairs.csv}]", ConfigError, "'coreference' has nothing"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    study: Path, tmp_path: Path, change: str, kind: type[BadInput], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(study, tmp_path / "out", "--set", change)
    assert not (tmp_path / "out").exists()
