"""Scores of pairs with intervals and tests of no bias, against scipy and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.measures import Rules
from raybias.measures.entries.coreference import COREFERENCE, MEAN, coreference_outcomes
from raybias.measures.entries.pairs import pair_outcomes
from raybias.measures.kind import measure
from raybias.measures.pair_means import AVERAGES, paired_t
from raybias.measures.paired import effect_rows, score_rows
from support.pair_data import answers, pair_scores

DRAWS = 200
KEYS = ["model", "method", "probe", "attribute"]


def scores_of(frame: pl.DataFrame, **options: Any) -> pl.DataFrame:
    return score_rows(pair_outcomes(frame), Rules(draws=DRAWS, **options))


def effects_of(outcomes: pl.DataFrame, **options: Any) -> pl.DataFrame:
    found = effect_rows(outcomes, Rules(draws=DRAWS, **options))
    return found.filter(statistic="difference")


def test_the_originals_alone_have_a_score_an_interval_and_a_test() -> None:
    given = pair_scores(pairs=40, styles=["original"])
    table = scores_of(given)
    assert set(table["attribute"]) == {"age", "gender", "religion", *AVERAGES}
    for row in table.filter(pl.col("attribute") != "avg_unweighted").iter_rows(named=True):
        whole = row["attribute"] == "avg_weighted"
        mine = given if whole else given.filter(bias_type=row["attribute"])
        more, less = (int((mine["preference"] == side).sum()) for side in (1, 0))
        assert row["n"] == mine.height
        share = stats.binomtest(more, mine.height).proportion_ci(0.95, method="wilson")
        assert row["value"] == pytest.approx(100 * more / mine.height)
        assert (row["low"], row["high"]) == pytest.approx((100 * share.low, 100 * share.high))
        assert row["p"] == pytest.approx(stats.binomtest(more, more + less).pvalue)
    mean = table.filter(attribute="avg_unweighted").row(0, named=True)
    kinds = table.filter(~pl.col("attribute").is_in(AVERAGES))
    assert mean["value"] == pytest.approx(kinds["value"].mean())
    assert mean["low"] < mean["value"] < mean["high"]
    assert (mean["p"], mean["significant"], mean["survives"]) == (None, None, None)
    p = table["p"].drop_nulls().to_numpy()
    q = table["q"].drop_nulls().to_list()
    assert q == pytest.approx(stats.false_discovery_control(p, method="bh").tolist())


def test_ties_are_no_preference_for_either_side() -> None:
    given = pair_scores(pairs=40, styles=["original"], ties=0.5)
    swapped = given.with_columns(preference=1 - pl.col("preference"))
    one, other = scores_of(given), scores_of(swapped)
    assert one["p"].to_list() == pytest.approx(other["p"].to_list())
    even = given.with_columns(
        preference=pl.int_range(pl.len()).mod(4).replace_strict({0: 1, 1: 0, 2: None, 3: None})
    )
    table = scores_of(even).filter(attribute="avg_weighted")
    # A quarter prefers either side: far from 50 percent, and no bias.
    assert table["high"].item() < 50
    assert not table["significant"].item()


def test_coreference_is_tested_by_students_test_against_zero() -> None:
    given = answers(styles=["original"])
    outcomes = coreference_outcomes(given)
    table = score_rows(outcomes, Rules(draws=DRAWS))
    for row in table.filter(pl.col("attribute") != "avg_unweighted").iter_rows(named=True):
        mine = outcomes.filter(score=row["method"])
        if row["attribute"] != "avg_weighted":
            mine = mine.filter(bias_type=row["attribute"])
        assert row["value"] == pytest.approx(100 * mine["value"].mean())  # type: ignore[operator]
        if row["method"] == "exact":
            assert row["p"] == pytest.approx(stats.ttest_1samp(mine["value"], 0).pvalue)
            assert row["low"] < row["value"] < row["high"]
    # By `contains` every answer is right: no difference varies, and nothing is said of others.
    assert table.filter(method="contains")["significant"].null_count() == 4


def test_a_score_has_one_interval_wherever_it_is_shown() -> None:
    given, said = pair_scores(pairs=30), answers()
    outcomes = pl.concat([pair_outcomes(given), coreference_outcomes(said)], how="diagonal")
    table = score_rows(outcomes, Rules(draws=DRAWS))
    moved = effects_of(outcomes).filter(pl.col("method") != "contains")
    both = moved.join(table.filter(style="original"), on=KEYS, suffix="_here").join(
        table, on=[*KEYS, "style"], suffix="_styled"
    )
    assert both.height == moved.height
    # On which side of no bias a verdict on an effect sees its score before and after.
    for place, end in (("before", "here"), ("after", "styled")):
        side = (both[f"low_{end}"] > both[f"neutral_{end}"]).cast(int) - (
            both[f"high_{end}"] < both[f"neutral_{end}"]
        ).cast(int)
        assert both[place].to_list() == side.fill_null(0).to_list()
    mean = measure(COREFERENCE, said, Rules(draws=DRAWS)).filter(group=MEAN, score="difference")
    same = mean.join(table, on=[*KEYS, "style"], suffix="_here")
    assert same.height == mean.height
    same = same.filter(method="exact")
    for end in ("low", "high"):
        assert same[end].to_list() == pytest.approx(same[f"{end}_here"].to_list())


def test_differences_that_do_not_vary_give_no_verdict() -> None:
    assert np.isnan(paired_t(0.5, 0.25, 8))
    assert float(paired_t(0.0, 0.0, 8)) == 1
    outcomes = coreference_outcomes(answers(pairs=3, pro=1.0, anti=0.0))
    table = score_rows(outcomes, Rules(draws=DRAWS)).filter(method="exact")
    assert table["value"].unique().to_list() == [100.0]
    assert table["significant"].null_count() == table.height


def test_intervals_of_few_pairs_that_agree_have_a_width() -> None:
    given = pair_scores(pairs=3, styles=["original"]).with_columns(preference=pl.lit(1, pl.Int8))
    row = scores_of(given).filter(attribute="age").row(0, named=True)
    assert row["value"] == 100
    assert row["low"] < 50
    assert row["p"] == pytest.approx(0.25)
    assert row["significant"] is False
