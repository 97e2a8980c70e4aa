"""Pairs that are put into a style several times: means over the repeats, each pair counted once."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.measures.entries.pairs import PAIRS
from raybias.measures.kind import measure
from raybias.probes import repeated
from raybias.schema import PAIRS as PAIR_ITEMS
from raybias.stats.intervals import Rules
from support.pair_data import pair_scores

REPEATS = 3
PAPER = Rules.under("paper", strict=False, bootstrap_draws=200)
STRICT = Rules.under("strict", bootstrap_draws=200)
PLACE = ["attribute", "style", "score", "statistic", "condition", "group", "scope"]


def runs() -> list[pl.DataFrame]:
    """Three runs of one study: equal originals, and another style that is drawn anew."""
    found = []
    for seed in range(REPEATS):
        drawn = pair_scores(pairs=20, seed=seed, ties=0.0)
        original = pair_scores(pairs=20, seed=0, ties=0.0).filter(style="original")
        found.append(pl.concat([original, drawn.filter(pl.col("style") != "original")]))
    return found


def together() -> pl.DataFrame:
    """The three runs as one study has them."""
    parts = []
    for number, scores in enumerate(runs(), start=1):
        ending = "" if number == 1 else f"#repeat{number}"
        named = scores.with_columns(
            cluster=pl.col("pair_id"), pair_id=pl.format("{}" + ending, "pair_id")
        )
        parts.append(named)
    return pl.concat(parts)


@pytest.mark.parametrize("rules", [PAPER, STRICT], ids=["paper", "strict"])
def test_scores_and_effects_are_the_means_of_the_runs(rules: Rules) -> None:
    apart = [measure(PAIRS, each, rules) for each in runs()]
    found = measure(PAIRS, together(), rules)
    for statistic, score in (("score", "preference"), ("difference", "preference")):
        mine = found.filter(statistic=statistic, score=score).filter(pl.col("style") != "all")
        assert mine.height
        for row in mine.iter_rows(named=True):
            same = {name: row[name] for name in ("attribute", "style", "condition")}
            values = [
                each.filter(statistic=statistic, score=score, **same)["value"].item()
                for each in apart
            ]
            assert row["value"] == pytest.approx(np.mean(values))
            counts = {each.filter(score=score, **same)["n"][0] for each in apart}
            assert {row["n"]} == counts, "each pair counts once"
            assert row["scope"] == "clusters"


def test_tests_of_lists_are_of_each_pairs_mean_score() -> None:
    found = measure(PAIRS, together(), PAPER)
    scores = pl.concat(runs()).filter(bias_type="age", direction="stereo")
    lists = {
        style: scores.filter(style=style).group_by("pair_id").agg(pl.col("score_more").mean())
        for style in ("original", "prefix_1")
    }
    anti = pl.concat(runs()).filter(bias_type="age", direction="antistereo")
    lists = {
        style: pl.concat([
            part,
            anti.filter(style=style).group_by("pair_id").agg(
                pl.col("score_less").mean().alias("score_more")
            ),
        ])
        for style, part in lists.items()
    }  # fmt: skip
    expected = stats.ttest_ind(*(part["score_more"].to_numpy() for part in lists.values()))
    row = found.filter(score="t", attribute="age", group="original_stereo - prefix_1_stereo")
    assert row["value"].item() == pytest.approx(expected.statistic)
    assert row["p"].item() == pytest.approx(expected.pvalue)
    assert row["n"].item() == 20


def test_the_papers_test_of_two_shares_counts_each_pair_once() -> None:
    """Equal runs say no more than one."""
    same = together().filter(~pl.col("pair_id").str.contains("#"))
    thrice = pl.concat(
        same.with_columns(pair_id=pl.format("{}" + ending, "pair_id"))
        for ending in ("", "#repeat2", "#repeat3")
    )
    one, three = (measure(PAIRS, each, PAPER) for each in (same, thrice))
    effects = [
        each.filter(statistic="difference", condition="").sort(PLACE).select("value", "p", "n")
        for each in (one, three)
    ]
    assert effects[0].rows() == [pytest.approx(row) for row in effects[1].rows()]


def test_a_repeat_is_a_pair_of_the_same_cluster() -> None:
    pairs = pl.DataFrame(
        [("a", "age", "stereo", "original", "x", "y", None, "writer"),
         ("b", "age", "stereo", "original", "x", "z", None, None)],
        pl.Schema(PAIR_ITEMS), orient="row",
    )  # fmt: skip
    assert repeated(pairs, 1).equals(pairs)
    assert repeated(pairs, 2).select("pair_id", "cluster").rows() == [
        ("a", "writer"), ("b", "b"), ("a#repeat2", "writer"), ("b#repeat2", "b"),
    ]  # fmt: skip
