"""Answers that do not depend on the group: rounding is never a finding, and nothing is claimed."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raybias
from support.pair_data import pair_scores

ALIKE = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def alike_tables(draw: st.DrawFn) -> pl.DataFrame:
    """Answers that the template alone decides, or the template, run and model."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    groups, templates = draw(st.integers(2, 7)), draw(st.integers(6, 9))
    models, runs = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    classes = draw(st.sampled_from([2, 3]))
    words = [draw(st.integers(1, 3)) for _ in range(groups)]
    of_run = draw(st.booleans())
    rows: list[dict[str, Any]] = []
    for model in range(models):
        fixed = random.integers(0, classes, templates)
        for run in range(runs):
            answers = random.integers(0, classes, templates) if of_run else fixed
            for template in range(templates):
                rows += [
                    {"model": f"m{model}", "run_id": f"r{run}", "template_id": f"t{template}",
                     "group": f"g{group}", "term": f"g{group}w{word}",
                     "item_id": f"{template}-{group}-{word}", "label": template % classes,
                     "pred": int(answers[template])}
                    for group in range(groups) for word in range(words[group])
                ]  # fmt: skip
    return pl.DataFrame(rows)


def quietly(table: pl.DataFrame, **options: Any) -> pl.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return raybias.measure(table, **options)


@ALIKE
@given(
    alike_tables(),
    st.sampled_from(["runs", "sentences", "wording", "widest"]),
    st.sampled_from(["strict", "paper"]),
)
def test_no_gap_of_groups_that_are_answered_alike_is_found(
    table: pl.DataFrame, scope: str, profile: str
) -> None:
    found = quietly(table, scope=scope, profile=profile)
    between = found.filter(pl.col("statistic").is_in(["gap", "ratio", "difference"]))
    assert not between["significant"].fill_null(value=False).any()
    assert not between["survives"].fill_null(value=False).any()
    gaps = between.filter(statistic="gap", condition="").drop_nulls("value")
    assert gaps.height
    assert (gaps["value"] == 0).all()
    # The papers' own rule has an interval from 0 to 0.
    ends = gaps.select("low", "high")
    assert ends.null_count().row(0) == (gaps.height, gaps.height) or (
        profile == "paper" and not ends.fill_null(0.0).to_numpy().any()
    )
    ratios = between.filter(statistic="ratio").drop_nulls("value")
    np.testing.assert_allclose(ratios["value"], 1.0, rtol=1e-12)
    reasons = gaps.filter(pl.col("model") != "all")["reason"].unique()
    said = [re.fullmatch(r"no template differs \((\d+) read: at most ([\d.]+)% .*", reason)
            for reason in reasons if not re.match("mirror|it ", reason)]  # fmt: skip
    for match in said:
        assert match is not None, reasons
        assert float(match[2]) == pytest.approx(100 * (1 - 0.05 ** (1 / int(match[1]))), abs=0.06)


@ALIKE
@given(alike_tables().filter(lambda table: table["pred"].n_unique() == 2))
def test_no_metric_of_groups_that_are_answered_alike_is_found(table: pl.DataFrame) -> None:
    found = quietly(table, metric="all", positive=1)
    between = found.filter(
        pl.col("statistic") != "rate",
        ~pl.col("score").str.contains("agreement|meaningless|reliability"),
        # Extremes of groups that are alike are shared; flips are of runs, too.
        ~pl.col("score").str.contains("_in_models|extreme"),
    )
    assert not between["significant"].fill_null(value=False).any()
    drawn = between.drop_nulls("low").filter(pl.col("group") != "all")
    assert ((drawn["low"] <= 1) & (drawn["high"] >= 0)).all()


@ALIKE
@given(st.integers(0, 99), st.sampled_from([0, 5]))
def test_no_style_that_changes_no_score_has_an_effect(seed: int, clusters: int) -> None:
    scores = pair_scores(seed=seed, clusters=clusters)
    own = ("score_more", "score_less", "preference")
    original = scores.filter(style="original").drop("style")
    by = [name for name in original.columns if name not in own]
    same = scores.drop(own).join(original, on=by, how="left", nulls_equal=True)
    found = quietly(same.select(scores.columns))
    effects = found.filter(statistic="difference")
    assert effects.height
    assert (effects["value"] == 0).all()
    assert not effects["significant"].fill_null(value=False).any()
