"""Pairs in clusters: the algebra of cluster-robust means, and what is drawn is said."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.measures.entries.pairs import pair_outcomes
from raybias.measures.paired import effect_rows, score_rows, style_rows
from raybias.stats.components import cluster_robust, mean_squares
from raybias.stats.intervals import Rules
from support.pair_data import pair_scores

FEW = Rules(bootstrap_draws=300)
SIZES = np.array([13, 7, 5, 4, 4, 2, 1])


def test_equal_clusters_are_students_test_of_their_means() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, 60)
    cluster, one = np.repeat(np.arange(12), 5), np.zeros(60, dtype=np.int64)
    found = cluster_robust(values[None], cluster, one)
    means = values.reshape(12, 5).mean(axis=1)
    low, high = found.interval(0.95)
    expected = stats.ttest_1samp(means, 0)
    assert found.freedom[0] == pytest.approx(11)
    assert found.p_value()[0] == pytest.approx(expected.pvalue)
    assert (low[0], high[0]) == pytest.approx(tuple(expected.confidence_interval()))
    alone = cluster_robust(values[None], np.arange(60), one)
    assert alone.p_value()[0] == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


@pytest.mark.parametrize("strata", [1, 3])
def test_the_variance_and_its_degrees_of_freedom_are_those_of_the_matrices(strata: int) -> None:
    """Bell and McCaffrey (2002), written out for a regression on the strata."""
    random = np.random.default_rng(1)
    cluster = np.repeat(np.arange(len(SIZES)), SIZES)
    values, stratum = random.normal(size=len(cluster)), random.integers(strata, size=len(cluster))
    design = (stratum[:, None] == np.arange(strata)).astype(float)
    bread = np.linalg.inv(design.T @ design)
    hat = design @ bread @ design.T
    contrast = np.full(strata, 1 / strata) @ bread @ design.T
    columns = []
    for each in range(len(SIZES)):
        own = np.flatnonzero(cluster == each)
        worth, turn = np.linalg.eigh(np.eye(len(own)) - hat[np.ix_(own, own)])
        weights = np.zeros(len(cluster))
        weights[own] = contrast[own] @ (turn / np.sqrt(worth)) @ turn.T
        columns.append((np.eye(len(cluster)) - hat).T @ weights)
    form = np.array(columns)
    spectrum = form @ form.T
    found = cluster_robust(values[None], cluster, stratum)
    assert found.variance[0] == pytest.approx(((form @ values) ** 2).sum())
    assert found.freedom[0] == pytest.approx(np.trace(spectrum) ** 2 / (spectrum**2).sum())


def test_clusters_of_one_pair_or_unknown_ones_change_nothing_that_need_not() -> None:
    scores = pair_scores(pairs=40)
    alone = scores.with_columns(cluster=pl.col("pair_id"))
    for rows in (score_rows, effect_rows):
        without, each = (rows(pair_outcomes(f), FEW).filter(score="preference")
                         for f in (scores, alone))  # fmt: skip
        assert set(without["scope"]) == {"pairs"}
        assert set(each["scope"]) == {"clusters"}
        assert each["units"].to_list() == each["n"].to_list()
        for name in ("low", "high"):
            np.testing.assert_allclose(each[name], without[name], atol=3.0)
    ten = effect_rows(pair_outcomes(pair_scores(pairs=40, clusters=10)), FEW)
    ten = ten.filter(statistic="difference")
    assert ten.filter(attribute="age")["units"].to_list() == [4, 4]
    # A writer may write on several types: it is drawn with all of its pairs.
    assert ten.filter(attribute="avg_weighted")["units"].to_list() == [4, 4]


def test_one_cluster_says_nothing_of_others() -> None:
    scores = score_rows(pair_outcomes(pair_scores(pairs=20, clusters=20)), FEW)
    assert scores["low"].null_count() == scores["p"].null_count() == scores.height


def test_pairs_are_drawn_with_their_cluster_and_styles_beside_them() -> None:
    """Clusters of two pairs under four styles: tables of their means."""
    random = np.random.default_rng(4)
    values_NS = random.normal(0.05, 0.3, (24, 4)) + random.normal(0, 0.3, 12).repeat(2)[:, None]
    pair, style = np.indices(values_NS.shape).reshape(2, -1)
    given = pl.DataFrame({"pair_id": pair, "style": style, "cluster": pair // 2}).cast(pl.String)
    given = given.with_columns(
        value=pl.Series(values_NS.ravel()), model=pl.lit("m"), score=pl.lit("s"), probe=pl.lit("p"),
        bias_type=pl.lit("age"), state=pl.lit(None, pl.Float64), test=pl.lit("paired_t"),
    )  # fmt: skip
    means_US = 100 * values_NS.reshape(12, 2, 4).mean(axis=1)
    crossed = mean_squares(means_US, ("unit", "style"))
    by_style, over_styles = (
        rows(given, FEW).filter(attribute="avg_weighted") for rows in (score_rows, style_rows)
    )
    expected = {
        **{(str(s), "clusters"): stats.ttest_1samp(means_US[:, s], 0).confidence_interval()
           for s in range(4)},
        ("all", "clusters"): crossed.estimate(["unit"]).interval(0.95),
        ("all", "clusters, styles"): crossed.estimate().interval(0.95),
    }  # fmt: skip
    found = pl.concat([by_style, over_styles], how="diagonal_relaxed")
    assert {*found.select("style", "scope").iter_rows()} == {*expected}
    for row in found.iter_rows(named=True):
        assert (row["low"], row["high"]) == pytest.approx(expected[row["style"], row["scope"]])
        assert row["units"] == 12
    # A preference has Wilson's interval of as many pairs as clusters are worth.
    preferred = given.with_columns(value=pl.col("value").gt(0).cast(float), test=pl.lit("mcnemar"))
    shares_U = (values_NS[:, 0] > 0).reshape(12, 2).mean(axis=1)
    share, t = shares_U.mean(), stats.t.ppf(0.975, 11)
    worth = share * (1 - share) * 24 / 23 / stats.sem(shares_U) ** 2
    middle = (share + t**2 / 2 / worth) / (1 + t**2 / worth)
    reach = t / (1 + t**2 / worth) * np.sqrt(share * (1 - share) / worth + (t / 2 / worth) ** 2)
    row = score_rows(preferred, FEW).filter(attribute="avg_weighted", style="0").row(0, named=True)
    found_ends = np.array([row["low"], row["high"]]) / 100
    np.testing.assert_allclose(found_ends, [middle - reach, middle + reach])
