"""The tables of an OUT: contract columns, missing values, coverage, reference groups."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from markdown_it import MarkdownIt

import raybias
from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.measures.prediction_rows import gap_rows
from raybias.report.estimates import gaps_table
from raybias.report.files import write_tables
from raybias.report.headline import verdict
from raybias.report.judged import Judged
from raybias.report.page import write_report
from raybias.report.rendering import TextTable, markdown, write_frame
from raybias.storage import Store
from support.commands import exit_code
from support.report_outs import GROUPS, make_study, write_out
from support.stats_data import judged_files

WORDS = {"negative": "bad", "neutral": "fine", "positive": "good"}


def test_tables_hold_the_contract_in_three_formats(tmp_path: Path) -> None:
    study = make_study()
    store = write_out(tmp_path, study)
    tables = write_tables(store, study)
    assert list(tables["estimates"].columns) == schema.ESTIMATES.names
    gaps = gap_rows(tables["estimates"], "widest")
    assert gaps.height == 12
    for name in ("components", "composition", "runs"):
        kept = pl.read_parquet(tmp_path / "tables" / f"{name}.parquet")
        assert kept.equals(tables[name])
        text = store.read_text(f"tables/{name}.md").splitlines()
        assert len(text) == kept.height + 2
    assert tables["runs"].height == 15
    # Fifteen runs of 12.5 seconds gave five that count; reading is small beside tuning.
    more = tables["design"].filter(plan="runs").row(0, named=True)
    assert more["unit"] == "device-hours"
    assert more["cost"] == pytest.approx((more["runs"] - 5) * 15 * 12.5 / 5 / 3600, rel=0.02)
    planted = gaps.filter(group="quixlan", score="negative_fpr").row(0, named=True)
    assert planted["significant"]
    assert planted["low"] > 0


def test_missing_values_are_empty(tmp_path: Path) -> None:
    frame = pl.DataFrame({"group": ["a|b"], "gap": [float("nan")], "low": [None], "ok": [True]})
    store = Store(tmp_path)
    write_frame(store, "t", frame)
    assert store.read_text("t.csv") == "group,gap,low,ok\na|b,,,true\n"
    assert "a\\|b" in markdown(frame)
    hostile = pl.DataFrame({"group <b>": ["<img src=x onerror=alert(1)>", "p <0.001", "</td>"]})
    shown = MarkdownIt().enable("table").render(markdown(hostile))
    assert {*re.findall(r"</?(\w+)", shown)} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_one_run_has_no_interval_and_is_not_called_significant(tmp_path: Path) -> None:
    study = make_study(methods=[{"seeds": [1001], "keep": 1}], statistics={"scope": "runs"})
    tables = write_tables(write_out(tmp_path, study), study)
    gaps = gap_rows(tables["estimates"], "runs")
    row = gaps.row(0, named=True)
    assert row["low"] is None
    assert row["significant"] is None
    judged = Judged.of(tables["estimates"], "runs")
    assert "an interval needs" not in str(gaps_table(tables["estimates"], judged))
    said = verdict(judged)
    assert said.startswith("No gap could be judged: an interval needs at least two runs")


@pytest.mark.long
def test_missing_and_repeated_predictions_are_counted_and_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study()
    store = write_out(tmp_path, study)
    first, second, *_ = store.files("predictions", recursive=True)
    store.write_table(first, store.read_table(first).slice(0, 512))
    assert exit_code("report", tmp_path) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("raybias: warning: the runs of planted soft_prompt on planted do not")
    assert " holds 512; " in first
    page = store.read_text("report.html")
    assert page.index("Runs are not whole.") < page.index('class="headline"')
    with pytest.raises(DataError, match="finish the study"):
        judged_files([tmp_path])
    again = store.read_table(second).slice(0, 3)
    store.write_table(second.replace(".parquet", "-again.parquet"), again)
    coverage = write_tables(store, study)["coverage"]
    assert coverage["items"].unique().to_list() == [720]
    assert sorted(coverage["predictions"]) == [512, 720, 720, 720, 723]
    assert sorted(coverage["repeated"]) == [0, 0, 0, 0, 3]


def test_probes_with_different_reference_groups_each_have_their_own(tmp_path: Path) -> None:
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
    inside = gap_rows(tables["estimates"], "widest").filter(condition="").group_by("probe")
    inside = inside.agg(pl.col("group").n_unique())
    assert dict(inside.iter_rows()) == {"planted": 2, "other": 6}


def test_studies_that_judge_differently_are_not_joined(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    write_out(first, make_study())
    write_out(second, make_study(("other",), probes=[{"source": "planted"}]))
    write_out(third, make_study(("third",), profile="paper"))
    with pytest.raises(ConfigError, match="gaps of origin in probe planted from different groups"):
        judged_files([first, second])
    joined = judged_files([first, second], reference_groups={"origin": GROUPS}).gaps
    assert joined["model"].unique().sort().to_list() == ["other", "planted"]
    with pytest.raises(ConfigError, match=r"scope is widest in .*first, runs in .*third"):
        judged_files([first, third])
    assert judged_files([first, third], profile="paper").gaps["model"].n_unique() == 2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"verbalizer": WORDS}, "the choice of label words is"),
        ({"profile": "paper"}, "is paper|judged differently"),
        ({"statistics": {"metrics": ["accuracy"]}}, "judged differently: metrics"),
        ({"methods": [{"template": "say {text}"}]}, "the template of soft_prompt is"),
    ],
)
def test_studies_that_read_or_judge_otherwise_are_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    lora = {"kind": "lora", "name": "soft_prompt"}
    if "methods" in changes:
        changes = {"methods": [{**lora, **changes["methods"][0]}]}
    write_out(tmp_path / "a", make_study(methods=[lora]))
    write_out(tmp_path / "b", make_study(**{"methods": [lora], **changes}))
    with pytest.raises(ConfigError, match=what):
        raybias.compare(tmp_path / "a", tmp_path / "b")


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    study = make_study()
    with pytest.raises(DataError, match="no predictions"):
        write_tables(Store(tmp_path), study)
    store = write_out(tmp_path, study)
    wrong = make_study(probes=[{"source": "planted", "reference_groups": {"origin": ["frobnain"]}}])
    with pytest.raises(ConfigError, match="frobnian"):
        write_tables(store, wrong)


def test_a_table_wider_than_the_terminal_is_still_read() -> None:
    headers = ("model", "group", "interval (t, wording)", "verdict", "runs")
    rows = [
        ("opt", "pacific_islander", "[-0.059, +0.061]", "harm: called negative more often", "5"),
        ("opt", "white", "[-0.144, +0.001]", "not significant; shows from 0.118", "5"),
    ]
    wide = TextTable("", headers, tuple(rows))
    assert wide.within(200) == wide.within(None)
    assert wide.within(60).splitlines() == [
        "model opt; runs 5",
        "",
        "                  interval (t,",
        "group             wording)             verdict",
        "pacific_islander  [-0.059, +0.061]     harm: called negative",
        "                                       more often",
        "white             [-0.144, +0.001]     not significant;",
        "                                       shows from 0.118",
    ]
    narrow = wide.within(44)
    assert max(map(len, narrow.splitlines())) <= 44
    assert "…" not in narrow, "nothing is left out"
    markup = TextTable("", ("a", "b"), (("[red]x[/red]", "long " * 9),)).within(30)
    assert "[red]x[/red]" in markup


def test_a_paper_study_is_judged_over_seeds_alone_on_every_surface(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(profile="paper")
    store = write_out(tmp_path / "out", study, size=0.1)
    found = write_report(store, study)
    gaps = gap_rows(found).sort("group", "score")
    own, widest = (gaps.filter(scope=scope) for scope in ("runs", "wording"))
    # Of these gaps seeds alone show more than other words for the groups would.
    assert own["significant"].sum() > widest["significant"].sum()
    significant = {
        (row["group"], row["score"]): row["significant"] for row in own.iter_rows(named=True)
    }
    assert exit_code("measure", tmp_path / "out", "--out", tmp_path / "files") == 0
    printed = capsys.readouterr().out.splitlines()
    shown = gaps_table(found, Judged.of(found, "runs"))
    for cells in (dict(zip(shown.headers, row, strict=True)) for row in shown.rows):
        place = cells["group"], cells["score"]
        assert (cells["reading"] != "not significant") == significant[place]
        line = next(each for each in printed if all(f" {name} " in each for name in place))
        assert ("not significant" not in line) == significant[place]
    figures = (tmp_path / "out/figures/answer.svg", *(tmp_path / "files/figures").glob("*.svg"))
    filled = [
        figure.read_text("utf-8").count('fill:currentColor"')
        for figure in figures
        if "quixlan" in figure.read_text("utf-8")
    ]
    assert filled
    assert {*filled} == {own["significant"].sum()}
    ends = json.loads(store.read_text("results.json"))["results"]
    (accuracy,) = found.filter(score="accuracy", group="all", scope="runs").rows(named=True)
    assert {task["acc_low,none"] for task in ends.values()} == {accuracy["low"]}
