"""Means over models and rankings: coverage of each scope, shared extremes, the published files."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.stats.checks import StatisticsWarning
from raybias.stats.components import mean_squares
from raybias.stats.over_models import ModelTables, model_tables, reliability
from raybias.stats.word_deals import WordCounts
from raybias.stats.word_variance import WordVariance
from support.stats_data import gap_table

#: Standard deviations of a simulated gap between models, templates, runs, and of their cells.
SPREAD = {"model": 0.03, "template": 0.08, "model x template": 0.08, "run": 0.04, "cell": 0.1}


def simulated(studies: int, runs: tuple[int, ...]) -> tuple[ModelTables, npt.NDArray[np.float64]]:
    """Studies [G] of models that have so many runs, and the true effects [G, M] of their models."""
    random = np.random.default_rng(7)
    templates, models = 30, len(runs)
    effects_GM = random.normal(0, SPREAD["model"], (studies, models))
    shared_G1T = random.normal(0, SPREAD["template"], (studies, 1, templates))
    tables = []
    for place, n in enumerate(runs):
        own_G1T = random.normal(0, SPREAD["model x template"], (studies, 1, templates))
        runs_GR1 = random.normal(0, SPREAD["run"], (studies, n, 1))
        cells_GRT = random.normal(0, SPREAD["cell"], (studies, n, templates))
        values = effects_GM[:, place, None, None] + shared_G1T + own_G1T + runs_GR1 + cells_GRT
        tables.append(gap_table(values, model=f"m{place}"))
    return ModelTables(tuple(tables)), effects_GM


@pytest.mark.parametrize("runs", [(5,) * 6, (2, 3, 8, 5)])
def test_each_scope_covers_what_it_says_and_no_more(runs: tuple[int, ...]) -> None:
    models, effects_GM = simulated(2000, runs)
    found = models.estimates(None)
    for scope, truth_G in (("sentences", effects_GM.mean(axis=1)), ("models", 0.0)):
        low, high = found[scope].interval(0.95)  # type: ignore[index]
        assert ((low < truth_G) & (truth_G < high)).mean() == pytest.approx(0.95, abs=0.02), scope
    low, high = found["sentences"].interval(0.95)
    assert ((low < 0) & (high > 0)).mean() < 0.91


def test_other_models_with_other_words_are_a_scope_of_their_own() -> None:
    models, _ = simulated(2000, (5,) * 6)
    word_sd = 0.05
    # The two words of a group are the same for all models.
    of_words_G = np.random.default_rng(3).normal(0, word_sd / np.sqrt(2), 2000)
    tables = tuple(
        replace(table, values_GRT=table.values_GRT + of_words_G[:, None, None])
        for table in models.tables
    )
    counts = dict.fromkeys(tables[0].groups, 2)
    words = WordVariance(word_sd**2, 0.0, 40, 40.0, counts)
    found = ModelTables(tables).estimates(words)
    held = {}
    for scope, estimate in found.items():
        low, high = estimate.interval(0.95)
        held[scope] = ((low < 0) & (high > 0)).mean()
    assert held["models, words"] == pytest.approx(0.95, abs=0.02)
    assert held["models"] < 0.8


@given(seed=st.integers(0, 1000), models=st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_an_extreme_is_tested_among_all_deals_of_words_groups_and_ends(
    seed: int, models: int
) -> None:
    """Against every deal of six words to three groups of two."""
    random = np.random.default_rng(seed)
    hits_MWT = random.integers(0, 5, (models, 6, 4)).astype(float)
    items_WT, group_W = np.full((6, 4), 4.0), np.repeat(np.arange(3), 2)
    counts = [WordCounts((), group_W, items_WT, hits_WT) for hits_WT in hits_MWT]
    rates_MGT = hits_MWT.reshape(models, 3, 2, 4).mean(axis=2) / 4
    tables = [
        gap_table((rates_GT - rates_GT.mean(axis=0))[:, None], model=f"m{m}")
        for m, rates_GT in enumerate(rates_MGT)
    ]
    found = ModelTables(tuple(tables)).extremes(counts)
    means_MW = hits_MWT.mean(axis=2)
    most = []
    for order in permutations(range(6)):
        if any(order[first] > order[first + 1] for first in (0, 2, 4)):
            continue
        gaps_MG = means_MW[:, order].reshape(models, 3, 2).mean(axis=2)
        counts_G = [
            sum((end == gaps_G[g]) / (gaps_G == end).sum()
                for gaps_G in gaps_MG for end in (at(gaps_G),) if np.ptp(gaps_G))
            for at in (np.min, np.max) for g in range(3)
        ]  # fmt: skip
        most.append(max(counts_G))
    for end in ("lowest", "highest"):
        for value, p in zip(found[end]["value"], found[end]["p"], strict=True):
            exact = np.mean(np.array(most) >= value - 1e-9)
            assert p == pytest.approx(exact, abs=0.06)


def test_names_exchanged_in_sentences_are_tested_for_all_groups_and_ends() -> None:
    """Groups that are alike: some group at some end is at most one time of twenty significant."""
    random = np.random.default_rng(0)
    some = []
    for _ in range(150):
        tables = []
        for m in range(5):
            values = random.normal(0, 1, (4, 1, 12))
            tables.append(gap_table(values - values.mean(axis=0), model=f"m{m}"))
        found = ModelTables(tuple(tables)).extremes([])
        some.append(min(found[end]["p"].min() for end in found) <= 0.05)
    assert np.mean(some) <= 0.1


def test_models_with_as_many_runs_are_one_balanced_table() -> None:
    models, _ = simulated(3, (4, 4, 4))
    values_GMRT = np.stack([table.values_GRT for table in models.tables], axis=1)
    centred = values_GMRT - values_GMRT.mean(axis=(2, 3), keepdims=True)
    runs = (centred.mean(axis=3) ** 2).sum(axis=(1, 2)) * 30 / (3 * 3)
    of_runs = centred - centred.mean(axis=3, keepdims=True)
    cells = of_runs - of_runs.mean(axis=2, keepdims=True)
    cell = (cells**2).sum(axis=(1, 2, 3)) / (3 * 3 * 29)
    template = values_GMRT.mean(axis=(1, 2)).var(axis=1, ddof=1) * 12
    expected = (runs + template - cell) / (3 * 4 * 30)
    np.testing.assert_allclose(models.estimates(None)["sentences"].variance, expected, rtol=1e-9)


def test_equal_extremes_share_a_model() -> None:
    gaps_MG = np.array([[-2, 1, 1], [-2, 1, 1], [-1, -1, 2], [0, 0, 0]]) / 10
    tables = [
        gap_table(np.broadcast_to(gaps_G[:, None, None], (3, 2, 12)).copy(), model=f"m{m}")
        for m, gaps_G in enumerate(gaps_MG)
    ]
    (models,) = model_tables(tables)
    found = models.extremes([])
    np.testing.assert_allclose(found["lowest"]["value"], [2.5, 0.5, 0])
    np.testing.assert_allclose(found["highest"]["value"], [0, 1, 2])
    assert found["lowest"]["p"][2] == 1


def test_models_of_other_sentences_are_not_put_together() -> None:
    values = np.random.default_rng(1).normal(0, 1, (3, 2, 5))
    with pytest.warns(StatisticsWarning, match="did not read the same sentences"):
        assert not [*model_tables([gap_table(values), gap_table(values[:, :, 1:], model="n")])]
    assert not [*model_tables([gap_table(values)])]


def test_reliability_is_that_of_the_analysis_of_variance() -> None:
    """Brennan 2001, persons x items x occasions: groups x runs x templates."""
    random = np.random.default_rng(5)
    rates_GRT = (
        random.normal(0, 0.2, (8, 1, 1))
        + random.normal(0, 0.2, (8, 5, 1))
        + random.normal(0, 0.3, (8, 1, 40))
        + random.normal(0, 0.1, (8, 5, 40))
    )
    crossed = mean_squares(rates_GRT, ("group", "run", "template"))
    parts = crossed.components
    error = (
        parts["group", "run"] / 5
        + parts["group", "template"] / 40
        + parts["group", "run", "template"] / 200
    )
    expected = parts["group",] / (parts["group",] + error)
    # No group's variance falls below that of one facet, which would be taken instead.
    table = gap_table(rates_GRT - rates_GRT.mean(axis=0))
    found = reliability([table], {}, []).filter(scope="sentences").row(0, named=True)
    assert found["value"] == pytest.approx(float(expected), rel=1e-9)
    assert found["n"] == 8
