"""Scores of pairs, effects of styles and their tests, against scipy and definitions by hand."""

from __future__ import annotations

from itertools import permutations
from statistics import mean
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import optimize, stats

from raybias.measures.entries.coreference import COREFERENCE, MEAN, coreference_outcomes
from raybias.measures.entries.pairs import PAIRS, pair_outcomes
from raybias.measures.kind import measure
from raybias.measures.pair_means import (
    AVERAGES,
    drawn_means,
    mcnemar,
    paired_t,
    percentiles,
    resolvable,
    two_proportions,
)
from raybias.measures.paired import effect_rows, score_rows, size_trends
from raybias.stats.checks import StatisticsWarning
from raybias.stats.components import mean_squares
from raybias.stats.intervals import Rules
from raybias.stats.share_intervals import tango
from raybias.stats.size_trends import sizes_in_names
from support.pair_data import answers, pair_scores

KEYS = ["method", "probe", "attribute", "style"]
DRAWS = 200


def effects(scores: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
    found = effect_rows(pair_outcomes(scores), Rules(bootstrap_draws=DRAWS, bootstrap_seed=seed))
    return found.filter(statistic="difference")


def estimates(scores: pl.DataFrame, **options: bool) -> pl.DataFrame:
    return measure(PAIRS, scores, Rules(bootstrap_draws=DRAWS, **options))


def test_effects_are_paired_differences_of_the_pairs_that_both_styles_have() -> None:
    scores = pair_scores(pairs=20)
    part = scores.filter(~((pl.col("style") == "prefix_1") & pl.col("pair_id").str.ends_with("7")))
    table = effects(part)
    counted = pl.col("preference").fill_null(0)
    base = part.filter(style="original").select("pair_id", before=counted, was="preference")
    for row in table.filter(pl.col("attribute") != "avg_unweighted").iter_rows(named=True):
        mine = part.filter(style=row["style"]).join(base, on="pair_id")
        if row["attribute"] != "avg_weighted":
            mine = mine.filter(bias_type=row["attribute"])
        after, before = mine.select(counted).to_series(), mine["before"]
        assert row["n"] == mine.height
        assert row["value"] == pytest.approx(100 * (after.mean() - before.mean()))  # type: ignore[operator]
        up, down = int((after > before).sum()), int((after < before).sum())
        assert row["p"] == pytest.approx(stats.binomtest(up, up + down).pvalue if up + down else 1)
        flips = mine.filter(pl.col("preference").ne_missing(pl.col("was"))).height
        assert row["flips"] == pytest.approx(flips / mine.height)
        assert row["low"] <= row["value"] <= row["high"]
    kinds = table.filter(~pl.col("attribute").is_in(AVERAGES), style="question_answer")
    mean_of_types = table.filter(attribute="avg_unweighted", style="question_answer")
    assert mean_of_types["value"].item() == pytest.approx(kinds["value"].mean())
    assert mean_of_types["p"].item() is None
    tested = table["p"].drop_nulls().to_numpy()
    q = stats.false_discovery_control(tested, method="bh")
    assert table.filter(pl.col("p").is_not_null())["q"].to_list() == q.tolist()


def test_effects_do_not_depend_on_the_order_of_rows_or_other_models() -> None:
    both = pair_scores(models=("toy-1M", "toy-2M"))
    table = effects(both)
    assert effects(both.sample(fraction=1.0, shuffle=True, seed=1)).equals(table)
    alone = effects(both.filter(model="toy-1M")).drop("q", "survives")
    assert alone.equals(table.filter(model="toy-1M").drop("q", "survives"))
    assert not effects(both, seed=1).equals(table)


def test_mcnemar_is_the_textbook_one() -> None:
    # Agresti, Categorical Data Analysis: approval ratings, 150 and 86 changed.
    assert mcnemar(150, 86) == pytest.approx(stats.binomtest(86, 236).pvalue)
    assert float(mcnemar(6, 1)) == pytest.approx(2 * (1 + 7) / 2**7)
    for up, down in ((0, 0), (1, 0), (4, 4), (9, 3)):
        expected = stats.binomtest(up, up + down).pvalue if up + down else 1.0
        assert float(mcnemar(up, down)) == pytest.approx(expected)


def test_the_other_tests_of_a_change_are_scipys() -> None:
    random = np.random.default_rng(0)
    d = random.normal(0.2, 1, 30)
    p = paired_t(d.mean(), (d**2).mean(), 30)
    assert float(p) == pytest.approx(stats.ttest_1samp(d, 0).pvalue)
    z, p_z = two_proportions(905 / 1508, 754 / 1508, 1508)
    table = np.array([[905, 603], [754, 754]])
    assert float(z) < 0
    assert float(p_z) == pytest.approx(stats.chi2_contingency(table, correction=False).pvalue)
    # Connor's formula: 12% of pairs change, by 2 points on the whole.
    assert float(resolvable(0.12, 2_350, level=0.95)) == pytest.approx(0.02, rel=0.01)


def test_t_tests_are_scipys_and_cover_all_pairs_of_lists() -> None:
    scores = pair_scores(styles=["original", "informal", "formal"], types=["age", "gender"])
    lists = {}
    for style, part in scores.filter(bias_type="age").sort("pair_id").group_by("style"):
        more = pl.when(direction="stereo")
        lists[f"{style[0]}_stereo"] = part.select(more.then("score_more").otherwise("score_less"))
        lists[f"{style[0]}_anti"] = part.select(more.then("score_less").otherwise("score_more"))
    for paired, test in ((False, stats.ttest_ind), (True, stats.ttest_rel)):
        table = estimates(scores, strict=paired).filter(score="t")
        assert table.height == 2 * 15
        for row in table.filter(attribute="age").iter_rows(named=True):
            first, second = (lists[name].to_series() for name in row["group"].split(" - "))
            found = test(first, second)  # type: ignore[operator]
            assert row["value"] == pytest.approx(found.statistic)
            assert row["p"] == pytest.approx(found.pvalue)
            assert row["significant"] == (found.pvalue < 0.05)


def test_the_variance_of_an_answer_is_taken_apart_into_crossed_components() -> None:
    scores = pair_scores(pairs=40)
    table = estimates(scores).filter(score="sd")
    assert table.height == 4 * 3 * 3
    wide = scores.with_columns(margin=pl.col("score_more").log() - pl.col("score_less").log())
    cells_NS = wide.pivot("style", index="pair_id", values="margin").drop("pair_id").to_numpy()
    expected = mean_squares(cells_NS, ("pair", "style")).components
    margins = table.filter(attribute="all", condition="margin")
    assert set(margins["n"]) == {120}
    found = dict(margins.select("group", "value").iter_rows())
    for facets, name in ((("pair",), "between pairs"), (("style",), "between styles"),
                         (("pair", "style"), "a pair's own way with a style")):  # fmt: skip
        assert found[name] == pytest.approx(np.sqrt(max(0.0, float(expected[facets]))))
    assert estimates(scores.filter(style="original")).filter(score="sd").is_empty()
    some = scores.filter((pl.col("style") == "original") | (pl.int_range(pl.len()) % 5 > 0))
    missing = estimates(some).filter(attribute="all", condition="margin", score="sd")
    near = missing.filter(group="between pairs")["value"].item()
    assert near == pytest.approx(found["between pairs"], rel=0.1)


def test_verdicts_follow_their_definitions() -> None:
    def judged(original: tuple[int, int], styled: tuple[int, int]) -> str:
        """`a` of `n` prefer sent_more; the style turns the first pairs to its own share."""
        scores = pair_scores(types=["age"], pairs=original[1], styles=["original", "formal"])
        prefer = pl.when(style="original").then(original[0]).otherwise(styled[0])
        place = pl.int_range(pl.len()).over("style")
        scores = scores.with_columns(preference=(place < prefer).cast(pl.Int8))
        found = effect_rows(pair_outcomes(scores), Rules(bootstrap_draws=DRAWS))
        return str(found.filter(score="styles_that_move_it")["reason"][0])

    assert judged((600, 1000), (400, 1000)) == "changes sign"
    assert judged((600, 1000), (505, 1000)) == "loses its sign"
    assert judged((505, 1000), (600, 1000)) == "gains a sign"
    assert judged((600, 1000), (700, 1000)) == "moves, sign kept"
    assert judged((600, 1000), (601, 1000)) == "stable"
    assert judged((12, 20), (10, 20)) == "within noise"
    # No pair changes: 5 in 100 may, as far as so few can tell.
    assert judged((12, 20), (12, 20)) == judged((30, 60), (30, 60)) == "within noise"
    assert judged((50, 100), (50, 100)) == "stable"


def test_an_effect_without_variance_or_from_a_few_pairs_is_not_significant() -> None:
    for pairs, turned in ((40, 4), (30, 5), (30, 6), (30, 30), (30, 0)):
        scores = pair_scores(types=["age"], pairs=pairs, styles=["original", "formal"])
        place = pl.int_range(pl.len()).over("style")
        prefer = pl.when(style="original").then(0).otherwise(turned)
        scores = scores.with_columns(preference=(place < prefer).cast(pl.Int8))
        row = effects(scores).filter(attribute="age").row(0, named=True)
        assert row["p"] == pytest.approx(stats.binomtest(turned, turned).pvalue if turned else 1)
        assert row["significant"] == row["survives"] == (row["p"] <= 0.05)
        assert row["low"] < row["value"] < row["high"] or turned == pairs
    # The mean of types has no test, and so no verdict.
    of_types = effects(pair_scores(pairs=40)).filter(attribute="avg_unweighted")
    assert of_types["significant"].null_count() == of_types.height > 0


def test_tangos_interval_is_the_published_one_and_holds_what_its_score_test_does() -> None:
    # Airway hyper-responsiveness before and after transplantation (Fagerland et al. 2014).
    low, high = tango(*(np.array([count]) for count in (1.0, 7.0, 21.0, stats.norm.ppf(0.975))))
    assert (low.item(), high.item()) == pytest.approx((-0.517, -0.026), abs=5e-4)


@given(
    up=st.integers(0, 30),
    down=st.integers(0, 30),
    same=st.integers(0, 60),
    level=st.sampled_from([0.8, 0.95, 0.99]),
)
def test_a_score_test_just_passes_at_the_ends_of_tangos_interval(
    up: int, down: int, same: int, level: float
) -> None:
    n, z = up + down + same, float(stats.norm.ppf((1 + level) / 2))
    assume(n > 0)
    low, high = (
        each.item() for each in tango(*(np.array([float(x)]) for x in (up, down, n)), np.array([z]))
    )
    value = (up - down) / n
    assert -1 <= low <= value <= high <= 1
    mirrored = tango(*(np.array([float(x)]) for x in (down, up, n)), np.array([z]))
    assert (low, high) == pytest.approx((-mirrored[1].item(), -mirrored[0].item()), abs=1e-9)
    # At a difference of 0 it is McNemar's test; without a change the end of Wilson's interval of 0.
    if up + down:
        beyond = (up - down) ** 2 / (up + down) - z**2
        assert (low > 0 or high < 0) == (beyond > 0) or abs(beyond) < 1e-6
    else:
        assert (low, high) == pytest.approx((-(z**2) / (n + z**2), z**2 / (n + z**2)), abs=1e-9)

    def score(true: float) -> float:
        """The statistic, with the likelihood of pairs that turn down maximised by a search."""

        def unlikely(alone: float) -> float:
            shares = np.array([alone + true, alone, 1 - 2 * alone - true])
            counts = np.array([up, down, same])
            return -float(counts @ np.log(np.maximum(shares, 1e-300)))

        bounds = max(0.0, -true), (1 - true) / 2
        alone = optimize.minimize_scalar(
            unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-10}
        ).x
        return float((value - true) / np.sqrt((2 * alone + true * (1 - true)) / n))

    for end in (low, high):
        if 1e-3 < abs(end) < 0.999 and abs(end - value) > 1e-3:
            assert abs(score(end)) == pytest.approx(z, rel=1e-2)


def test_trends_are_rank_correlations_and_least_squares_with_students_interval() -> None:
    effect = np.array([1.0, 3.0, 2.0, 6.0, 4.0])
    rows = [
        ("sum", "p", "age", style, model, 50.0, sign * float(value))
        for style, sign in (("formal", 1), ("informal", -1))
        for model, value in zip(("a-1M", "a-10M", "a-0.1B", "b-1B", "b-10B"), effect, strict=True)
    ]
    rows.append(("sum", "p", "age", "formal", "no size", 10.0, 9.0))
    table = pl.DataFrame(rows, [*KEYS, "model", "value", "effect"], orient="row")
    sizes = sizes_in_names(table["model"])
    assert sizes == {"a-1M": 1e6, "a-10M": 1e7, "a-0.1B": 1e8, "b-1B": 1e9, "b-10B": 1e10}
    found = size_trends(table, sizes, level=0.9)
    # Values are all 50: a constant has no trend.
    assert set(found["group"]) == {"effect", "absolute_effect"}
    slope, _, _, _, error = stats.linregress(np.arange(5), effect)
    reach = stats.t.ppf(0.95, 3) * error
    slopes = found.filter(score="slope", group="effect")
    row, other = (slopes.filter(style=name).row(0, named=True) for name in ("formal", "informal"))
    assert row["value"] == pytest.approx(slope)
    assert (row["low"], row["high"]) == pytest.approx((slope - reach, slope + reach))
    assert (other["value"], other["high"]) == pytest.approx((-slope, reach - slope))
    ranks = found.filter(score="rank_correlation", group="absolute_effect", style="informal")
    rank = ranks.row(0, named=True)
    expected = stats.spearmanr(np.arange(5), effect).statistic
    assert (rank["n"], rank["value"]) == (5, pytest.approx(expected))
    orders = [stats.spearmanr(np.arange(5), each).statistic for each in permutations(effect)]
    assert rank["p"] == pytest.approx(np.mean(np.abs(orders) >= abs(expected) - 1e-9))


def test_winobias_says_whom_answers_name_by_prompt() -> None:
    given = answers(pairs=40)
    number = given["pair_id"].str.extract(r"-(\d+)$").cast(pl.Int64)
    named = pl.Series([("both", "empty", "both", "other")[n % 4] for n in number])
    asked = given["prompt"] == "by_p_they_mean"
    given = given.with_columns(reading=named.zip_with(asked, given["reading"]))
    table = measure(COREFERENCE, given, Rules(bootstrap_draws=DRAWS))
    for prompt, expected in (
        ("represent", (0, 0, 0, 0)),
        ("by_p_they_mean", (25, 50, 0, 25)),
        ("mean", (12.5, 25, 0, 12.5)),
    ):
        for name, share in zip(("other", "both", "neither", "empty"), expected, strict=True):
            assert set(table.filter(group=prompt, score=f"names_{name}")["value"]) == {share}
    silent = given.with_columns(reading=pl.lit(None, pl.String))
    unsaid = measure(COREFERENCE, silent, Rules(bootstrap_draws=DRAWS))
    assert not unsaid["score"].str.starts_with("names_").any()


def test_winobias_counts_prompts_and_pairs() -> None:
    given = answers(pairs=30)
    table = measure(COREFERENCE, given, Rules(bootstrap_draws=DRAWS)).filter(pl.col("group") != "")
    rows = table.filter(style="original", attribute="type1", method="exact", group="represent")
    row = {each["score"]: each for each in rows.iter_rows(named=True)}
    mine = given.filter(style="original", wino_type="type1", prompt="represent")
    share = {
        str(side[0]): 100 * part["exact"].mean()
        for side, part in mine.group_by("condition")  # type: ignore[operator]
    }
    for side in ("pro", "anti"):
        assert row[f"{side}_accuracy"]["n"] == 30
        assert row[f"{side}_accuracy"]["value"] == pytest.approx(share[side])
    signed = row["difference"]
    assert signed["value"] == pytest.approx(share["pro"] - share["anti"])
    assert signed["low"] < signed["value"] < signed["high"]
    differences = table.filter(score="difference")
    table3 = differences.filter(group=MEAN)
    assert table3.height == 2 * 3 * 2
    on = ["style", "method", "attribute"]
    absolute = table.filter(score="absolute_difference", group=MEAN).select(*on, size="value")
    for row in table3.join(absolute, on=on).iter_rows(named=True):
        own = {key: row[key] for key in on}
        prompts = differences.filter(pl.col("group") != MEAN, **own)["value"]
        assert prompts.len() == 2
        assert row["size"] == pytest.approx(mean(prompts.abs()))
        assert row["value"] == pytest.approx(mean(prompts))
    with pytest.warns(StatisticsWarning, match="no rows that can be compared"):
        half = measure(COREFERENCE, given.filter(condition="pro"), Rules(bootstrap_draws=DRAWS))
    assert half.is_empty()


def test_drawn_means_are_means_of_drawn_pairs() -> None:
    values = np.array([[1.0, 0, 1, 1], [0.5, np.nan, 2, np.nan], [np.nan] * 4])
    drawn = drawn_means(values, 500, np.random.default_rng(0))
    assert drawn[0].mean() == pytest.approx(0.75, abs=0.05)
    assert set(np.round(drawn[0] * 4)) <= {0, 1, 2, 3, 4}
    assert np.nanmean(drawn[1]) == pytest.approx(1.25, abs=0.1)
    assert np.isnan(drawn[2]).all()
    low, high = percentiles(drawn[:1], 4, 0.95)
    assert low[0] < 0.5 < high[0] + 1e-9


def scores_of(frame: pl.DataFrame, **options: Any) -> pl.DataFrame:
    return score_rows(pair_outcomes(frame), Rules(bootstrap_draws=DRAWS, **options))


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
    table = score_rows(outcomes, Rules(bootstrap_draws=DRAWS))
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


def test_differences_that_do_not_vary_give_no_verdict() -> None:
    assert np.isnan(paired_t(0.5, 0.25, 8))
    assert float(paired_t(0.0, 0.0, 8)) == 1
    outcomes = coreference_outcomes(answers(pairs=3, pro=1.0, anti=0.0))
    table = score_rows(outcomes, Rules(bootstrap_draws=DRAWS)).filter(method="exact")
    assert table["value"].unique().to_list() == [100.0]
    assert table["significant"].null_count() == table.height


def test_intervals_of_few_pairs_that_agree_have_a_width() -> None:
    given = pair_scores(pairs=3, styles=["original"]).with_columns(preference=pl.lit(1, pl.Int8))
    row = scores_of(given).filter(attribute="age").row(0, named=True)
    assert row["value"] == 100
    assert row["low"] < 50
    assert row["p"] == pytest.approx(0.25)
    assert row["significant"] is False
