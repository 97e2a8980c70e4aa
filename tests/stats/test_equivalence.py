"""What shows that a change is small: the bound of a mean, its units, and gaps that do not move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import raybias
from raybias.config import Statistics
from raybias.measures.compare_answers import matched
from raybias.measures.compare_gaps import compare_predictions
from raybias.stats.components import mean_squares
from raybias.stats.intervals import Rules
from raybias.stats.largest_mean import largest_mean, units_needed
from raybias.stats.scopes import scope_rows
from support.stats_data import crossed, gap_table

LEVELS = st.sampled_from([0.8, 0.95, 0.99])


@given(st.integers(1, 3000), st.integers(0, 40), st.floats(0.1, 3), LEVELS)
def test_the_bound_of_whole_units_is_clopper_and_pearsons(
    units: int, changed: int, most: float, level: float
) -> None:
    changed = min(changed, units - 1)
    values = np.repeat([most, 0.0], [changed, units - changed])
    bound = most * stats.beta.ppf(level, changed + 1, units - changed)
    for sign in (1, -1):
        assert largest_mean(sign * values, most, level) == pytest.approx(bound, rel=1e-4)


@given(st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=40), LEVELS, st.integers(0, 9))
def test_the_bound_is_the_quantile_of_dirichlet_means_with_one_more_unit_at_the_extreme(
    found: list[float], level: float, seed: int
) -> None:
    values = np.round(found, 2)
    weights = np.random.default_rng(seed).standard_exponential((20_000, len(values) + 1))
    drawn = [weights @ np.append(sign * values, max(1, (sign * values).max())) for sign in (1, -1)]
    drawn = [each / weights.sum(axis=1) for each in drawn]
    bound = largest_mean(values, 1.0, level)
    beyond = [float((each > bound + 1e-6).mean()) for each in drawn]
    assert max(beyond) == pytest.approx(1 - level, abs=0.012)


def test_the_bound_of_many_ordinary_units_is_students() -> None:
    values = np.random.default_rng(1).uniform(-1, 1, 4000)
    estimate = mean_squares(values[None], ("template",)).estimate()
    ends = np.abs(np.concatenate(estimate.interval(0.9)))
    assert largest_mean(values, 1.0, 0.95) == pytest.approx(ends.max(), rel=0.02)


@given(st.integers(20, 148), st.integers(0, 2), st.sampled_from([0.02, 0.05]))
def test_as_many_units_as_are_asked_for_are_the_fewest_that_do(
    units: int, changed: int, margin: float
) -> None:
    values = np.repeat([1.0, 0.0], [changed, units - changed])
    if abs(values.mean()) > 0.8 * margin or largest_mean(values, 1.0, 0.95) <= margin:
        return
    needed = units_needed(values, 1.0, 0.95, margin)
    assert needed > units
    # In a sample with the same share of changed units.
    for number, enough in ((needed + 1, True), (needed - 1, False)):
        part = number * changed / units
        bound = stats.beta.ppf(0.95, part + 1, number - part)
        assert (bound <= margin) == enough


@pytest.mark.parametrize(("templates", "equivalent"), [(148, False), (149, True)])
def test_a_gap_is_equivalent_only_if_templates_that_were_not_sampled_leave_no_room(
    templates: int, equivalent: bool
) -> None:
    """Runs vary a little, and no template stands out."""
    values = np.random.default_rng(0).normal(0, 1e-6, (2, 3, templates))
    rules = Statistics.under("strict", margin=0.02)
    found = scope_rows([gap_table(values - values.mean(axis=0))], {}, rules)
    assert {*found.filter(scope="sentences")["equivalent"]} == {equivalent}
    # Under `runs` the claim is about these very templates.
    assert {*found.filter(scope="runs")["equivalent"]} == {True}


@given(st.integers(100, 400), st.integers(0, 12), st.sampled_from([0.02, 0.05]), st.integers(1, 2))
def test_harm_in_whole_templates_is_bounded_exactly(
    templates: int, changed: int, margin: float, runs: int
) -> None:
    """Both groups in opposite ways, so that the gap of either changes by 1 in such a template."""
    before = np.ones((runs, templates, 2, 1), int)
    after = before.copy()
    before[:, :changed, 1] = after[:, :changed, 0] = 0
    arms = [crossed(each).with_columns(parsed=pl.lit(True)) for each in (before, after)]
    rules = Rules.under("strict", metrics=("negative_fpr",))
    found, _ = compare_predictions(list(matched(*arms)), rules, margin=margin)
    share = stats.beta.ppf(0.95, changed + 1, templates - changed)
    for row in found.iter_rows(named=True):
        assert row["at_most"] >= share - 1e-6
        # Student's interval is the wider one of shares that are not rare.
        assert (row["verdict"] == "equivalent") == (row["at_most"] <= margin)
        if not changed:
            assert row["at_most"] == pytest.approx(share)
            assert row["low"] < 0 < row["high"]


@pytest.mark.parametrize(
    ("turn", "still"),
    [
        ((), "no answer differs"),
        ((0,), "the gap does not move (24 of 48 answers differ, in all groups alike)"),
        ((2,), "the gap does not move (24 of 48 answers differ, none of them in this rate)"),
    ],
)
def test_a_gap_that_does_not_move_is_not_answers_that_do_not(
    turn: tuple[int, ...], still: str, tmp_path: Path
) -> None:
    before = np.ones((1, 24, 2, 1), int)
    before[:, 1], before[:, 3] = 0, 2
    after = before.copy()
    for label in turn:
        after[:, ::2] = label
    frames = {name: crossed(each).with_columns(parsed=pl.lit(True), run_id=pl.lit("1"))
              for name, each in (("base", before), ("after", after))}  # fmt: skip
    paths = [tmp_path / f"{name}.parquet" for name in frames]
    for path, frame in zip(paths, frames.values(), strict=True):
        frame.write_parquet(path)
    found = raybias.compare(*paths, margin=0.2)
    rows = found.changes.filter(score="negative_fpr")
    assert rows["still"].to_list() == [still] * 2
    assert rows["verdict"].to_list() == ["equivalent"] * 2
    assert still in str(found)


@pytest.mark.parametrize(
    ("templates", "verdict", "reason"),
    [
        (20, "cannot tell", "149 templates or more: 20 leave room for 0.139"),
        (148, "cannot tell", "149 templates or more: 148 leave room for 0.020"),
        (149, "equivalent", ""),
    ],
)
def test_few_templates_show_nothing_to_be_equivalent(
    templates: int, verdict: str, reason: str
) -> None:
    random = np.random.default_rng(0)
    same = crossed(random.integers(0, 3, (2, templates, 3, 2))).with_columns(parsed=pl.lit(True))
    rules = Rules.under("strict", metrics=("negative_fpr",))
    found, _ = compare_predictions(list(matched(same, same)), rules, margin=0.02)
    assert {*found["verdict"]} == {verdict}
    assert {*found["reason"]} == {reason}
    # Clopper and Pearson's bound of a share of which no case was seen.
    assert found["at_most"].to_list() == pytest.approx([stats.beta.ppf(0.95, 1, templates)] * 3)
