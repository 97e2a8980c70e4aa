"""The tables of an OUT: contract columns, missing values, coverage, reference groups."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from report_outs import make_study, write_out

from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.report import gap_table, restated, write_tables
from raybias.report.tables import markdown, write_frame
from raybias.storage import Store

CONTRACT = "model,attribute,group,rate,gap,low,high,half_width,n_runs,significant"


def test_tables_hold_the_contract_in_three_formats(tmp_path: Path) -> None:
    study = make_study()
    store = write_out(tmp_path, study)
    tables = write_tables(store, study)
    lines = store.read_text("tables/gaps.csv").splitlines()
    assert lines[0].startswith(CONTRACT + ",")
    assert lines[0].split(",") == schema.GAPS.names
    assert store.read_text("tables/accuracy.csv").startswith("model,attribute,mean,sd,n_runs,")
    assert len(lines) == 13
    for name in ("gaps", "accuracy", "net_significance", "spans", "runs"):
        kept = pl.read_parquet(tmp_path / "tables" / f"{name}.parquet")
        assert kept.equals(tables[name])
        text = store.read_text(f"tables/{name}.md").splitlines()
        assert len(text) == kept.height + 2
    assert tables["runs"].height == 15
    planted = tables["gaps"].filter(group="quixlan", rate="negative_fpr").row(0, named=True)
    assert planted["significant"]
    assert planted["low"] > 0


def test_missing_values_are_empty(tmp_path: Path) -> None:
    frame = pl.DataFrame({"group": ["a|b"], "gap": [float("nan")], "low": [None], "ok": [True]})
    store = Store(tmp_path)
    write_frame(store, "t", frame)
    assert store.read_text("t.csv") == "group,gap,low,ok\na|b,,,true\n"
    assert "a\\|b" in markdown(frame)


def test_one_run_has_no_interval_and_is_not_called_significant(tmp_path: Path) -> None:
    study = make_study(methods=[{"seeds": [1001], "keep": 1}])
    tables = write_tables(write_out(tmp_path, study), study)
    row = tables["gaps"].row(0, named=True)
    assert row["low"] is None
    assert row["significant"] is None
    assert "not judged" in gap_table(tables["gaps"])


def test_coverage_counts_missing_and_repeated_predictions(tmp_path: Path) -> None:
    study = make_study()
    store = write_out(tmp_path, study)
    shards = store.files("predictions", recursive=True)
    store.delete(shards[1])
    again = store.read_table(shards[2]).slice(0, 3)
    store.write_table(shards[2].replace("00000000", "00009999"), again)
    coverage = write_tables(store, study)["coverage"]
    assert coverage["items"].unique().to_list() == [720]
    assert sorted(coverage["predictions"]) == [512, 720, 720, 720, 723]
    assert sorted(coverage["repeated"]) == [0, 0, 0, 0, 3]


def test_probes_with_different_reference_groups_are_judged_apart(tmp_path: Path) -> None:
    study = make_study(
        probes=[
            {"source": "planted", "reference_groups": {"origin": ["blorvian", "frobnian"]}},
            {"source": "planted", "name": "other"},
        ]
    )
    store = write_out(tmp_path, study)
    for name in store.files("predictions", recursive=True):
        table = pl.from_arrow(store.read_table(name))
        assert isinstance(table, pl.DataFrame)
        other = table.with_columns(probe=pl.lit("other")).to_arrow()
        store.write_table(name.replace("/planted/", "/other/"), other)
    tables = write_tables(store, study)
    inside = tables["gaps"].filter("in_mean").group_by("probe").agg(pl.col("group").n_unique())
    assert dict(inside.iter_rows()) == {"planted": 2, "other": 6}
    assert any("judged apart" in note for note in tables["notes"]["note"])


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    study = make_study()
    with pytest.raises(DataError, match="no predictions"):
        write_tables(Store(tmp_path), study)
    store = write_out(tmp_path, study)
    wrong = make_study(probes=[{"source": "planted", "reference_groups": {"origin": ["frobnain"]}}])
    with pytest.raises(ConfigError, match="frobnian"):
        write_tables(store, wrong)
    broken = store.files("predictions", recursive=True)[0]
    store.write_bytes(broken, b"PAR1 nothing")
    with pytest.raises(DataError, match="unreadable predictions"):
        write_tables(store, study)


def test_restated_changes_the_statistics_alone() -> None:
    strict = make_study()
    paper = restated(strict, "paper")
    assert (paper.statistics.interval, paper.statistics.adjust) == ("normal", "none")
    assert paper.methods == strict.methods
