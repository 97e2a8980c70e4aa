"""Crossed variance components: the textbook's formulas, a mixed model, missing cells, coverage."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy import stats

from raybias.stats.components import Doubles, mean_squares, name_of, symmetric_sums

FACETS = ("run", "template", "word")
#: Standard deviations of the main effects and of the cells.
SPREAD = {"run": 0.3, "template": 0.5, "word": 0.4, "cell": 0.2}


def simulated(shape: tuple[int, ...], *, studies: int, seed: int) -> Doubles:
    """Crossed normal effects [studies, *shape] around 0."""
    random = np.random.default_rng(seed)
    values = random.normal(0, SPREAD["cell"], (studies, *shape))
    for axis, facet in enumerate(FACETS[: len(shape)]):
        levels = [n if place == axis else 1 for place, n in enumerate(shape)]
        values += random.normal(0, SPREAD[facet], (studies, *levels))
    return values


def as_table(values: Doubles, facets: tuple[str, ...]) -> pl.DataFrame:
    rows = [(*place, float(values[place])) for place in product(*map(range, values.shape))]
    return pl.DataFrame(rows, schema=["study", *facets, "value"], orient="row")


def test_two_facets_give_two_way_clustered_standard_errors() -> None:
    values = simulated((5, 12), studies=20, seed=1)
    deviations = values - values.mean(axis=(1, 2), keepdims=True)
    runs, templates = values.shape[1:]
    clustered = (
        (deviations.sum(axis=2) ** 2).sum(axis=1) * runs / (runs - 1)
        + (deviations.sum(axis=1) ** 2).sum(axis=1) * templates / (templates - 1)
    ) / (runs * templates) ** 2
    cells = deviations - deviations.mean(axis=1, keepdims=True)
    cells = cells - deviations.mean(axis=2, keepdims=True)
    residual = (cells**2).sum(axis=(1, 2)) / ((runs - 1) * (templates - 1))
    expected = clustered - residual / (runs * templates)
    found = mean_squares(values, ("run", "template")).estimate()
    # No variance here falls below that of one facet, which would be taken instead.
    np.testing.assert_allclose(found.variance, expected, rtol=1e-12)
    np.testing.assert_allclose(found.mean, values.mean(axis=(1, 2)), rtol=1e-12)


def test_one_facet_gives_the_t_interval_of_its_means() -> None:
    values = simulated((5, 12), studies=3, seed=2)
    low, high = mean_squares(values, ("run", "template")).estimate(["run"]).interval(0.9)
    means = values.mean(axis=2)
    expected = stats.t.interval(0.9, 4, loc=means.mean(axis=1), scale=stats.sem(means, axis=1))
    np.testing.assert_allclose((low, high), expected, rtol=1e-12)
    p = mean_squares(values, ("run", "template")).estimate(["run"]).p_value()
    np.testing.assert_allclose(p, stats.ttest_1samp(means, 0, axis=1).pvalue, rtol=1e-9)


def test_components_are_those_of_a_mixed_model() -> None:
    """REML equals the analysis of variance in balanced tables whose components are positive."""
    import pandas
    import statsmodels.formula.api as smf

    values = simulated((6, 8), studies=1, seed=5)
    table = as_table(values, ("run", "template"))
    frame = pandas.DataFrame(table.to_dict(as_series=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = smf.mixedlm(
            "value ~ 1", frame, groups=np.ones(len(table)), re_formula="0",
            vc_formula={"run": "0 + C(run)", "template": "0 + C(template)"},
        ).fit(reml=True, method="powell", xtol=1e-10, ftol=1e-14)  # fmt: skip
    ours = mean_squares(values, ("run", "template"))
    found = [ours.components[key][0] for key in (("run",), ("template",), ("run", "template"))]
    expected = [*(fitted.vcomp), fitted.scale]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(ours.estimate().variance), fitted.bse_fe, rtol=1e-4)


def test_symmetric_sums_equal_the_closed_form_and_stay_unbiased_with_cells_missing() -> None:
    values = simulated((5, 20, 3), studies=60, seed=3)
    closed = mean_squares(values, FACETS).components
    table = as_table(values, FACETS)
    whole = symmetric_sums(table, ["study"], FACETS).sort("study")
    for names, expected in closed.items():
        np.testing.assert_allclose(whole[name_of(names)], expected, atol=1e-9)
    kept = pl.Series(np.random.default_rng(4).random(table.height) < 0.8)
    some = symmetric_sums(table.filter(kept), ["study"], FACETS)
    for facet in FACETS:
        near = pytest.approx(whole[facet].mean(), abs=0.02)
        assert some[facet].mean() == near, facet


def test_what_does_not_vary_has_no_interval() -> None:
    same = mean_squares(np.full((1, 4, 6), 0.25), ("run", "template")).estimate()
    assert np.isnan(same.interval(0.95)).all()
    assert np.isnan(same.p_value()).all()


def test_a_detectable_mean_is_found_as_often_as_it_says() -> None:
    values = simulated((12, 30), studies=2000, seed=8)
    mean = float(np.median(mean_squares(values, FACETS[:2]).estimate().detectable(0.95)))
    shifted = mean_squares(values + mean, FACETS[:2])
    low, _ = shifted.estimate().interval(0.95)
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.04)
