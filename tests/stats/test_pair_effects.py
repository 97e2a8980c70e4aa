"""Preference scores, style effects and their tests, against definitions written out by hand."""

from __future__ import annotations

from statistics import mean

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raybias.errors import ConfigError
from raybias.stats import pairs
from raybias.stats.components import Balanced
from raybias.stats.pairs import paired_tests
from raybias.stats.pairs.resampling import drawn_means, percentiles
from support.pair_data import answers, pair_scores
from support.planted_pairs import planted_check, simulate

METRIC = ["model", "score", "probe"]
DRAWS = 200


def effects(scores: pl.DataFrame, **options: int) -> pl.DataFrame:
    return pairs.effects(pairs.pair_outcomes(scores), draws=DRAWS, **options)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), number=st.integers(1, 15), ties=st.sampled_from([0.0, 0.3, 1.0]))
def test_counts_add_up_and_swapping_sides_mirrors_them(seed: int, number: int, ties: float) -> None:
    scores = pair_scores(pairs=number, seed=seed, ties=ties)
    table = pairs.preferences(scores)
    kinds = table.filter(~pl.col("bias_type").is_in(pairs.AVERAGES))
    total = kinds.group_by("style", "part").agg(pl.col("n", "k", "ties").sum(), pl.mean("value"))
    for name, value in (("avg_weighted", None), ("avg_unweighted", "value")):
        average = table.filter(bias_type=name).join(total, on=["style", "part"], suffix="_sum")
        for column in ("n", "k", "ties"):
            assert (average[column] == average[f"{column}_sum"]).all()
        if value is None:
            assert (average["value"] == 100 * average["k"] / average["n"]).all()
        else:
            assert np.allclose(average["value"], average["value_sum"])
    halves = kinds.filter(pl.col("part") != "all").group_by("style", "bias_type").agg(
        pl.col("n", "k", "ties").sum()
    )  # fmt: skip
    both = kinds.filter(part="all").join(halves, on=["style", "bias_type"], suffix="_sum")
    assert (both["k"] == both["k_sum"]).all()
    swapped = scores.with_columns(
        score_more="score_less", score_less="score_more", preference=1 - pl.col("preference")
    )
    mirrored = pairs.preferences(swapped)
    assert (mirrored["k"] == table["n"] - table["k"] - table["ties"]).all()


def test_an_unchanged_style_has_no_effect() -> None:
    original = pair_scores(styles=["original"])
    copied = pl.concat([original, original.with_columns(style=pl.lit("formal"))])
    table = effects(copied)
    for name in ("effect", "low", "high", "z", "flips", "up", "down", "flip_share"):
        assert set(table[name]) == {0}
    assert table["p_value"].drop_nulls().unique().to_list() == [1.0]
    assert pairs.stability(table)["verdict"].unique().to_list() == ["stable"]
    t_values = pairs.t_tests(copied, paired=True).filter(
        first="original_stereo", second="formal_stereo"
    )
    assert t_values["t_value"].null_count() == t_values.height


def test_effects_are_paired_differences_of_the_pairs_that_both_styles_have() -> None:
    scores = pair_scores(pairs=20)
    part = scores.filter(~((pl.col("style") == "prefix_1") & pl.col("pair_id").str.ends_with("7")))
    table = effects(part)
    counted = pl.col("preference").fill_null(0)
    base = part.filter(style="original").select("pair_id", before=counted, was="preference")
    for row in table.filter(pl.col("bias_type") != "avg_unweighted").iter_rows(named=True):
        mine = part.filter(style=row["style"]).join(base, on="pair_id")
        if row["bias_type"] != "avg_weighted":
            mine = mine.filter(bias_type=row["bias_type"])
        after, before = mine.select(counted).to_series(), mine["before"]
        assert row["n"] == mine.height
        assert row["effect"] == pytest.approx(100 * (after.mean() - before.mean()))  # type: ignore[operator]
        up, down = int((after > before).sum()), int((after < before).sum())
        assert (row["up"], row["down"]) == (up, down)
        assert row["p_value"] == pytest.approx(
            stats.binomtest(up, up + down).pvalue if up + down else 1
        )
        assert row["flips"] == mine.filter(pl.col("preference").ne_missing(pl.col("was"))).height
        assert row["low"] <= row["effect"] <= row["high"]
    kinds = table.filter(~pl.col("bias_type").is_in(pairs.AVERAGES), style="question_answer")
    mean_of_types = table.filter(bias_type="avg_unweighted", style="question_answer")
    assert mean_of_types["effect"].item() == pytest.approx(kinds["effect"].mean())
    assert mean_of_types["p_value"].item() is None
    tested = table["p_value"].drop_nulls().to_numpy()
    q = stats.false_discovery_control(tested, method="bh")
    assert table.filter(pl.col("p_value").is_not_null())["q_value"].to_list() == q.tolist()


def test_effects_do_not_depend_on_the_order_of_rows_or_other_models() -> None:
    both = pair_scores(models=("toy-1M", "toy-2M"))
    table = effects(both)
    assert effects(both.sample(fraction=1.0, shuffle=True, seed=1)).equals(table)
    alone = effects(both.filter(model="toy-1M")).drop("q_value", "survives")
    assert alone.equals(table.filter(model="toy-1M").drop("q_value", "survives"))
    assert not effects(both, seed=1).equals(table)


def test_mcnemar_is_the_textbook_one() -> None:
    # Agresti, Categorical Data Analysis: approval ratings, 150 and 86 changed.
    assert paired_tests.mcnemar(150, 86) == pytest.approx(stats.binomtest(86, 236).pvalue)
    assert float(paired_tests.mcnemar(6, 1)) == pytest.approx(2 * (1 + 7) / 2**7)
    for up, down in ((0, 0), (1, 0), (4, 4), (9, 3)):
        expected = stats.binomtest(up, up + down).pvalue if up + down else 1.0
        assert float(paired_tests.mcnemar(up, down)) == pytest.approx(expected)


def test_the_other_tests_of_a_change_are_scipys() -> None:
    random = np.random.default_rng(0)
    d = random.normal(0.2, 1, 30)
    p = paired_tests.paired_t(d.mean(), (d**2).mean(), 30)
    assert float(p) == pytest.approx(stats.ttest_1samp(d, 0).pvalue)
    z, p_z = paired_tests.two_proportions(905 / 1508, 754 / 1508, 1508)
    table = np.array([[905, 603], [754, 754]])
    assert float(z) < 0
    assert float(p_z) == pytest.approx(stats.chi2_contingency(table, correction=False).pvalue)
    # Connor's formula: 12% of pairs change, by 2 points on the whole.
    n = paired_tests.pairs_needed(0.02, 0.12, level=0.95)
    assert 2_300 < float(n) < 2_400
    assert float(paired_tests.resolvable(0.12, n, level=0.95)) == pytest.approx(0.02, rel=0.01)
    assert np.isinf(paired_tests.pairs_needed(0.0, 0.1, level=0.95))


def test_t_tests_are_scipys_and_cover_all_pairs_of_lists() -> None:
    scores = pair_scores(styles=["original", "informal", "formal"], types=["age", "gender"])
    for paired, test in ((False, stats.ttest_ind), (True, stats.ttest_rel)):
        for scale, change_of in (("score", np.asarray), ("log", np.log)):
            table = pairs.t_tests(scores, paired=paired, scale=scale)  # type: ignore[arg-type]
            assert table.height == 2 * 15
            lists = {}
            for style, part in scores.filter(bias_type="age").sort("pair_id").group_by("style"):
                more = pl.when(direction="stereo")
                stereo = part.select(more.then("score_more").otherwise("score_less")).to_series()
                anti = part.select(more.then("score_less").otherwise("score_more")).to_series()
                lists |= {
                    f"{style[0]}_stereo": change_of(stereo),
                    f"{style[0]}_anti": change_of(anti),
                }
            for row in table.filter(bias_type="age").iter_rows(named=True):
                found = test(lists[row["first"]], lists[row["second"]])  # type: ignore[operator]
                assert row["t_value"] == pytest.approx(found.statistic)
                assert row["p_value"] == pytest.approx(found.pvalue)
                assert row["marked"] == (abs(found.statistic) > 1.96)


def test_the_variance_of_an_answer_is_taken_apart_into_crossed_components() -> None:
    scores = pair_scores(pairs=40)
    table = pairs.style_components(scores)
    assert table.height == 4 * 3
    wide = scores.with_columns(margin=pl.col("score_more").log() - pl.col("score_less").log())
    cells_NS = wide.pivot("style", index="pair_id", values="margin").drop("pair_id").to_numpy()
    expected = Balanced(cells_NS, ("pair", "style")).components
    row = table.filter(bias_type="all", quantity="margin").row(0, named=True)
    for facets, name in ((("pair",), "sd_pair"), (("style",), "sd_style"),
                         (("pair", "style"), "sd_pair_x_style")):  # fmt: skip
        assert row[name] == pytest.approx(np.sqrt(max(0.0, float(expected[facets]))))
    assert (row["n_pairs"], row["n_styles"]) == (120, 3)
    assert pairs.style_components(scores.filter(style="original")).is_empty()
    missing = pairs.style_components(scores.sample(fraction=0.8, seed=0))
    near = missing.filter(bias_type="all", quantity="margin")["sd_pair"].item()
    assert near == pytest.approx(row["sd_pair"], rel=0.1)


def test_verdicts_follow_their_definitions() -> None:
    def judged(original: tuple[int, int], styled: tuple[int, int]) -> str:
        """`a` of `n` prefer sent_more; the style turns the first pairs to its own share."""
        n = original[1]
        rows = [
            (style, f"{i:04d}", int(i < count))
            for style, count in (("original", original[0]), ("formal", styled[0]))
            for i in range(n)
        ]
        scores = pl.DataFrame(rows, ["style", "pair_id", "preference"], orient="row").select(
            pl.lit("m").alias("model"), pl.lit("sum").alias("score"), pl.lit("p").alias("probe"),
            "style", "pair_id", pl.lit("age").alias("bias_type"),
            pl.lit("stereo").alias("direction"), pl.lit(0.0).alias("score_more"),
            pl.lit(0.0).alias("score_less"), pl.col("preference").cast(pl.Int8),
            pl.lit(None, pl.String).alias("cluster"),
        )  # fmt: skip
        return str(pairs.stability(effects(scores))["verdict"][0])

    assert judged((600, 1000), (400, 1000)) == "changes sign"
    assert judged((600, 1000), (505, 1000)) == "loses its sign"
    assert judged((505, 1000), (600, 1000)) == "gains a sign"
    assert judged((600, 1000), (700, 1000)) == "moves, sign kept"
    assert judged((600, 1000), (601, 1000)) == "stable"
    assert judged((12, 20), (10, 20)) == "within noise"


def test_model_size_is_a_rank_correlation() -> None:
    models = ("a-1M", "a-10M", "a-1B", "b-2.7B", "no size")
    rows = [
        (model, "sum", "p", "age", "formal", float(value), float(value) - 50)
        for model, value in zip(models, (40, 55, 60, 70, 10), strict=True)
    ]
    columns = [*METRIC, "bias_type", "style", "value", "effect"]
    table = pl.DataFrame(rows, columns, orient="row")
    sizes = pairs.sizes_in_names(table["model"])
    assert sizes == {"a-1M": 1e6, "a-10M": 1e7, "a-1B": 1e9, "b-2.7B": 2.7e9}
    found = pairs.model_size(table, sizes)
    row = found.filter(quantity="value").row(0, named=True)
    assert (row["n_models"], row["spearman"]) == (4, pytest.approx(1))
    assert row["p_value"] == pytest.approx(2 / 24)
    assert found.filter(quantity="absolute_effect")["spearman"].item() == pytest.approx(
        stats.spearmanr([1, 2, 3, 4], [10, 5, 10, 20]).statistic
    )


def test_slopes_are_least_squares_with_students_interval() -> None:
    sizes = {"a": 1e6, "b": 1e7, "c": 1e8, "d": 1e9, "e": 1e10}
    effect = np.array([1.0, 3.0, 2.0, 6.0, 4.0])
    rows = [
        (model, "sum", "p", "age", style, 10, 50.0, 50.0 + sign * value, sign * float(value))
        for style, sign in (("formal", 1), ("informal", -1))
        for model, value in zip(sizes, effect, strict=True)
    ]
    columns = [*METRIC, "bias_type", "style", "n", "original", "value", "effect"]
    found = pairs.model_size(pl.DataFrame(rows, columns, orient="row"), sizes, level=0.9)
    # Originals are all 50: a constant has no trend.
    assert set(found["style"]) == {"formal", "informal"}
    row = found.filter(style="formal", quantity="effect").row(0, named=True)
    x = np.arange(5) - 2.0
    slope = x @ effect / (x @ x)
    left = effect - effect.mean() - slope * x
    reach = stats.t.ppf(0.95, 3) * np.sqrt(left @ left / 3 / (x @ x))
    assert row["slope"] == pytest.approx(slope)
    assert (row["low"], row["high"]) == pytest.approx((slope - reach, slope + reach))
    other = found.filter(style="informal", quantity="effect").row(0, named=True)
    assert (other["slope"], other["high"]) == pytest.approx((-slope, reach - slope))
    assert (row["smallest"], row["largest"]) == (1e6, 1e10)


@pytest.mark.long
def test_slopes_cover_the_truth() -> None:
    random = np.random.default_rng(5)
    sizes = {f"m{k}": 10.0 ** (6 + k) for k in range(5)}
    rows = [
        (f"m{k}", "sum", "p", f"{draw}", "formal", float(2 * k + random.normal(0, 3)), None)
        for draw in range(400)
        for k in range(5)
    ]
    types = dict.fromkeys((*METRIC, "bias_type", "style"), pl.String)
    table = pl.DataFrame(rows, {**types, "value": pl.Float64, "effect": pl.Float64}, orient="row")
    found = pairs.model_size(table, sizes)
    assert 0.92 <= ((found["low"] <= 2) & (found["high"] >= 2)).mean() <= 0.98  # type: ignore[operator]


def test_winobias_says_whom_answers_name_by_prompt() -> None:
    given = answers(pairs=40)
    number = given["pair_id"].str.extract(r"-(\d+)$").cast(pl.Int64)
    named = pl.Series([("both", "empty", "both", "other")[n % 4] for n in number])
    asked = given["prompt"] == "by_p_they_mean"
    given = given.with_columns(reading=named.zip_with(asked, given["reading"]))
    table = pairs.winobias(given, draws=DRAWS)
    shares = ("answers_other", "answers_both", "answers_neither", "answers_empty")
    for prompt, expected in (
        ("represent", (0, 0, 0, 0)),
        ("by_p_they_mean", (25, 50, 0, 25)),
        ("mean", (12.5, 25, 0, 12.5)),
    ):
        assert set(table.filter(prompt=prompt).select(shares).rows()) == {expected}
    unsaid = pairs.winobias(given.with_columns(reading=pl.lit(None, pl.String)), draws=DRAWS)
    assert unsaid["answers_both"].null_count() == unsaid.height


def test_winobias_counts_prompts_and_pairs() -> None:
    given = answers(pairs=30)
    table = pairs.winobias(given, draws=DRAWS)
    row = table.filter(
        style="original", wino_type="type1", rule="exact", prompt="represent"
    ).row(0, named=True)  # fmt: skip
    mine = given.filter(style="original", wino_type="type1", prompt="represent")
    share = {
        str(side[0]): 100 * part["exact"].mean()
        for side, part in mine.group_by("condition")  # type: ignore[operator]
    }
    assert (row["n_pro"], row["n_anti"]) == (30, 30)
    assert (row["pro"], row["anti"]) == (pytest.approx(share["pro"]), pytest.approx(share["anti"]))
    assert row["diff"] == pytest.approx(share["pro"] - share["anti"])
    assert row["low"] < row["diff"] < row["high"]
    table3 = table.filter(prompt=pairs.MEAN_PROMPT)
    assert table3.height == 2 * 3 * 2
    for mean_row in table3.iter_rows(named=True):
        prompts = table.filter(
            pl.col("prompt") != "mean", style=mean_row["style"], rule=mean_row["rule"],
            wino_type=mean_row["wino_type"],
        )  # fmt: skip
        assert prompts.height == 2
        assert mean_row["abs_diff"] == pytest.approx(mean(prompts["diff"].abs()))
        assert mean_row["diff"] == pytest.approx(mean(prompts["diff"]))
    moved = pairs.effects(pairs.coreference_outcomes(given), draws=DRAWS)
    signed = table3.filter(wino_type="type1", rule="exact").select("style", "diff")
    effect = moved.filter(bias_type="type1", score="exact").join(signed, on="style")
    assert effect["value"].to_list() == pytest.approx(effect["diff"].to_list())
    assert effect["p_value"].null_count() == 0


def test_drawn_means_are_means_of_drawn_pairs() -> None:
    values = np.array([[1.0, 0, 1, 1], [0.5, np.nan, 2, np.nan], [np.nan] * 4])
    drawn = drawn_means(values, 500, np.random.default_rng(0))
    assert drawn[0].mean() == pytest.approx(0.75, abs=0.05)
    assert set(np.round(drawn[0] * 4)) <= {0, 1, 2, 3, 4}
    assert np.nanmean(drawn[1]) == pytest.approx(1.25, abs=0.1)
    assert np.isnan(drawn[2]).all()
    low, high = percentiles(drawn[:1], 4, 0.95)
    assert low[0] < 0.5 < high[0] + 1e-9


@pytest.mark.long
def test_planted_effects_are_covered_and_false_alarms_kept_down() -> None:
    table = planted_check(studies=500)
    whole = table.filter(bias_type="avg_weighted")
    assert whole["n"].unique().to_list() == [1508]
    for row in whole.iter_rows(named=True):
        assert 0.93 <= row["coverage"] <= 0.97
        assert row["mean_estimate"] == pytest.approx(row["effect"], abs=0.12)
    by_effect = table.group_by("effect").agg(pl.mean("coverage"))
    assert by_effect["coverage"].is_between(0.93, 0.97).all()
    assert (table.filter(effect=0.0)["survived"] <= 0.05).all()
    assert whole.filter(effect=8.0)["survived"].item() == 1.0
    nothing = planted_check((0.0, 0.0, 0.0), studies=500, seed=1)
    assert max(found["false_share"][0] for found in (table, nothing)) <= 0.05
    with pytest.raises(ConfigError, match="12 points"):
        planted_check((20.0,), studies=2)


def test_a_planted_study_is_judged_as_its_score_file_is() -> None:
    drawn = simulate(300, (0.0, 8.0), 1, np.random.default_rng(3))
    styles = {"original": drawn.original_RN[0], "formal": drawn.styled_REN[0, 0],
              "informal": drawn.styled_REN[0, 1]}  # fmt: skip
    scores = pl.concat(
        pair_scores(types=["age"], pairs=300, styles=[style], ties=0).with_columns(
            preference=pl.Series(outcome.astype(np.int8))
        )
        for style, outcome in styles.items()
    )
    table = effects(scores).filter(bias_type="age")
    for row in table.iter_rows(named=True):
        d = styles[row["style"]] - styles["original"]
        assert row["effect"] == pytest.approx(100 * d.mean())
        expected = paired_tests.mcnemar((d > 0).sum(), (d < 0).sum())
        assert row["p_value"] == pytest.approx(float(expected))
    assert table.filter(style="informal")["survives"].item()
