"""Gaps of rare outcomes: no group looks surer than those that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.stats.components import MeanEstimate
from raybias.stats.few_events import FEWEST, Events
from raybias.stats.intervals import Rules
from raybias.stats.rate_intervals import share_ends
from support.stats_data import crossed, rates_of


def test_a_group_with_few_events_varies_at_least_as_its_attribute_does() -> None:
    variance = np.array([0.0001, 0.002, 0.003, 0.004])
    events = Events(np.full(4, 40.0), np.array([2.0, 15, 38.5, 20]))
    gaps = MeanEstimate(np.full(4, 0.1), variance, np.full(4, 39.0))
    found = events.floored(gaps).variance
    average = variance.mean()
    np.testing.assert_allclose(found, [average, 0.002, max(0.003, average), 0.004])


@given(
    st.lists(
        st.tuples(st.integers(2, 500), st.floats(0, 1), st.floats(1e-6, 1)), min_size=2, max_size=8
    )
)
def test_a_least_variance_is_larger_in_fewer_units(groups: list[tuple[int, float, float]]) -> None:
    units, rates, spread = (np.array(each, float) for each in zip(*groups, strict=True))
    events = Events(units, units * rates)
    gaps = MeanEstimate(rates, spread / units, units - 1)
    found = events.floored(gaps)
    few = np.minimum(units * rates, units * (1 - rates)) < FEWEST
    # What a unit varies, on average over units of the harmonic mean size.
    mean = (spread / units).sum() / (1 / units).sum()
    expected = np.where(few, np.maximum(spread, mean), spread) / units
    np.testing.assert_allclose(found.variance, expected)
    np.testing.assert_array_equal(found.mean, gaps.mean)
    least = events.least_variances()
    assert (least[~few] == 0).all()
    pooled = ((units * rates).sum() + 1) / (units.sum() + 2)
    np.testing.assert_allclose(least[few], pooled * (1 - pooled) / units[few])


def test_a_gap_that_never_varies_has_no_interval_by_events() -> None:
    events = Events(np.full(2, 10.0), np.zeros(2))
    still = events.floored(MeanEstimate(np.zeros(2), np.zeros(2), np.ones(2)))
    assert np.isnan(still.interval(0.95)).all()


@pytest.mark.parametrize(("wrong", "expected"), [(0, (0.0, 0.278)), (10, (0.722, 1.0))])
def test_a_rate_of_0_or_1_has_wilsons_interval(wrong: int, expected: tuple[float, float]) -> None:
    """Of ten sentences: 0 and 1 lie within [0, 27.8%] and [72.2%, 100%] (Wilson 1927)."""
    pred_RTGW = np.ones((1, 10, 2, 1), int)
    pred_RTGW[:, :wrong, 0] = 0
    pred_RTGW[:, ::2, 1] = 0
    tables = rates_of(crossed(pred_RTGW), ["negative_fpr"])
    row = share_ends(tables, {}, Rules().level).filter(group="0").row(0, named=True)
    assert (row["low"], row["high"]) == pytest.approx(expected, abs=0.001)


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 3), st.floats(0, 1))
def test_intervals_of_rates_hold_them_within_0_and_1(
    seed: int, templates: int, runs: int, rate: float
) -> None:
    random = np.random.default_rng(seed)
    pred_RTGW = np.where(random.random((runs, templates, 3, 2)) < rate, 0, 1)
    for table in rates_of(crossed(pred_RTGW), ["negative_fpr"]):
        ends = share_ends([table], {}, 0.95).filter(scope="sentences")
        value = table.values_GRT.mean(axis=(1, 2))
        low, high = ends["low"].to_numpy(), ends["high"].to_numpy()
        assert not np.isnan(low).any()
        assert ((low >= -1e-12) & (high <= 1 + 1e-12) & (low < high)).all()
        assert ((low <= value + 1e-12) & (value <= high + 1e-12)).all()
