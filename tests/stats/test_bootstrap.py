"""The bootstrap on counts against resampling of rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias import stats
from raybias.stats import bootstrap
from support.stats_data import predictions


def point_gaps(table: pl.DataFrame, groups: list[str]) -> np.ndarray:
    """Mean gaps [K, G] by the plain path; NaN where missing."""
    found = stats.gaps(stats.cells(table), interval="normal")
    value = {(row["rate"], row["group"]): row["gap"] for row in found.iter_rows(named=True)}
    return np.array(
        [[value.get((rate, g)) for g in groups] for rate in ("negative_fpr", "positive_fpr")],
        dtype=float,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.booleans())
@pytest.mark.filterwarnings("ignore::raybias.stats.StatisticsWarning")
def test_counts_equal_row_resampling_for_a_fixed_draw(seed: int, runs: int, uneven: bool) -> None:
    table = predictions(seed=seed, models=1, runs=runs, templates=5)
    if uneven:
        # Runs that saw different sentences: their FP + TN counts differ.
        table = table.filter(~((pl.col("run_id") == "m0.s0") & (pl.col("item_id") < "0003")))
    cells = stats.cells(table)
    (block,) = bootstrap.blocks(cells, tuple(sorted(cells["group"].unique())))
    names = sorted(table["template_id"].unique())
    weights_BT = bootstrap.draw_counts(np.random.default_rng(seed), 3, len(names))
    assert (weights_BT.sum(axis=1) == len(names)).all()
    (gaps_KGB,) = bootstrap.mean_gaps(
        bootstrap.weighted(block.false_PKTG.swapaxes(2, 3)[None], weights_BT),
        bootstrap.weighted(block.negatives_PKTG.swapaxes(2, 3), weights_BT),
        block.runs_P,
        np.ones(len(block.groups), dtype=bool),
    )
    for draw, weights_T in enumerate(weights_BT):
        rows = [
            table.filter(template_id=name)
            for name, weight in zip(names, weights_T, strict=True)
            for _ in range(int(weight))
        ]
        expected = point_gaps(pl.concat(rows), list(block.groups))
        np.testing.assert_allclose(gaps_KGB[:, :, draw], expected, atol=1e-12)


def test_one_draw_of_every_template_gives_the_point_estimate_and_large_counts_stay_exact() -> None:
    table = predictions(models=1)
    cells = stats.cells(table).with_columns(n=pl.col("n") * 4_000_003)
    (block,) = bootstrap.blocks(cells, tuple("abc"))
    false_PKGT = block.false_PKTG.swapaxes(2, 3)
    ones_BT = np.ones((1, false_PKGT.shape[3]), dtype=np.float32)
    assert (bootstrap.weighted(false_PKGT, ones_BT)[..., 0] == false_PKGT.sum(axis=3)).all()


def test_intervals_hold_the_estimate_and_follow_seed_and_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = stats.cells(predictions(runs=3, templates=9))
    first = stats.gaps(cells, interval="bootstrap", draws=500)
    assert (first["low"] <= first["high"]).all()
    assert ((first["low"] <= first["gap"]) & (first["gap"] <= first["high"])).mean() > 0.9
    assert first.equals(stats.gaps(cells, interval="bootstrap", draws=500))
    assert not first.equals(stats.gaps(cells, interval="bootstrap", draws=500, seed=1))
    monkeypatch.setattr(bootstrap, "_CHUNK_ENTRIES", 9 * 64)
    monkeypatch.setattr(bootstrap, "_CACHE_ENTRIES", 9 * 16)
    assert first.equals(stats.gaps(cells, interval="bootstrap", draws=500))


@pytest.mark.long
def test_interval_covers_a_known_gap() -> None:
    """With templates drawn from a population, 95% intervals hold its gap about 95 times in 100."""
    random = np.random.default_rng(5)
    hits = 0
    trials = 200
    for trial in range(trials):
        # Neutral sentences only: a template calls group a positive with its own chance near .6.
        chance = np.clip(0.6 + 0.2 * random.standard_normal(40), 0, 1)
        counts = {"a": random.binomial(20, chance), "b": random.binomial(20, 0.4, 40)}
        rows = [
            ("m", "", "", "p", "", f"r{trial}", "x", group, f"{t:02d}", 1, pred, int(n))
            for group, positives in counts.items()
            for t, k in enumerate(positives)
            for pred, n in ((2, k), (1, 20 - k))
        ]
        from raybias import schema

        cells = pl.DataFrame(rows, schema=pl.Schema(schema.CELLS), orient="row")
        found = stats.gaps(cells, interval="bootstrap", draws=400).filter(
            group="a", rate="positive_fpr"
        )
        hits += found["low"].item() <= 0.1 <= found["high"].item()
    assert 0.88 <= hits / trials <= 0.99
