"""What to add next: predictions hold in larger studies, the cheapest design, its words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats as reference

import raybias
from raybias import schema
from raybias.errors import ConfigError
from raybias.report.design import Addition, design_sentences
from raybias.stats.components import Doubles, mean_squares
from raybias.stats.counts import count_cells
from raybias.stats.design import Costs, Design, Sources, cheapest, design, variance_rows
from raybias.stats.scopes import GapTable, Scope
from raybias.stats.word_variance import WordVariance
from support.commands import exit_code, refused
from support.stats_data import analysed, gap_table, predictions, word_cells

COSTS = Costs(run=1000.0, item=1.0, items=500)


def gaps_of(runs: int, templates: int, *, studies: int) -> Doubles:
    """Gaps [studies, runs, templates] with standard deviations of .03, .1 and .15."""
    random = np.random.default_rng(runs * 1000 + templates)
    values = random.normal(0, 0.15, (studies, runs, templates))
    values += random.normal(0, 0.03, (studies, runs, 1))
    return values + random.normal(0, 0.1, (studies, 1, templates))


def tables(*studies: tuple[GapTable, WordVariance | None]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The components and gaps of studies, whose groups are all in the mean."""
    rows = pl.concat(
        variance_rows([table], {table.place: words} if words else {}) for table, words in studies
    )
    gaps = rows.select(*schema.KEYS, "attribute", "score", "group").unique()
    judged = {"in_mean": pl.lit(True), "n": pl.lit(100), "reason": pl.lit(None, pl.String),
              "scope": pl.lit("sentences"), "low": pl.lit(None, pl.Float64),
              "high": pl.lit(None, pl.Float64)}  # fmt: skip
    return rows, gaps.with_columns(**judged)


def test_a_small_study_predicts_the_error_of_a_larger_one() -> None:
    components, gaps = tables((gap_table(gaps_of(4, 20, studies=1000)), None))
    larger = gaps_of(12, 90, studies=3000).mean(axis=(1, 2))
    wanted = reference.t.ppf(0.975, 40) * larger.std()
    found = design(components, gaps, COSTS, target=wanted)
    now = found.row(0, named=True)
    assert (now["plan"], now["runs"], now["templates"]) == ("now", 4, 20)
    actual = mean_squares(gaps_of(4, 20, studies=3000), ("run", "template")).estimate()
    low, high = actual.interval(0.95)
    assert now["half_width"] == pytest.approx(np.mean((high - low) / 2), rel=0.06)
    parts = {"run": 0.03**2, "template": 0.1**2, "run x template": 0.15**2}
    sources = Sources(Design(4, 20, 1), parts, {}, 600)
    width = sources.half_width(Design(12, 90, 1), "sentences", 0.95)
    assert width == pytest.approx(wanted, rel=0.03)
    best = found.filter(plan="cheapest").row(0, named=True)
    assert best["reached"]
    chosen = Design(best["runs"], best["templates"], 1)
    predicted = sources.half_width(chosen, "sentences", 0.95)
    assert predicted == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("scope", ["runs", "sentences", "wording"])
def test_the_design_as_it_is_has_the_intervals_that_were_reached(scope: Scope) -> None:
    """Also of few events, whose variance is larger than the components say."""
    table = predictions(seed=4, models=1, runs=3, templates=30, terms=True)
    found = analysed(count_cells(table), words=word_cells(table), scope=scope)
    designs = design(found.components, found.gaps, COSTS, target=0.001, scope=scope)
    reached = found.gaps.filter("in_mean", pl.col("reason").is_null(), scope=scope)
    for row in designs.filter(plan="now").iter_rows(named=True):
        own = reached.filter(score=row["score"])
        half = own.select((pl.col("high") - pl.col("low")).mean() / 2).item()
        assert row["half_width"] == pytest.approx(half)
    # More of everything is predicted from there.
    more = designs.filter(plan="runs" if scope == "runs" else "templates")
    assert (more["half_width"] < designs.filter(plan="now")["half_width"].max()).all()


def test_the_cheapest_design_is_that_of_a_search_through_all() -> None:
    parts = {"run": 0.02**2, "template": 0.1**2, "run x template": 0.1**2, "word": 0.02**2}
    sources = Sources(Design(3, 10, 1), parts, {"a": 1, "b": 3}, 60)

    def width(tried: Design) -> float:
        return sources.half_width(tried, "wording", 0.95)

    found = cheapest(sources, ["runs", "templates", "words"], width, 0.06, COSTS)
    tried = [
        Design(runs, templates, words)
        for runs in range(3, 20)
        for templates in range(10, 120)
        for words in range(1, 12)
    ]
    reached = [one for one in tried if width(one) <= 0.06]
    least = min(sources.cost(one, COSTS) for one in reached)
    assert found is not None
    assert sources.cost(found, COSTS) == pytest.approx(least)


def test_only_who_can_add_runs_is_advised_to() -> None:
    """Of files without a study the cheapest design has their runs, if that is enough."""
    random = np.random.default_rng(5)
    values = random.normal(0, 0.15, (6, 3, 12)) + random.normal(0, 0.05, (6, 1, 12))
    components, gaps = tables((gap_table(values), None))
    cheap = replace(COSTS, run=0.0, items=1)
    own = design(components, gaps, cheap, target=0.05).filter(plan="cheapest")
    files = design(components, gaps, replace(cheap, adds_runs=False), target=0.05)
    assert own["runs"].item() > 3
    assert files.filter(plan="cheapest")["runs"].item() == 3
    # Nothing but runs narrows these intervals.
    alone = replace(cheap, adds_runs=False)
    of_runs = design(components, gaps, alone, target=0.02, scope="runs").filter(plan="cheapest")
    assert of_runs["runs"].item() > 3


def test_what_does_not_help_is_said_to_be_no_help() -> None:
    values = np.random.default_rng(2).normal(0, 0.1, (6, 5, 30)).mean(axis=1, keepdims=True)
    values = values + np.random.default_rng(3).normal(0, 0.02, (6, 5, 30))
    study = gap_table(values)
    found = design(*tables((study, None)), COSTS, target=0.01)
    (said,) = design_sentences(found, 0.01)
    assert said.startswith("p, x, negative_fpr: the half width is 0.0")
    before, after = said.split(" 10 more seeds: ")
    width = before.removeprefix("p, x, negative_fpr: the half width is ").split(",")[0]
    assert after.startswith(f"{width}, above the target 0.01. 60 more templates: 0.010, within the")
    assert (
        "0.01 (four times of five 0.009 to 0.012), at 6,000 items read. Cheapest: 60 more" in said
    )
    # Of files, nobody at hand can add runs; a level can be several rows.
    rows = design_sentences(found, 0.01, Addition(made_here=False, unit="row", size=3.0))[0]
    assert f"10 more runs by who made the files: {width}, above the target 0.01. 180 more" in rows
    assert not re.search("seed|tun|template", rows)
    # As many digits as tell a width from the target.
    near = found.with_columns(half_width=pl.lit(0.02003), reached=pl.lit(False))
    assert "60 more templates: 0.02003, above the target 0.02." in design_sentences(near, 0.02)[0]
    words = WordVariance(0.05**2, 0.0, 10.0, 10.0, dict.fromkeys(study.groups, 2))
    found = design(*tables((study, words)), COSTS, target=0.03)
    assert found["scope"].unique().to_list() == ["wording"]
    more = found.filter(plan="words").row(0, named=True)
    assert more["reached"]
    assert more["words"] > 2
    assert more["runs"] == 5
    enough = design(*tables((study, None)), COSTS, target=0.5)
    assert enough["plan"].to_list() == ["now"]
    assert design_sentences(enough, 0.5)[0].endswith(
        "within the target 0.5: nothing need be added."
    )
    far = design(*tables((study, words)), COSTS, target=0.0001)
    assert (
        "None of these alone reaches it; words limit it most. No design"
        in (design_sentences(far, 0.0001)[0])
    )
    # One run does not say how runs vary: more of them are no plan, and no scope of their own.
    components, gaps = tables((study, None))
    single = components.filter(facets="template"), gaps
    assert design(*single, COSTS, target=0.01)["plan"].to_list() == ["now", "templates", "cheapest"]
    assert design(*single, COSTS, scope="runs").is_empty()


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan")])
def test_a_half_width_that_no_design_has_is_refused(target: float, tmp_path: Path) -> None:
    predictions(runs=3, templates=12).write_parquet(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match="is not above 0; such as"):
        raybias.design([tmp_path / "p.parquet"], target=target)


def test_predictions_are_planned_for_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.parquet"
    predictions(runs=3, templates=12).write_parquet(file)
    found = raybias.design([file], target=0.1)
    assert found.schema == pl.Schema(schema.DESIGN)
    assert found["unit"].unique().to_list() == ["items read"]
    assert exit_code("measure", file, "--target", "0.1") == 0
    shown = capsys.readouterr().out
    assert "made, colour, negative_fpr: the half width is" in shown
    assert not re.search("seeds|tuning", shown.replace("where seeds", ""))
    assert "Only who made these files can add runs" in shown
    assert "What to add next, for a half width of 0.1" in shown
    predictions().with_columns(template_id=pl.lit(None, pl.String)).write_parquet(file)
    line = refused(capsys, "measure", file, "--target", "0.1")
    assert "templates of these predictions are not known" in line
