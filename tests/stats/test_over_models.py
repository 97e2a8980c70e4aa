"""Means over models and rankings: coverage of each scope, shared extremes, the published files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from raybias.stats.checks import StatisticsWarning
from raybias.stats.components import mean_squares
from raybias.stats.over_models import ModelTables, model_tables, reliability
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
    found = models.extremes()
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
