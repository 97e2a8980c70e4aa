"""Figures: valid, the same bytes each time, readable without colour."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import polars as pl
import pytest

from raybias import schema
from raybias.engine.adapters.schedule import should_stop
from raybias.measures.prediction_rows import gap_rows
from raybias.methods import Tuned
from raybias.report import figure_style, gap_forests
from raybias.report.figure_parts import slug
from raybias.report.run_figures import run_figures
from raybias.report.tables import write_tables
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


def texts_of(svg: str) -> set[str]:
    nodes = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(node.itertext()) for node in nodes}


@pytest.mark.long
@pytest.mark.parametrize("models", [1, 3, 8])
def test_gap_figures_are_valid_and_deterministic(tmp_path: Path, models: int) -> None:
    gaps = gaps_of(tmp_path, models)
    before = dict(mpl.rcParams)
    drawn = gap_forests.gap_figures(gaps, level=0.95)
    assert dict(mpl.rcParams) == before
    assert set(drawn) == {("planted", "origin", rate) for rate in ("negative_fpr", "positive_fpr")}
    again = gap_forests.gap_figures(gaps, level=0.95)
    for key, figure in drawn.items():
        assert figure.svg == again[key].svg
        texts = texts_of(figure.svg)
        named = " ".join(texts)
        assert all(each in named for each in (HOSTILE[0], HOSTILE[1], HOSTILE[2], "other"))
        assert "filled: significant; hollow: not; broken: no verdict" in texts
        assert models == 1 or {f"m{i}" for i in range(models)} <= texts
        assert "date" not in figure.svg.lower().split("<title>")[0]
        assert "http" not in re.sub(r'(xmlns[:a-z]*|PUBLIC|DTD)[^>]*"http[^"]*"', "", figure.svg)


def test_intervals_are_nested_in_one_figure_of_the_clearest_gaps() -> None:
    gaps = [("near", "race", 0.02), ("far", "race", 0.3), ("below", "age", -0.1)]
    rows = [
        {
            **dict.fromkeys(schema.KEYS, "m"), "attribute": attribute, "group": group,
            "score": "negative_fpr", "value": gap, "scope": scope, "low": gap - reach,
            "high": gap + reach, "p": 0.05 / abs(gap), "survives": abs(gap) > reach,
        }
        for group, attribute, gap in gaps
        for scope, reach in (("runs", 0.05), ("sentences", 0.08), ("wording", 0.2))
    ]  # fmt: skip
    scopes = pl.DataFrame(rows)
    drawn = gap_forests.nested_figure(scopes, level=0.95)
    assert drawn is not None
    again = gap_forests.nested_figure(scopes.sort("scope", "group"), level=0.95)
    assert again is not None
    assert drawn.svg == again.svg
    texts = texts_of(drawn.svg)
    assert {"far, called negative, race", "below, called negative, age"} <= texts
    assert "redrawn, thickest line first: only seeds, sentences too, words too" in texts
    assert 'class="truth"' not in drawn.svg
    told = "far, called negative, race: +0.300, only seeds [+0.250, +0.350], sentences too"
    assert told in drawn.svg
    truth = pl.DataFrame({"score": ["negative_fpr"], "group": ["far"], "truth": [0.25]})
    known = gap_forests.nested_figure(scopes, level=0.95, truth=truth)
    assert known is not None
    assert known.svg.count('class="truth"') == 1
    many = [scopes.with_columns(model=pl.lit(f"m{n}")) for n in range(20)]
    most = gap_forests.nested_figure(pl.concat(many), level=0.95)
    assert most is not None
    assert len([text for text in texts_of(most.svg) if ", m" in text]) == 12
    assert gap_forests.nested_figure(scopes.clear(), level=0.95) is None


def test_significance_shows_in_the_fill(tmp_path: Path) -> None:
    gaps = gaps_of(tmp_path, 1)
    for value in (True, False):
        flat = gaps.with_columns(survives=pl.lit(value))
        svg = gap_forests.gap_figures(flat, level=0.95)["planted", "origin", "negative_fpr"].svg
        assert svg.count("fill:var(--paper") == (0 if value else svg.count("<circle"))


def test_a_gap_without_a_verdict_is_not_drawn_as_not_significant(tmp_path: Path) -> None:
    gaps = gaps_of(tmp_path, 1)
    unjudged = pl.col("group") == HOSTILE[0]
    some = gaps.with_columns(
        *(pl.when(~unjudged).then(name).alias(name) for name in ("significant", "survives")),
        reason=pl.when(unjudged).then(pl.lit("runs do not vary")),
    )
    place = ("planted", "origin", "negative_fpr")
    judged, partly = (
        gap_forests.gap_figures(frame, level=0.95)[place].svg for frame in (gaps, some)
    )
    assert judged.count("stroke-dasharray") == 0
    assert partly.count("stroke-dasharray") == 1


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
    (drawn,) = run_figures(read_runs(store), study.methods).values()
    assert f"may stop from step {steps[next(ends) - 1]:,}</desc>" in drawn.svg


def test_undefined_gaps_and_intervals_are_left_out(tmp_path: Path) -> None:
    gaps = gaps_of(tmp_path, 1)
    none = pl.lit(None, pl.Float64)
    empty = gaps.with_columns(value=none, low=none, high=none, significant=pl.lit(None, pl.Boolean))
    drawn = gap_forests.gap_figures(empty, level=0.9)
    ET.fromstring(drawn["planted", "origin", "negative_fpr"].svg)


def test_run_figure_marks_kept_and_diverged(tmp_path: Path) -> None:
    study = make_study()
    store = write_out(tmp_path, study)
    (drawn,) = run_figures(read_runs(store), study.methods).values()
    ET.fromstring(drawn.svg)
    assert "diverged" in drawn.svg
    assert all(str(seed) in drawn.svg for seed in study.methods[0].seeds)
    assert "kept seeds: " in drawn.svg


def test_inlined_figures_share_no_ids_and_take_the_pages_colours(tmp_path: Path) -> None:
    store = write_out(tmp_path, study := make_study())
    (drawn,) = run_figures(read_runs(store), study.methods).values()
    pages = [figure_style.inline(drawn.svg, f"f{i}") for i in range(2)]
    ids = [set(re.findall(r'\bid="([^"]+)"', page)) for page in pages]
    assert not ids[0] & ids[1]
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r'href="#([^"]+)"', page)) <= own
        assert figure_style.INK not in page
        assert "currentColor" in page


def test_slugs_stay_inside_and_apart() -> None:
    assert slug("gaps", "amazon", "age", "negative_fpr") == "gaps.amazon.age.negative_fpr"
    assert "/" not in slug("../../etc", "x")
    assert slug("a/b") != slug("a-b") != slug("a b")
