"""A finished study from Python: its tables, runs and predictions as frames."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import raybias
from raybias import schema
from raybias.errors import ConfigError
from raybias.measures.prediction_rows import gap_rows
from raybias.report.files import rules_of_files
from raybias.report.headline import by_scope
from raybias.report.judged import Judged
from raybias.report.page import write_report
from support.report_outs import make_study, pair_study, write_out, write_pair_out


@pytest.mark.long
def test_results_are_what_the_report_wrote(tmp_path: Path) -> None:
    store = write_out(tmp_path / "out", make_study())
    gaps = gap_rows(write_report(store, make_study()), "widest")
    results = raybias.open(store.uri)
    assert results.study == make_study()
    assert_frame_equal(results.gaps.collect(), gaps, check_row_order=False)
    assert results.accuracy.collect()["value"].is_not_null().all()
    rates = results.by_group.collect()
    assert rates.height == gaps.height
    inside = gaps.filter(condition="").group_by("score")
    most = inside.agg(most=pl.col("value").max() - pl.col("value").min())
    both = results.difference.collect().join(most, on="score")
    assert both["value"].to_list() == pytest.approx(both["most"].to_list())
    assert both["reason"].to_list() == ["leaves out quixlan"] * 2
    named = rates.filter(pl.col("group") != "quixlan")
    means = named.group_by("score").agg(pl.col("value").mean())
    mean = results.overall.collect().join(means, on="score")
    assert mean["value"].to_list() == pytest.approx(mean["value_right"].to_list())
    kept = results.runs.filter("selected").select("run_id").collect()["run_id"].to_list()
    read = results.predictions.group_by("run_id").len().collect()
    assert sorted(read["run_id"]) == sorted(kept)
    assert results.predictions.collect_schema() == pl.Schema(schema.PREDICTIONS)
    assert {"estimates", "components", "composition"} <= {*results.tables}
    assert Path(results.report).exists()
    assert by_scope(Judged.of(results.estimates.collect())) in str(results)
    assert len(results.gaps.plot().figures) == 1
    assert "quixlan" in results._repr_html_()


@pytest.mark.long
def test_a_study_of_pairs_says_where_its_tables_are(tmp_path: Path) -> None:
    results = raybias.write_report(write_pair_out(tmp_path / "out", pair_study()).uri)
    for read in ("gaps", "accuracy", "answers"):
        with pytest.raises(raybias.BadInput, match=r"has no gaps, since.* read one of estimates"):
            getattr(results, read)
    assert results.estimates.collect().height > 0
    assert "Over all pairs:" in str(results)
    assert "<table" in results._repr_html_()


def test_a_folder_without_a_study_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(raybias.BadInput, match=r"holds no study\.yaml"):
        raybias.open(tmp_path)
    store = write_out(tmp_path / "out", make_study())
    with pytest.raises(raybias.BadInput, match="has no table 'gaps'"):
        raybias.open(store.uri).table("gaps")


def test_what_a_study_sets_itself_holds_wherever_its_results_are_read(tmp_path: Path) -> None:
    chosen = {"scope": "runs", "adjust": "none", "level": 0.8, "bootstrap_draws": 150}
    study = make_study(statistics=chosen)
    write_report(write_out(tmp_path / "gaps", study), study)
    assert {*raybias.open(tmp_path / "gaps").gaps.collect()["scope"]} == {"runs"}
    estimates = raybias.open(tmp_path / "gaps").estimates.collect()
    measured = raybias.measure(tmp_path / "gaps/predictions")
    assert_frame_equal(measured, estimates, check_row_order=False)
    named = raybias.write_report(tmp_path / "gaps", profile=study.profile)
    assert {*named.gaps.collect()["scope"]} == {"wording"}, "a profile that is named goes first"
    write_pair_out(tmp_path / "pairs", pair_study(statistics=chosen))
    rules = rules_of_files([str(tmp_path / "pairs")])
    assert (rules.adjust, rules.level, rules.bootstrap_draws) == ("none", 0.8, 150)
    papers = [
        str(write_pair_out(tmp_path / name, pair_study(profile="paper")).uri) for name in "ab"
    ]
    assert not rules_of_files(papers).strict
    with pytest.raises(ConfigError, match="judged differently"):
        rules_of_files([papers[0], f"{tmp_path}/pairs/pair_scores"])
