"""The bootstrap on counts against resampling of rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.stats import bootstrap
from raybias.stats.count_arrays import count_arrays
from raybias.stats.counts import count_cells
from support.stats_data import gaps, predictions


def point_gaps(table: pl.DataFrame, groups: list[str]) -> np.ndarray:
    """Mean gaps [K, G] by the plain path; NaN where missing."""
    found = gaps(count_cells(table), interval="normal")
    value = {(row["score"], row["group"]): row["value"] for row in found.iter_rows(named=True)}
    return np.array(
        [[value.get((rate, g)) for g in groups] for rate in ("negative_fpr", "positive_fpr")],
        dtype=float,
    )


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.booleans())
@pytest.mark.filterwarnings("ignore::raybias.stats.checks.StatisticsWarning")
def test_product_weights_equal_row_resampling(seed: int, runs: int, uneven: bool) -> None:
    table = predictions(seed=seed, models=1, runs=runs, templates=5)
    if uneven:
        # Runs that saw different sentences: their FP + TN counts differ.
        table = table.filter(~((pl.col("run_id") == "m0.s0") & (pl.col("item_id") < "0003")))
    (counts,) = count_arrays(count_cells(table))
    weights = bootstrap.Weights(counts.items_KGRT.shape[2:], 3, (seed,), "sentences")
    inside_G = np.ones(len(counts.groups), dtype=bool)
    (gaps_KGB,) = bootstrap.drawn_gaps([counts], inside_G, weights)
    ((_, runs_BR, templates_BT),) = weights.chunks()
    assert (runs_BR.sum(axis=1) == max(1, runs - 1)).all()
    assert (templates_BT.sum(axis=1) == 4).all()
    names = [sorted(table[column].unique()) for column in ("run_id", "template_id")]
    for draw, (runs_R, templates_T) in enumerate(zip(runs_BR, templates_BT, strict=True)):
        copies = [
            table.filter(run_id=run, template_id=template).with_columns(
                run_id=pl.format("{}.{}", "run_id", pl.lit(copy))
            )
            for r, run in enumerate(names[0])
            for copy in range(int(runs_R[r]))
            for t, template in enumerate(names[1])
            for _ in range(int(templates_T[t]))
        ]
        expected = point_gaps(pl.concat(copies), list(counts.groups))
        np.testing.assert_allclose(gaps_KGB[:, :, draw], expected, atol=1e-12)


def test_large_counts_stay_exact() -> None:
    cells = count_cells(predictions(models=1))
    inside_G = np.ones(3, dtype=bool)
    few, many = (
        next(count_arrays(cells.with_columns(n=pl.col("n") * times))) for times in (1, 4_000_003)
    )
    drawn = [
        bootstrap.drawn_gaps(
            [each], inside_G, bootstrap.Weights(each.items_KGRT.shape[2:], 50, (1,), "sentences")
        )
        for each in (few, many)
    ]
    np.testing.assert_allclose(*drawn, rtol=1e-12)


def test_intervals_hold_the_estimate_and_follow_seed_and_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = count_cells(predictions(runs=3, templates=9))
    first = gaps(cells, interval="bootstrap", bootstrap_draws=500)
    assert (first["low"] <= first["high"]).all()
    assert ((first["low"] <= first["value"]) & (first["value"] <= first["high"])).mean() > 0.9
    assert first.equals(gaps(cells, interval="bootstrap", bootstrap_draws=500))
    assert not first.equals(
        gaps(cells, interval="bootstrap", bootstrap_draws=500, bootstrap_seed=1)
    )
    monkeypatch.setattr(bootstrap, "_CHUNK_ENTRIES", 9 * 64)
    assert first.equals(gaps(cells, interval="bootstrap", bootstrap_draws=500))
