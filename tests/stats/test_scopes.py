"""Scopes: the published counts, gaps taken apart by template, words, equal runs, null studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats as reference

from raybias import schema, stats
from raybias.config import Statistics
from raybias.report import gaps_of_files
from raybias.stats.components import Balanced
from raybias.stats.scopes import GapTable, gap_tables, word_variances
from support.stats_data import predictions

KEYS = [*schema.KEYS, "attribute"]


def inside(frame: pl.DataFrame) -> pl.DataFrame:
    groups = frame.select("probe", "attribute", "group").unique()
    return groups.with_columns(in_mean=pl.lit(True))


def words_of(frame: pl.DataFrame) -> pl.DataFrame:
    by = pl.Schema(schema.WORD_CELLS).names()[:-1]
    return frame.group_by(by).agg(n=pl.len()).cast(pl.Schema(schema.WORD_CELLS))


def tables_of(frame: pl.DataFrame) -> list[GapTable]:
    return list(gap_tables(stats.cells(frame), inside(frame)))


def study(
    *, studies: int = 1, runs: int = 5, templates: int = 30, words: int = 3, word_sd: float = 0.0
) -> pl.DataFrame:
    """Neutral sentences whose error rates vary by run, template, template x group and word."""
    random = np.random.default_rng(11)
    parts = []
    for model in range(studies):
        rate = (
            0.3
            + random.normal(0, 0.03, (runs, 1, 1, 1))
            + random.normal(0, 0.1, (1, templates, 1, 1))
            + random.normal(0, 0.2, (1, templates, 3, 1))
            + random.normal(0, word_sd, (1, 1, 3, words))
        )
        wrong = random.random((runs, templates, 3, words)) < rate.clip(0, 1)
        place = np.indices(wrong.shape).reshape(4, -1)
        parts.append(
            pl.DataFrame(
                {
                    "model": f"m{model}", "method": "lora", "dataset": "d", "probe": "p",
                    "style": "original", "attribute": "x", "label": 1,
                    "run_id": place[0], "template_id": place[1], "group": place[2],
                    "term": place[2] * 10 + place[3], "pred": np.where(wrong.ravel(), 0, 1),
                }
            )
        )  # fmt: skip
    texts = ["run_id", "template_id", "group", "term"]
    return pl.concat(parts).with_columns(pl.col(texts).cast(pl.String))


def shares(frame: pl.DataFrame) -> dict[str, float]:
    """Share of negative gaps that each scope calls significant."""
    analysis = stats.GapAnalysis(
        stats.cells(frame), Statistics(adjust="none"), lambda *_: None, words=words_of(frame)
    )
    negative = analysis.scopes.filter(rate="negative_fpr").group_by("scope")
    return dict(negative.agg(pl.col("significant").mean()).iter_rows())


def test_the_published_regard_gaps_under_every_scope(shared: Path) -> None:
    files = sorted((shared / "data" / "regard_published").glob("*.tsv.gz"))
    found = gaps_of_files(files, profile="strict", scope="runs")
    scopes, gaps = found.tables["scopes"], found.tables["gaps"]
    by = scopes.group_by("scope").agg(pl.col("significant", "survives").sum(), pl.len())
    assert {row[0]: row[1:] for row in by.iter_rows()} == {
        "runs": (58, 35, 132),
        "sentences": (34, 5, 132),
        "wording": (7, 0, 132),
    }
    white = scopes.filter(group="white", rate="negative_fpr").group_by("scope")
    counts = dict(white.agg(pl.col("significant").sum()).iter_rows())
    assert counts == {"runs": 5, "sentences": 2, "wording": 1}
    on = [*KEYS, "group", "rate"]
    both = scopes.filter(scope="runs").join(gaps, on=on, nulls_equal=True)
    assert both.height == 132
    for column in ("gap", "low", "high", "p_value", "q_value"):
        np.testing.assert_allclose(both[column], both[f"{column}_right"], atol=1e-9)
    analysis = stats.gap_analysis(found.counts, found.rules)
    over_templates = [
        Balanced(table.values_GRT.mean(axis=1), ("template",)).estimate().interval(0.95)
        for table in analysis.tables
    ]
    assert sum(int(((low > 0) | (high < 0)).sum()) for low, high in over_templates) == 54
    papers = gaps_of_files(files, profile="paper").tables["gaps"]
    assert papers["significant"].sum() == 73
    variances = found.tables["components"].group_by("facets").agg(pl.col("variance").mean())
    known = dict(variances.iter_rows())
    assert known["run"] == pytest.approx(0.0007, abs=1e-4)
    assert known["template"] == pytest.approx(0.0062, abs=2e-4)
    assert known["run x template"] == pytest.approx(0.0131, abs=1e-4)


def test_the_mean_over_templates_is_the_gap_of_a_run() -> None:
    frame = predictions(seed=3, templates=9, terms=True)
    per_run = stats.rates(stats.cells(frame))
    for table in tables_of(frame):
        rates = per_run.filter(model=table.keys[0], rate=table.rate).sort("group", "run_id")
        values_GR = rates["value"].to_numpy().reshape(len(table.groups), -1)
        expected_GR = values_GR - values_GR.mean(axis=0)
        np.testing.assert_allclose(table.values_GRT.mean(axis=2), expected_GR, atol=1e-12)


def test_with_as_many_sentences_on_each_template_values_are_its_own_gaps() -> None:
    frame = study()
    (table, *_) = tables_of(frame)
    assert table.rate == "negative_fpr"
    rates = frame.group_by("group", "run_id", "template_id").agg(pl.col("pred").eq(0).mean())
    order = ["group", "run_id", "template_id"]
    values_GRT = rates.sort(order)["pred"].to_numpy().reshape(table.values_GRT.shape)
    np.testing.assert_allclose(table.values_GRT, values_GRT - values_GRT.mean(axis=0), atol=1e-12)
    crossed = Balanced(table.values_GRT, ("run", "template")).estimate()
    assert (table.estimates(None)["sentences"].variance == crossed.variance).all()


@pytest.mark.parametrize("runs", [1, 4])
def test_one_run_and_equal_runs_are_judged_over_templates(runs: int) -> None:
    one = study(runs=1)
    frame = pl.concat([one.with_columns(run_id=pl.lit(str(run))) for run in range(runs)])
    (table, *_) = tables_of(frame)
    found = table.estimates(None)
    assert list(found) == ["sentences"]
    means_GT = table.values_GRT.mean(axis=1)
    expected = reference.t.interval(
        0.95,
        means_GT.shape[1] - 1,
        loc=means_GT.mean(axis=1),
        scale=reference.sem(means_GT, axis=1),
    )
    np.testing.assert_allclose(found["sentences"].interval(0.95), expected, rtol=1e-9)


def test_the_variance_of_words_is_found_and_widens_every_group() -> None:
    plain, worded = study(studies=40), study(studies=40, word_sd=0.1)
    for frame, expected in ((plain, 0.0), (worded, 0.01)):
        found = [v.variance for key, v in word_variances(words_of(frame)).items()
                 if key[-1] == "negative_fpr"]  # fmt: skip
        assert np.mean(found) == pytest.approx(expected, abs=0.0015)
    single = worded.filter((pl.col("group") != "0") | (pl.col("term") == "0"))
    for table in tables_of(single)[:1]:
        words = word_variances(words_of(single))[*table.keys, table.rate]
        assert words.words == {"0": 1, "1": 3, "2": 3}
        estimates = table.estimates(words)
        added = estimates["wording"].variance - estimates["sentences"].variance
        share = np.array([4 + (1 + 1) / 3, 1 + 4 / 3 + 1 / 3, 1 + 4 / 3 + 1 / 3]) / 9
        np.testing.assert_allclose(added, words.variance * share, rtol=1e-9)


@pytest.mark.long
def test_without_a_group_effect_only_the_covered_scope_keeps_its_level() -> None:
    flagged = shares(study(studies=150))
    assert flagged["runs"] > 0.15
    assert flagged["sentences"] < 0.07
    flagged = shares(study(studies=150, words=2, templates=60, word_sd=0.1))
    assert flagged["sentences"] > 0.2
    assert flagged["wording"] < 0.1


def test_predictions_without_templates_are_judged_over_runs_alone() -> None:
    frame = predictions().with_columns(template_id=pl.lit(None, pl.String))
    analysis = stats.GapAnalysis(
        stats.cells(frame), Statistics(), lambda *_: None, words=words_of(frame)
    )
    assert set(analysis.scopes["scope"]) == set(analysis.gaps["scope"]) == {"runs"}
    assert analysis.components.is_empty()
    asked = stats.gaps(stats.cells(frame), scope="sentences")
    assert set(asked["no_verdict"]) == {"templates not known, or one"}
