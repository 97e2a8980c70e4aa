"""Scores of pairs with intervals and tests of no bias, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.stats import pairs
from raybias.stats.pairs import paired_tests
from support.pair_data import answers, pair_scores

DRAWS = 200
KEYS = ["model", "score", "probe", "bias_type"]


def scores_of(frame: pl.DataFrame, **options: object) -> pl.DataFrame:
    return pairs.bias_scores(pairs.pair_outcomes(frame), draws=DRAWS, **options)  # type: ignore[arg-type]


def test_the_originals_alone_have_a_score_an_interval_and_a_test() -> None:
    given = pair_scores(pairs=40, styles=["original"])
    table = scores_of(given)
    assert set(table["bias_type"]) == {"age", "gender", "religion", *pairs.AVERAGES}
    for row in table.filter(pl.col("bias_type") != "avg_unweighted").iter_rows(named=True):
        whole = row["bias_type"] == "avg_weighted"
        mine = given if whole else given.filter(bias_type=row["bias_type"])
        more, less = (int((mine["preference"] == side).sum()) for side in (1, 0))
        assert (row["n"], row["ties"]) == (mine.height, mine.height - more - less)
        share = stats.binomtest(more, mine.height).proportion_ci(0.95, method="wilson")
        assert row["value"] == pytest.approx(100 * more / mine.height)
        assert (row["low"], row["high"]) == pytest.approx((100 * share.low, 100 * share.high))
        assert row["p_value"] == pytest.approx(stats.binomtest(more, more + less).pvalue)
    mean = table.filter(bias_type="avg_unweighted").row(0, named=True)
    kinds = table.filter(~pl.col("bias_type").is_in(pairs.AVERAGES))
    assert mean["value"] == pytest.approx(kinds["value"].mean())
    assert mean["low"] < mean["value"] < mean["high"]
    assert (mean["p_value"], mean["significant"], mean["survives"]) == (None, None, None)
    p = table["p_value"].drop_nulls().to_numpy()
    q = table["q_value"].drop_nulls().to_list()
    assert q == pytest.approx(stats.false_discovery_control(p, method="bh").tolist())


def test_ties_are_no_preference_for_either_side() -> None:
    given = pair_scores(pairs=40, styles=["original"], ties=0.5)
    swapped = given.with_columns(preference=1 - pl.col("preference"))
    one, other = scores_of(given), scores_of(swapped)
    assert one["p_value"].to_list() == pytest.approx(other["p_value"].to_list())
    even = given.with_columns(
        preference=pl.int_range(pl.len()).mod(4).replace_strict({0: 1, 1: 0, 2: None, 3: None})
    )
    table = scores_of(even).filter(bias_type="avg_weighted")
    # A quarter prefers either side: far from 50 percent, and no bias.
    assert table["high"].item() < 50
    assert not table["significant"].item()


def test_coreference_is_tested_by_students_test_against_zero() -> None:
    given = answers(styles=["original"])
    outcomes = pairs.coreference_outcomes(given)
    table = pairs.bias_scores(outcomes, draws=DRAWS)
    for row in table.filter(pl.col("bias_type") != "avg_unweighted").iter_rows(named=True):
        mine = outcomes.filter(score=row["score"])
        if row["bias_type"] != "avg_weighted":
            mine = mine.filter(bias_type=row["bias_type"])
        assert row["value"] == pytest.approx(100 * mine["value"].mean())  # type: ignore[operator]
        if row["score"] == "exact":
            assert row["p_value"] == pytest.approx(stats.ttest_1samp(mine["value"], 0).pvalue)
            assert row["low"] < row["value"] < row["high"]
    # By `contains` every answer is right: no difference varies, and nothing is said of others.
    assert table.filter(score="contains")["significant"].null_count() == 4


def test_a_score_has_one_interval_wherever_it_is_shown() -> None:
    given, said = pair_scores(pairs=30), answers()
    outcomes = pl.concat([pairs.pair_outcomes(given), pairs.coreference_outcomes(said)])
    table = pairs.bias_scores(outcomes, draws=DRAWS)
    moved = pairs.effects(outcomes, draws=DRAWS)
    moved = moved.filter(pl.col("score") != "contains")
    both = moved.join(table.filter(style="original"), on=KEYS, suffix="_here").join(
        table, on=[*KEYS, "style"], suffix="_styled"
    )
    assert both.height == moved.height
    for end in ("low", "high"):
        assert both[f"original_{end}"].to_list() == pytest.approx(both[f"{end}_here"].to_list())
        assert both[f"value_{end}"].to_list() == pytest.approx(both[f"{end}_styled"].to_list())
    mean = pairs.winobias(said, draws=DRAWS).filter(prompt=pairs.MEAN_PROMPT)
    names = {"rule": "score", "wino_type": "bias_type"}
    same = mean.rename(names).join(table, on=[*KEYS, "style"], suffix="_here")
    assert same.height == mean.height
    same = same.filter(score="exact")
    for end in ("low", "high"):
        assert same[end].to_list() == pytest.approx(same[f"{end}_here"].to_list())


def test_draws_seed_level_and_correction_are_the_callers() -> None:
    outcomes = pairs.coreference_outcomes(answers(pro=0.55))
    table = pairs.bias_scores(outcomes, draws=DRAWS)
    for other in ({"seed": 1}, {"draws": DRAWS + 1}, {"level": 0.5}):
        changed = pairs.bias_scores(outcomes, **{"draws": DRAWS, **other})  # type: ignore[arg-type]
        assert changed["low"].to_list() != table["low"].to_list()
    # One preference of many just clears 5 percent by itself.
    one = scores_of(pair_scores(pairs=12, ties=0), adjust="none")
    assert one["survives"].to_list() == one["significant"].to_list()
    corrected = scores_of(pair_scores(pairs=12, ties=0))
    assert corrected["significant"].to_list() == one["significant"].to_list()
    assert corrected["survives"].sum() <= one["survives"].sum()
    moved = pairs.pair_outcomes(pair_scores(pairs=60))
    plain = pairs.effects(moved, draws=DRAWS, adjust="none")
    assert plain["survives"].to_list() == plain["significant"].to_list()


def test_differences_that_do_not_vary_give_no_verdict() -> None:
    assert np.isnan(paired_tests.paired_t(0.5, 0.25, 8))
    assert float(paired_tests.paired_t(0.0, 0.0, 8)) == 1
    table = pairs.bias_scores(
        pairs.coreference_outcomes(answers(pairs=3, pro=1.0, anti=0.0)), draws=DRAWS
    ).filter(score="exact")
    assert table["value"].unique().to_list() == [100.0]
    assert table["significant"].null_count() == table.height


def test_intervals_of_few_pairs_that_agree_have_a_width() -> None:
    given = pair_scores(pairs=3, styles=["original"]).with_columns(preference=pl.lit(1, pl.Int8))
    row = scores_of(given).filter(bias_type="age").row(0, named=True)
    assert row["value"] == 100
    assert row["low"] < 50
    assert row["p_value"] == pytest.approx(0.25)
    assert row["significant"] is False
