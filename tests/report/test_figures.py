"""Figures: valid, the same bytes each time, readable without colour, of a few hundred points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest

from raybias import schema
from raybias.engine.adapters.options import should_stop
from raybias.measures.prediction_rows import KIND, gap_rows
from raybias.methods import Full, Tuned
from raybias.report.files import write_tables
from raybias.report.forest import gap_forests
from raybias.report.rendering import Drawn, slug
from raybias.report.run_figures import run_figures, thinned
from raybias.study_record import read_runs
from support.report_outs import make_study, write_out

HOSTILE = ("<b>&\"'", "$x^2$", "中文", "a" * 60, "other")


def gaps_of(folder: Path, models: int) -> pl.DataFrame:
    study = make_study(
        tuple(f"m{i}" for i in range(models)), probes=[{"source": "planted"}],
        methods=[{"seeds": [1, 2, 3, 4], "keep": 3}],
    )  # fmt: skip
    store = write_out(folder, study, groups=HOSTILE, biased=HOSTILE[0])
    return gap_rows(write_tables(store, study)["estimates"], "widest")


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    return gaps_of(tmp_path_factory.mktemp("one"), 1)


def texts_of(figures: Sequence[Drawn]) -> list[str]:
    nodes = [
        node
        for figure in figures
        for node in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    return ["".join(node.itertext()) for node in nodes]


@pytest.mark.long
def test_forests_are_valid_and_deterministic(tmp_path: Path) -> None:
    found = gaps_of(tmp_path, 3)
    drawn = gap_forests(found, level=0.95)
    assert drawn == gap_forests(found, level=0.95)
    assert [one.name for one in drawn] == ["answer", "gaps.planted.origin"]
    texts = texts_of(drawn)
    assert {f"m{i}, called negative" for i in range(3)} <= {*texts}
    named = " ".join(texts)
    for said in (*HOSTILE[:3], "other", "filled: significant after correction; hollow: not"):
        assert said in named
    for figure in drawn:
        assert "http" not in re.sub(r'xmlns="http[^"]*"', "", figure.svg)
        assert " id=" not in figure.svg


def test_intervals_are_nested_in_one_figure_of_the_clearest_gaps() -> None:
    gaps = [("near", "race", 0.02), ("far", "race", 0.3), ("below", "age", -0.1)]
    rows = [
        {
            **dict.fromkeys((*schema.KEYS, "condition"), "m"), "kind": KIND, "group": group,
            "attribute": attribute, "score": "negative_fpr", "value": gap, "scope": scope,
            "low": gap - reach, "high": gap + reach, "survives": abs(gap) > reach,
            "significant": True,
        }
        for group, attribute, gap in gaps
        for scope, reach in (("runs", 0.05), ("sentences", 0.08), ("wording", 0.2))
    ]  # fmt: skip
    scopes = pl.DataFrame(rows)
    drawn = gap_forests(scopes, level=0.95)
    assert drawn == gap_forests(scopes.sort("scope"), level=0.95)
    texts = texts_of(drawn)
    assert {"far, race", "below, age"} <= {*texts}
    named = " ".join(texts)
    assert "redrawn, thickest line first: only seeds, sentences too, words too" in named
    assert "95% intervals, in percentage points" in named
    assert 'class="truth"' not in drawn[0].svg
    told = "far, race: +30.0, only seeds [+25.0, +35.0], sentences too [+22.0, +38.0], words too"
    assert told in drawn[0].svg
    truth = pl.DataFrame({"score": ["negative_fpr"], "group": ["far"], "truth": [0.25]})
    two = pl.concat([scopes, scopes.with_columns(score=pl.lit("positive_fpr"))])
    assert gap_forests(two, level=0.95, truth=truth)[0].svg.count('class="truth"') == 1
    many = pl.concat([scopes.with_columns(model=pl.lit(f"m{n}")) for n in range(20)])
    first, *_ = gap_forests(many, level=0.95)
    assert len([text for text in texts_of([first]) if ", m" in text]) == 12
    assert "the clearest 12 of 60" in " ".join(texts_of([first]))
    assert gap_forests(scopes.clear(), level=0.95) == []


def test_a_verdict_shows_in_the_fill_and_its_lack_in_the_line(gaps: pl.DataFrame) -> None:
    for value in (True, False):
        (drawn,) = gap_forests(gaps.with_columns(survives=pl.lit(value)), level=0.95)
        assert drawn.svg.count("fill:var(--paper") == (0 if value else drawn.svg.count("<circle"))
    unjudged = pl.col("group") == HOSTILE[0]
    some = gaps.with_columns(
        *(pl.when(~unjudged).then(name).alias(name) for name in ("significant", "survives"))
    )
    broken = [
        gap_forests(frame, level=0.95)[0].svg.count("stroke-dasharray") for frame in (gaps, some)
    ]
    assert broken == [0, 2]
    none = pl.lit(None, pl.Float64)
    assert gap_forests(gaps.with_columns(value=none, low=none, high=none), level=0.9) == []


@pytest.mark.parametrize("early_stop", [{}, {"after_step": 1000, "count_early": False}])
def test_the_run_figure_says_the_first_step_at_which_a_run_may_stop(
    tmp_path: Path, early_stop: dict[str, object]
) -> None:
    study = make_study(methods=[{"early_stop": early_stop}])
    store = write_out(tmp_path, study)
    method = study.methods[0]
    assert isinstance(method, Tuned)
    steps = [method.eval_every * place for place in range(1, 40)]
    rising = [float(step) for step in steps]
    ends = (n for n in range(1, 40) if should_stop(rising[:n], steps[:n], method.early_stop))
    (drawn,) = run_figures(read_runs(store), study.methods)
    assert f"may stop from step {steps[next(ends) - 1]:,}</desc>" in drawn.svg
    assert "diverged: 1004" in drawn.svg
    assert all(str(seed) in drawn.svg for seed in method.seeds)
    assert "kept seeds: " in drawn.svg
    # A method that the study no longer has still has its runs.
    assert run_figures(read_runs(store), [Full(name="other")])


def test_thousands_of_evaluations_draw_as_a_few_hundred_means() -> None:
    losses = list(np.arange(5001.0))
    x, y, size = thinned(losses, range(5, 5 * 5002, 5))
    assert (len(x), size) == (193, 26)
    assert y[0] == np.mean(losses[:26])
    assert y[-1] == np.mean(losses[26 * 192 :])
    assert x[0] == 5 * (np.mean(range(26)) + 1)
    assert thinned([3.0, 2.0], [5, 10]) == ([5.0, 10.0], [3.0, 2.0], 1)
    assert thinned([], []) == ([], [], 1)


def test_slugs_stay_inside_and_apart() -> None:
    assert slug("gaps", "amazon", "age", "negative_fpr") == "gaps.amazon.age.negative_fpr"
    assert "/" not in slug("../../etc", "x")
    assert slug("a/b") != slug("a-b") != slug("a b")
