"""A metric is one function: of counts or of predictions, in one file, here this one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import raybias
from raybias import schema
from raybias.errors import ConfigError
from raybias.measures.prediction_rows import gap_rows
from raybias.planning.prepared import PreparedStudy
from raybias.report.files import write_tables
from raybias.report.page import write_report
from raybias.schema import RUN_KEYS
from raybias.stats.metric import Share, metric, metrics
from support.commands import exit_code
from support.report_outs import make_study, write_out
from support.stats_data import judged_files, read_predictions

PLACE = (*schema.KEYS, "attribute", "group")


def neutral_share(label: pl.Expr, pred: pl.Expr) -> Share:
    return Share(among=label.is_not_null(), holds=pred == 1)


def flip_rate(predictions: pl.DataFrame) -> pl.DataFrame:
    place = [*RUN_KEYS, "attribute", "template_id"]
    usual = predictions.group_by(place).agg(usual=pl.col("pred").mode().min())
    group = [*RUN_KEYS, "attribute", "group"]
    return (
        predictions.join(usual, on=place)
        .group_by(*group, "template_id")
        .agg(flips=(pl.col("pred") != pl.col("usual")).any())
        .group_by(group)
        .agg(value=pl.col("flips").mean(), n_items=pl.len())
    )


METRICS = ("negative_fpr", "neutral_share", "flip_rate")


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    metric(
        of="counts",
        title="called neutral",
        about="the share of the group's sentences that are called neutral",
        words="called neutral",
    )(neutral_share)
    metric(
        of="predictions",
        title="labelled unlike the template",
        about="the share of the group's templates whose label is not the one of most groups",
        words="labelled unlike the others",
        above="harm",
        below="benefit",
    )(flip_rate)
    yield
    for name in METRICS[1:]:
        del metrics._entries[name]


@pytest.mark.long
def test_new_metrics_are_in_a_studys_tables_report_and_gaps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(statistics={"metrics": list(METRICS), "bootstrap_draws": 100,
                                   "interval": "bootstrap"})  # fmt: skip
    store = write_out(tmp_path / "out", study)
    gaps = gap_rows(write_report(store, study), "widest")
    tables = {name: pl.read_parquet(tmp_path / "out/tables" / f"{name}.parquet")
              for name in ("by_term", "by_template")}  # fmt: skip
    assert set(gaps["score"]) == set(METRICS)
    # Terms, templates and draws of them are there for what is a share of counts.
    counted = {"negative_fpr", "neutral_share"}
    assert set(tables["by_term"]["score"]) == set(tables["by_template"]["score"]) == counted
    judged = judged_files([tmp_path / "out"]).gaps
    kinds = dict(judged.select("score", "interval").unique().iter_rows())
    assert kinds == {**dict.fromkeys(counted, "bootstrap"), "flip_rate": "t"}
    both = gaps.join(judged, on=[*PLACE, "score"])
    assert both.height == gaps.height
    assert both["low"].to_list() == both["low_right"].to_list()
    rates = raybias.open(tmp_path / "out").by_group.collect()

    table = read_predictions([tmp_path / "out"])
    flips = flip_rate(table).group_by("group").agg(pl.col("value").mean())
    found = dict(rates.filter(score="flip_rate").select("group", "value").iter_rows())
    assert found == pytest.approx(dict(flips.iter_rows()), abs=1e-12)
    assert max(found, key=lambda group: found[group]) == "quixlan"
    neutral = table.group_by("group").agg((pl.col("pred") == 1).mean())
    found = dict(rates.filter(score="neutral_share").select("group", "value").iter_rows())
    assert found == pytest.approx(dict(neutral.iter_rows()), abs=1e-12)

    page = store.read_text("report.html")
    assert re.search(
        r"are labelled unlike the template \d\S+ more often than "
        r"the mean of 5 other groups.*: harm\.",
        page,
    )
    assert "labelled unlike the template (flip_rate)" in page

    alone = raybias.measure(tmp_path / "out", metric=["flip_rate"])
    assert alone.filter(statistic="gap")["score"].unique().to_list() == ["flip_rate"]
    asked = ("--metric", "flip_rate", "--metric", "accuracy")
    assert exit_code("measure", tmp_path / "out", *asked) == 0
    shown = capsys.readouterr().out
    assert "flip_rate" in shown
    assert "negative_fpr" not in shown


def test_a_metric_that_nobody_registered_is_refused_before_any_work(tmp_path: Path) -> None:
    study = make_study(statistics={"metrics": ["false_alarms"]})
    with pytest.raises(ConfigError, match="no metric 'false_alarms'; `raybias measure --list` has"):
        PreparedStudy.of(study).check()
    with pytest.raises(ConfigError, match="no metric"):
        write_tables(write_out(tmp_path, study), study)
