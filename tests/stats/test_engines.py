"""Engines of one model: their component against a plain one, turned gaps, models counted once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import raybias
from raybias import schema
from raybias.report.cautions import of_study
from raybias.report.engines import engine_sentences
from raybias.report.files import write_tables
from raybias.report.page import write_report
from raybias.stats.checks import StatisticsWarning
from raybias.stats.engines import engine_variances, turned
from support.pages import page_of
from support.report_outs import make_study, write_out
from support.stats_data import gap_table

ENGINES = {"b": "a", "c": "a"}


def test_the_component_is_that_of_the_analysis_of_variance() -> None:
    random = np.random.default_rng(3)
    engines_GE = random.normal(0, 0.05, (400, 3))
    values_EGRT = engines_GE.T[:, :, None, None] + random.normal(0, 0.1, (3, 400, 2, 25))
    tables = [gap_table(each, model=name) for each, name in zip(values_EGRT, "abc", strict=True)]
    found = engine_variances([*tables, gap_table(values_EGRT[0], model="other")], ENGINES)
    assert found.schema == pl.Schema(schema.COMPONENTS)
    assert {*found["model"]} == {"a"}
    means_EGT = values_EGRT.mean(axis=2)
    rest_EGT = means_EGT - means_EGT.mean(axis=2, keepdims=True)
    rest_EGT -= (means_EGT - means_EGT.mean(axis=2, keepdims=True)).mean(axis=0)
    cell_G = (rest_EGT**2).sum(axis=(0, 2)) / (2 * 24)
    engine_G = means_EGT.mean(axis=2).var(axis=0, ddof=1) - cell_G / 25
    for facets, levels, expected in (
        ("engine", "3", engine_G), ("engine x template", "3 x 25", cell_G),
    ):  # fmt: skip
        part = found.filter(facets=facets)
        assert {*part["levels"]} == {levels}
        np.testing.assert_allclose(part["variance"].to_numpy(), expected, rtol=1e-9, atol=1e-15)
    assert engine_G.mean() == pytest.approx(0.05**2, rel=0.15)


def test_engines_of_other_sentences_have_no_component() -> None:
    values = np.random.default_rng(1).normal(0, 1, (3, 2, 5))
    tables = [gap_table(values, model="a"), gap_table(values[:, :, 1:], model="b")]
    with pytest.warns(StatisticsWarning, match="engines of a did not read the same sentences of x"):
        assert engine_variances(tables, ENGINES).is_empty()
    assert engine_variances(tables, {}).is_empty()


def test_a_gap_turns_that_is_found_with_one_engine_or_changes_its_side() -> None:
    rows = [
        (group, model, value, survives)
        for group, values in {
            "lost": [(0.2, True), (0.1, False)],
            "stays": [(0.2, True), (0.3, True)],
            "never": [(0.1, False), (-0.1, False)],
            "crosses": [(0.2, True), (-0.2, True)],
            "unjudged": [(0.5, True), (-0.5, None)],
        }.items()
        for model, (value, survives) in zip("ab", values, strict=True)
    ]
    gaps = pl.DataFrame(rows, ["group", "model", "value", "survives"], orient="row").with_columns(
        method=pl.lit("m"), dataset=pl.lit("d"), probe=pl.lit("p"), style=pl.lit("s"),
        attribute=pl.lit("x"), score=pl.lit("rate"), low=pl.col("value") - 0.1,
        high=pl.col("value") + 0.3,
    )  # fmt: skip
    once = gaps.filter(model="a")
    more = [once.with_columns(model=pl.lit("other")), once.with_columns(method=pl.lit("lora"))]
    (row,) = turned(
        pl.concat([gaps, *more]), pl.DataFrame(schema=pl.Schema(schema.COMPONENTS)), {"b": "a"}
    ).iter_rows(named=True)
    assert (row["engines"], row["gaps"], row["turned"]) == (2, 4, 2)
    assert (row["group"], row["low_engine"], row["high_engine"]) == ("unjudged", "b", "a")
    assert row["furthest"] == pytest.approx(1.0)
    assert row["half_width"] == pytest.approx(0.2)
    assert row["sd_engine"] is None


def test_engines_that_agree_are_not_said_to_lie_apart() -> None:
    row = {"model": "a", "attribute": "x", "score": "rate", "engines": 2, "gaps": 3, "turned": 0,
           "furthest": 0.0, "group": "g", "low_engine": "b", "high_engine": "b"}  # fmt: skip
    alike = pl.DataFrame([row], schema=pl.Schema(schema.ENGINES))
    apart = alike.with_columns(furthest=pl.lit(0.25), high_engine=pl.lit("a"), probe=pl.lit("p"))
    said = "a was read by 2 engines: of 3 gaps with a verdict by each, none turn with the engine. "
    assert [*engine_sentences(alike)] == [f"{said}Their gaps are the same."]
    assert [*engine_sentences(apart)] == [
        f"{said}They lie furthest apart on g rate of p: a 0.250 above b."
    ]


def test_the_page_cautions_where_an_endpoint_was_not_asked_as_the_weights_were() -> None:
    ways = {"cued": {}, "bare": {"cue": ""}, "raw": {"prompt_format": "raw"}}
    study = make_study(
        backbones=[
            {"id": "planted", "name": "a"},
            {"id": "planted", "name": "b", "weights_of": "a"},
            {"endpoint": "http://127.0.0.1:1/v1", "model": "m", "name": "c", "weights_of": "a"},
        ],
        methods=[{"kind": "zero_shot", "name": name, **way} for name, way in ways.items()],
    )
    said = [one for one in of_study(study, SimpleNamespace(study=study), {}) if "cue" in one]
    assert len(said) == 1
    assert said[0].startswith(
        "cued did not ask c as it asked a: the cue 'Answer: The sentiment is'"
    )


def test_a_model_counts_once_over_models_and_its_page_tells_what_turns(tmp_path: Path) -> None:
    backbones = [{"id": "planted", "name": name} for name in ("a", "b", "c")]
    backbones[1]["weights_of"] = "a"
    study = make_study(backbones=backbones)
    store = write_out(tmp_path, study)
    tables = write_tables(store, study)
    over = tables["estimates"].filter(model="all", statistic="gap", scope="models")
    assert {*over["units"]} == {2}
    alone = tables["estimates"].filter(pl.col("score").str.ends_with("_extreme"))
    assert {*alone["n"]} == {2}
    found = tables["engines"]
    assert {*found["model"]} == {"a"}
    of_engine = tables["components"].filter(pl.col("facets").str.contains("engine"))
    assert {*of_engine["model"]} == {"a"}
    assert of_engine["variance"].is_finite().all()
    write_report(store, study)
    words = page_of(store).text
    assert "a was read by 2 engines: of 12 gaps with a verdict by each, " in words
    assert "Engines that read the same weights" in words
    said = "have the same weights: what changed is the engine."
    for candidate, told in (("b", True), ("c", False)):
        arms = {"base_is": {"model": "a"}, "candidate_is": {"model": candidate}}
        notes = raybias.compare(tmp_path, tmp_path, **arms).notes
        assert (f"a and {candidate} {said}" in notes) == told
