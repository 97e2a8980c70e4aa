"""A study that makes a style with a checkpoint, cut off and run again, without Ray and on it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.api import studies
from raybias.config import Study
from raybias.engine.rewriter import Rewriter
from raybias.errors import ModelError
from raybias.planning.prepared import PreparedStudy
from raybias.planning.workload import STYLED, chunks_of
from raybias.probes import base_pairs
from raybias.probes.styles.rewriting import rewritten_pairs
from raybias.schema import PAIRS
from raybias.storage import Store
from support import rewriters

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = rewriters.save(tmp_path_factory.mktemp("rewriting"))
    return rewriters.study(folder, {"profile": "paper", "resources": {"replicas_max": 1}})


@pytest.mark.parametrize("address", ["none", pytest.param("auto", marks=pytest.mark.slow)])
def test_a_style_that_a_model_makes_goes_to_the_tables_and_is_made_once(
    study: Study,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    address: str,
) -> None:
    if address != "none":
        request.getfixturevalue("ray_cluster")
    studies.run(study, out=tmp_path, address=address)
    options = study.styles.rewriting["formal"]
    originals = base_pairs(study.pairs[0])
    wanted = rewritten_pairs(
        originals, "formal", Rewriter(options, style="formal"), paired="separate", seed=3
    )
    kept = wanted["kept"].sum()
    assert 0 < kept < 70
    items = pl.read_parquet(tmp_path / "items/mine.parquet")
    assert items.equals(pl.concat([wanted.select(PAIRS.names), originals]))
    longer = items.with_columns(pl.col("sent_more") + " w1" * 520)
    with pytest.raises(ModelError, match="texts are longer than"):
        PreparedStudy.of(study).check_rewritten({"mine": longer})
    assert f"{kept} of 70 pairs keep their original" in capfd.readouterr().err
    found = pl.read_parquet(tmp_path / "tables/estimates.parquet")
    effects = found.filter(statistic="difference", condition="")
    assert set(effects["style"]) == {"formal"}
    assert (
        f"formal left {kept} pairs of mine as they were" in (tmp_path / "report.html").read_text()
    )

    # As a killed driver leaves it: one of two shards.
    store, made = Store(tmp_path), tmp_path / "styled/mine/formal.parquet"
    before = pl.read_parquet(made)
    made.unlink()
    first, _ = chunks_of("formal", {"mine": 70})
    store.write_table(first.file, before[:64].to_arrow().cast(STYLED.schema))
    studies.run(study, out=tmp_path, address="none")
    after, scores = pl.read_parquet(made), ("adequacy_more", "adequacy_less")
    assert after[:64].equals(before[:64])
    assert after.drop(scores).equals(before.drop(scores))
    assert not (tmp_path / "parts").exists()
    assert pl.read_parquet(tmp_path / "items/mine.parquet").equals(items)
    assert "all 1 shards are there" in capfd.readouterr().err
