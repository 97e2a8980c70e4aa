"""Maxima over the draws of a prompt, against plain recomputations."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias import schema
from raybias.stats.draws import COLUMNS, UNRECORDED, draw_rows
from raybias.stats.intervals import Rules

GROUPS = ("blue", "green", "red")
TEMPLATES, DRAWS = 120, 5
TWO = {"continuation": [0, 1]}


def drawn(*, unread: float = 0.1, draws: int = DRAWS) -> pl.DataFrame:
    """Predictions by a judge with two classes, more often negative about the first group."""
    random = np.random.default_rng(1)
    rows = []
    for draw in range(draws):
        for group in GROUPS:
            for template in range(TEMPLATES):
                toxic = random.beta(2, 6 if group == "blue" else 8) + 0.1 * (template % 2)
                toxic = float(np.clip(toxic, 0.01, 0.99))
                verdict = None if random.random() < unread else int(toxic < 0.5)
                score = max(toxic, 1 - toxic) if verdict is not None else 0.0
                rows.append({
                    "model": "m", "method": "continuation", "dataset": "none", "probe": "p",
                    "style": "original", "attribute": "colour", "run_id": f"s{draw}",
                    "item_id": f"{group}{template}", "group": group, "label": 1,
                    "template_id": f"t{template:03d}", "pred": verdict, "scores": [score],
                })  # fmt: skip
    types = {name: pl.Schema(schema.PREDICTIONS)[name] for name in COLUMNS}
    return pl.DataFrame(rows, types)


def inside(*groups: str) -> pl.DataFrame:
    rows = [("p", "colour", group, group in (groups or GROUPS)) for group in GROUPS]
    return pl.DataFrame(rows, ["probe", "attribute", "group", "in_mean"], orient="row")


def matrix(table: pl.DataFrame, score: str) -> np.ndarray:
    """The score of each prompt [G, T], by loops."""
    values = np.full((len(GROUPS), TEMPLATES), np.nan)
    for g, group in enumerate(GROUPS):
        for t in range(TEMPLATES):
            draws = table.filter(group=group, template_id=f"t{t:03d}")
            toxic = [
                p if verdict == 0 else 1 - p
                for verdict, (p,) in draws.select("pred", "scores").iter_rows()
                if verdict is not None
            ]
            if toxic:
                values[g, t] = max(toxic) if score == "expected_maximum" else max(toxic) >= 0.5
    return values


@pytest.mark.parametrize("score", ["expected_maximum", "any_draw"])
def test_values_and_intervals_are_those_of_a_plain_recomputation(score: str) -> None:
    table = drawn(unread=0.0)
    rules = Rules(level=0.95, interval="t", adjust="benjamini_hochberg", scope="widest")
    found = draw_rows(table, inside(), rules, number=0, classes=TWO).filter(score=score)
    assert {*found["condition"]} == {"5 draws of a prompt"}
    assert {*found["scope"]} == {"sentences"}
    values_GT = matrix(table, score)
    rates = dict(found.filter(statistic="rate").select("group", "value").iter_rows())
    assert rates.pop("all") == pytest.approx(values_GT.mean())
    assert [rates[group] for group in GROUPS] == pytest.approx(values_GT.mean(axis=1))
    gaps_GT = values_GT - values_GT.mean(axis=0)
    gaps = found.filter(statistic="gap")
    for gap_T, row in zip(gaps_GT, gaps.sort("group").iter_rows(named=True), strict=True):
        error = gap_T.std(ddof=1) / np.sqrt(TEMPLATES)
        low, high = stats.t.interval(0.95, TEMPLATES - 1, gap_T.mean(), error)
        assert (row["value"], row["low"], row["high"]) == pytest.approx((gap_T.mean(), low, high))
        assert row["p"] == pytest.approx(stats.ttest_1samp(gap_T, 0).pvalue)
        assert (row["n"], row["units"]) == (TEMPLATES, TEMPLATES)
        assert row["significant"] == (low > 0 or high < 0)
    assert gaps["q"].to_numpy() == pytest.approx(stats.false_discovery_control(gaps["p"]))
    assert gaps.filter(group="blue")["value"].item() > 0


def test_draws_and_prompts_without_a_verdict_are_left_out() -> None:
    table = drawn(unread=0.3)
    # One prompt of which the judge reads nothing.
    lost = pl.col("item_id") == "red7"
    table = table.with_columns(pred=pl.when(~lost).then("pred"))
    found = draw_rows(table, inside(), Rules(), number=0, classes=TWO)
    values_GT = matrix(table, "expected_maximum")
    rates = found.filter(score="expected_maximum", statistic="rate")
    for group, value_T in zip(GROUPS, values_GT, strict=True):
        row = rates.filter(group=group).row(0, named=True)
        assert row["value"] == pytest.approx(np.nanmean(value_T))
        assert row["n"] == (~np.isnan(value_T)).sum()
    assert rates.filter(group="red")["n"].item() < TEMPLATES


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 1, 2], "stored alone, and the judge has 3 classes"),
        ([0, 0], "both classes of the judge count as one label"),
        (None, UNRECORDED),
    ],
)
def test_a_probability_that_is_not_stored_is_not_made_up(
    labels: list[int] | None, reason: str
) -> None:
    table = drawn()
    found = draw_rows(table, inside(), Rules(), number=0, classes={"continuation": labels})
    (refused,) = found.filter(score="expected_maximum").iter_rows(named=True)
    assert refused["value"] is None
    assert reason in refused["reason"]
    # Verdicts are known of any judge.
    known = draw_rows(table, inside(), Rules(), number=0, classes=TWO)
    assert found.filter(score="any_draw").equals(known.filter(score="any_draw"))


def test_one_draw_or_one_template_is_no_sample_of_them() -> None:
    one = draw_rows(drawn(draws=1), inside(), Rules(), number=0, classes=TWO)
    assert one.is_empty()
    table = drawn(unread=0.0).with_columns(template_id=pl.lit("t000"))
    gaps = draw_rows(table, inside(), Rules(), number=0, classes=TWO).filter(statistic="gap")
    assert {*gaps["reason"]} == {"one unit"}
    assert gaps["low"].null_count() == gaps.height
    assert gaps["value"].null_count() == 0
    alone = draw_rows(drawn(), inside("red"), Rules(), number=0, classes=TWO)
    gaps = alone.filter(statistic="gap", group="red")
    assert {*gaps["value"]} == {0.0}
    assert {*gaps["reason"]} == {"the reference itself"}
    assert gaps["survives"].null_count() == 2
