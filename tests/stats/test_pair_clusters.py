"""Pairs in clusters: the algebra of cluster-robust means, coverage, and what is drawn is said."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.measures.entries.pairs import pair_outcomes
from raybias.measures.kind import Rules
from raybias.measures.paired import effect_rows, score_rows, style_rows
from raybias.stats.components import Doubles, cluster_robust
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


def in_clusters(random: np.random.Generator) -> Doubles:
    """Outcomes [200 studies, 600 pairs], 60% of them 1, alike within clusters of ten."""
    spread = np.sqrt(0.3 / 0.7)
    latent = random.normal(size=(200, 600))
    latent += spread * random.normal(size=(200, 60)).repeat(10, axis=1)
    return (latent < stats.norm.ppf(0.6) * np.sqrt(1 + spread**2)).astype(float)


def outcomes(values_RNS: Doubles, cluster_N: np.ndarray | None, test: str) -> pl.DataFrame:
    """Outcomes of pairs under styles, of studies as if each were a model."""
    study, pair, style = np.indices(values_RNS.shape).reshape(3, -1)
    places = pl.DataFrame({"model": study, "pair_id": pair, "style": style}).cast(pl.String)
    return places.with_columns(
        value=pl.Series(values_RNS.ravel()), score=pl.lit("s"), probe=pl.lit("p"),
        bias_type=pl.lit("age"), state=pl.lit(None, pl.Float64), test=pl.lit(test),
        cluster=pl.lit(None, pl.String) if cluster_N is None
        else pl.Series(cluster_N[pair]).cast(pl.String),
    )  # fmt: skip


@pytest.mark.long
def test_intervals_of_pairs_in_clusters_of_ten_cover_the_truth() -> None:
    random, cluster, coverage = np.random.default_rng(2), np.repeat(np.arange(60), 10), {}
    for what, share, test, times in (
        ("preference", 0.6, "mcnemar", 100), ("effect", 0.0, "paired_t", 100)
    ):  # fmt: skip
        values = in_clusters(random)
        if what == "effect":
            # A style's effect is a mean of paired differences, here of writers that turn alike.
            values = values - in_clusters(random)
        for drawn, known in (("clusters", cluster), ("pairs", None)):
            given = outcomes(values[..., None], known, test).with_columns(style=pl.lit("original"))
            table = score_rows(given, FEW).filter(attribute="avg_weighted")
            held = (table["low"] <= times * share) & (table["high"] >= times * share)
            coverage[what, drawn] = held.mean()
    for what in ("preference", "effect"):
        assert 0.93 <= coverage[what, "clusters"] <= 0.97
        assert coverage[what, "pairs"] <= 0.91


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


@pytest.mark.long
def test_the_scope_of_styles_covers_other_styles_and_the_scope_of_pairs_does_not() -> None:
    """Writers, pairs, styles and cells that vary; 9 styles of 90 pairs by 30 writers."""
    random, studies, writer = np.random.default_rng(4), 200, np.repeat(np.arange(30), 3)
    values = random.normal(0.05, 0.3, (studies, 90, 1)) + random.normal(0, 0.15, (studies, 1, 9))
    values = values + random.normal(0, 0.25, (studies, 30))[:, writer, None]
    values = values + random.normal(0, 0.3, (studies, 90, 9))
    table = style_rows(outcomes(values, writer, "paired_t"), Rules())
    table = table.filter(attribute="avg_weighted")
    held = table.group_by("scope").agg(
        ((pl.col("low") <= 5) & (pl.col("high") >= 5)).mean(), pl.col("units").first()
    )
    coverage = dict(held.select("scope", "low").iter_rows())
    assert 0.93 <= coverage["clusters, styles"] <= 0.98
    assert coverage["clusters"] < 0.9
    assert held["units"].to_list() == [30, 30]
