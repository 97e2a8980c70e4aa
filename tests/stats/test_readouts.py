"""Both readings of prompted classifiers, from tables and from files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from raybias import schema
from raybias.schema import LIKELIHOOD, RUN_KEYS
from raybias.stats.checks import StatisticsWarning, checked_runs, fingerprints
from raybias.stats.conclusive import of_predictions
from raybias.stats.counts import count_cells, read_counts, with_likelihood
from support.stats_data import analysed, gaps, predictions, prompted, read_predictions, term_cells


def with_readouts(table: pl.DataFrame) -> pl.DataFrame:
    """What is counted of a table: both readings, and repeated prompted runs once."""
    read = with_likelihood(table.filter(~pl.col("method").str.ends_with(LIKELIHOOD)))
    same = checked_runs(fingerprints(read), lambda: [read], where="", uneven="refuse")
    return read.join(same, on=RUN_KEYS, how="anti", nulls_equal=True, maintain_order="left")


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_likelihood_is_the_highest_score_and_stands_beside(seed: int, runs: int) -> None:
    table = pl.concat([prompted(seed=seed, runs=runs), predictions(seed=seed)])
    read = with_readouts(table)
    assert read.schema == pl.Schema(schema.PREDICTIONS)
    second = pl.col("method").str.ends_with(LIKELIHOOD)
    assert read.filter(~second).equals(table)
    expected = [
        max(range(3), key=lambda k, s=row["scores"]: s[k])
        for row in table.filter(pl.col("answer").is_not_null()).iter_rows(named=True)
    ]
    likely = read.filter(second)
    assert likely["pred"].to_list() == expected
    assert likely["parsed"].all()
    assert set(likely["method"]) == {"few_shot+likelihood"}
    assert with_readouts(read).equals(read)


def test_runs_that_are_the_same_count_once() -> None:
    table = prompted(runs=4, same_scores=True, method="zero_shot")
    with pytest.warns(StatisticsWarning, match=r"all 4 runs of m0 zero_shot\+likelihood"):
        read = with_readouts(table)
    runs = dict(read.group_by("method").agg(pl.col("run_id").n_unique()).iter_rows())
    assert runs == {"zero_shot": 4, "zero_shot+likelihood": 1}
    found = gaps(count_cells(read.with_columns(pl.col("pred").fill_null(0))))
    likely = found.filter(method="zero_shot+likelihood")
    assert likely["low"].null_count() == likely.height == 6
    # Equal runs of a tuned classifier stay, and are told.
    tuned = pl.concat(
        [predictions(models=1, runs=1).with_columns(run_id=pl.lit(name)) for name in ("a", "b")]
    )
    with pytest.warns(StatisticsWarning, match="runs a, b of m0 soft_prompt on made gave"):
        assert with_readouts(tuned).equals(tuned)


@pytest.mark.parametrize("piece_rows", [7, 1000])
def test_files_are_counted_as_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr("raybias.stats.predictions._PIECE_ROWS", piece_rows)
    tables = [
        prompted(runs=3, same_scores=True, method="zero_shot"),
        prompted(seed=1, runs=3).with_columns(probe=pl.lit("other")),
        predictions(models=1, terms=True).drop("answer", "scores"),
    ]
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    for path, table in zip(paths, tables, strict=True):
        table.write_parquet(path)
    with pytest.warns(StatisticsWarning, match="count as one run"):
        counts = read_counts(paths)
    with pytest.warns(StatisticsWarning, match="count as one run"):
        read = with_readouts(read_predictions(paths))
    for ours, expected in (
        (counts.cells, count_cells(read)),
        (counts.terms, term_cells(read)),
    ):
        plain = ours.cast({pl.Categorical: pl.String})
        assert_frame_equal(plain, expected, check_row_order=False)
    whole = counts.answers.filter(run_id="all")
    assert dict(whole.select("method", "unparsed").iter_rows()) == {
        method: part["parsed"].not_().sum()
        for method, part in (("zero_shot", tables[0]), ("few_shot", tables[1]))
    }
    assert (
        counts.answers["share"] == counts.answers["unparsed"] / counts.answers["predictions"]
    ).all()
    assert counts.answers.schema == pl.Schema(schema.ANSWERS)


def test_why_answers_are_unread_is_counted(tmp_path: Path) -> None:
    table = prompted(method="zero_shot", readable=0.5)
    number = pl.int_range(pl.len()) % 3
    why = pl.when(number == 0).then(pl.lit("several")).when(number == 1).then(pl.lit("negated"))
    unread = table.with_columns(
        unread=pl.when(~pl.col("parsed")).then(why.otherwise(pl.lit("none")))
    )
    unread.write_parquet(tmp_path / "0.parquet")
    (found,) = read_counts([tmp_path]).answers.filter(run_id="all").rows(named=True)
    expected = dict(unread["unread"].drop_nulls().value_counts().iter_rows())
    assert (found["several"], found["negated"]) == (expected["several"], expected["negated"])
    assert found["unparsed"] == sum(expected.values())


def test_files_without_terms_or_answers(tmp_path: Path) -> None:
    predictions().drop("term", "answer", "scores").write_parquet(tmp_path / "old.parquet")
    counts = read_counts([tmp_path / "old.parquet"])
    assert counts.terms.is_empty()
    assert counts.terms.columns == schema.TERM_CELLS.names
    assert counts.answers.is_empty()
    assert analysed(counts.cells, terms=counts.terms).of_terms.is_empty()


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
def test_a_classifier_with_mostly_unreadable_answers_has_no_verdict(tmp_path: Path) -> None:
    tables = [
        prompted(method="zero_shot", readable=0.2),
        prompted(),
        predictions(models=1, terms=True, extras=True),
    ]
    filled = [table.with_columns(pl.col("pred").fill_null(0)) for table in tables]
    for place, table in enumerate(filled):
        table.write_parquet(tmp_path / f"{place}.parquet")
    counts = read_counts([tmp_path])
    withheld = of_predictions(counts.cells, counts.answers, level=0.95)
    # Of six templates not much is known, and the likelihoods are random.
    withheld = withheld.filter(pl.col("reason").str.contains("name no"))
    assert withheld.select("method", "probe").rows() == [("zero_shot", "made")]
    share = counts.answers.filter(method="zero_shot", run_id="all")["share"][0]
    assert withheld["reason"].to_list() == [f"{share:.1%} of its answers name no label word"]

    before, after = (gaps(counts.cells, withheld=frame) for frame in (None, withheld))
    theirs = pl.col("method") == "zero_shot"
    numbers = ["value", "low", "high", "sd", "rate", "p"]
    assert_frame_equal(after.select(numbers), before.select(numbers))
    for name in ("q", "significant", "survives"):
        assert after.filter(theirs)[name].null_count() == after.filter(theirs).height
    assert after.filter(theirs)["reason"].unique().to_list() == withheld["reason"].to_list()
    # The rest is judged as if it had been alone; the likelihood rests on no answer.
    alone = gaps(counts.cells.filter(pl.col("method").cast(pl.String) != "zero_shot"))
    assert "zero_shot+likelihood" in alone["method"].to_list()
    assert_frame_equal(after.filter(~theirs), alone)
