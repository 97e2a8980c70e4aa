"""Gaps against loops, textbooks and the papers' rules."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from raybias import schema
from raybias.config.study import Interval
from raybias.errors import ConfigError, DataError
from raybias.measures.prediction_rows import accuracy_rows, net_significance, spans
from raybias.report.headline import by_scope
from raybias.report.judged import Judged
from raybias.stats.checks import REFERENCE_GROUPS, StatisticsWarning
from raybias.stats.counts import count_cells
from raybias.stats.gaps import gap_analysis
from raybias.stats.intervals import NO_VARIATION, REFERENCE, Rules
from raybias.stats.metric import metric_rates
from support.stats_data import analysed, crossed, gaps, predictions

EXAMPLES = settings(max_examples=15, deadline=None)
#: Few sentences can have the same gap in every run by chance.
SMALL = pytest.mark.filterwarnings("ignore:.*are the same in every run")
TABLES = st.builds(
    predictions,
    seed=st.integers(0, 10_000),
    models=st.integers(1, 2),
    runs=st.integers(1, 4),
    templates=st.integers(4, 8),
    groups=st.sampled_from([("a",), ("a", "b"), ("a", "b", "c", "d")]),
)


def by_hand(table: pl.DataFrame, label: int) -> dict[tuple[str, str], list[float]]:
    """Per-run gaps by (model, group), from plain loops over rows."""
    wrong: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        if row["label"] != label:
            key = (row["model"], row["run_id"], row["group"])
            wrong[key].append(int(row["pred"] == label))
    differences: dict[tuple[str, str], list[float]] = defaultdict(list)
    for model, run in sorted({key[:2] for key in wrong}):
        rates = {g: np.mean(hits) for (m, r, g), hits in wrong.items() if (m, r) == (model, run)}
        for group, rate in rates.items():
            differences[model, group].append(float(rate - np.mean(list(rates.values()))))
    return differences


@SMALL
@EXAMPLES
@given(TABLES)
def test_gaps_and_cells_equal_plain_loops(table: pl.DataFrame) -> None:
    cells = count_cells(table)
    naive = table.group_by(schema.CELLS.names[:-1], maintain_order=True).agg(n=pl.len())
    assert cells.equals(naive.cast({"n": pl.Int64}))
    found = gaps(cells, interval="t")
    for rate, label in (("negative_fpr", 0), ("positive_fpr", 2)):
        expected = by_hand(table, label)
        rows = found.filter(score=rate)
        assert len(rows) == len(expected)
        for row in rows.iter_rows(named=True):
            values = expected[row["model"], row["group"]]
            assert row["units"] == len(values)
            assert row["value"] == pytest.approx(np.mean(values), abs=1e-12)
            if len(values) == 1:
                assert [row[k] for k in ("sd", "low", "high", "p", "significant")] == [None] * 5
            else:
                assert row["sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-12)


@SMALL
@EXAMPLES
@given(TABLES, st.integers(0, 99), st.sampled_from(["normal", "t", "bootstrap"]))
def test_row_order_changes_nothing(table: pl.DataFrame, seed: int, interval: str) -> None:
    shuffled = table.sample(fraction=1, shuffle=True, seed=seed)
    results = [
        gaps(count_cells(rows), interval=interval, bootstrap_draws=100)
        for rows in (table, shuffled)
    ]
    assert results[0].equals(results[1])


@SMALL
def test_intervals_follow_the_textbook() -> None:
    # Five gaps of a two-group attribute, made from rates k/10 against 0.
    hits = [1, 3, 2, 5, 4]
    pred = np.ones((5, 10, 2, 1), int)
    for run, k in enumerate(hits):
        pred[run, :k, 0] = 2
    cells = count_cells(crossed(pred))
    values = np.array(hits) / 20
    error = values.std(ddof=1) / math.sqrt(5)
    for interval, quantile in (("normal", 1.96), ("t", 2.7764451051977987)):
        table = gaps(cells, interval=interval, adjust="none")
        (row,) = table.filter(group="0", score="positive_fpr").to_dicts()
        assert row["value"] == pytest.approx(0.15)
        assert (row["low"], row["high"]) == pytest.approx(
            (0.15 - quantile * error, 0.15 + quantile * error)
        )
        assert (row["n"], row["rate"]) == (10, pytest.approx(0.3))
    expected = scipy_stats.ttest_1samp(values, 0).pvalue
    assert row["p"] == pytest.approx(expected, rel=1e-9)
    wider = gaps(cells, interval="normal", level=0.99)
    width = (wider["high"] - wider["low"]).max()
    assert width == pytest.approx(2 * 2.5758293035489004 * error)


def test_undefined_rate_is_missing_and_leaves_the_mean() -> None:
    table = predictions(models=1, runs=2)
    # In run s0, group c keeps only positive sentences: positive_fpr has FP + TN = 0 there.
    thin = table.filter(
        ~((pl.col("run_id") == "m0.s0") & (pl.col("group") == "c") & (pl.col("label") != 2))
    )
    with pytest.warns(StatisticsWarning, match=r"positive_fpr of colour c .* 1 run"):
        found = gaps(count_cells(thin), interval="normal")
    per_run = metric_rates(count_cells(thin)).filter(
        pl.col("score") == "positive_fpr", pl.col("run_id") == "m0.s0"
    )
    assert per_run.filter(group="c").select("value", "n_items").row(0) == (None, 0)
    (row,) = found.filter(group="c", score="positive_fpr").to_dicts()
    assert row["units"] == 1
    assert row["low"] is None
    (other,) = found.filter(group="a", score="positive_fpr").to_dicts()
    a, b = (per_run.filter(group=group)["value"].item() for group in "ab")
    whole = gaps(count_cells(table.filter(run_id="m0.s1"))).filter(group="a", score="positive_fpr")
    assert other["value"] == pytest.approx(((a - b) / 2 + whole["value"].item()) / 2)


def test_never_a_number_where_no_run_has_a_rate() -> None:
    table = predictions(models=1, runs=2).filter((pl.col("group") != "c") | (pl.col("label") == 2))
    for interval in ("normal", "t", "bootstrap"):
        with pytest.warns(StatisticsWarning):
            found = gaps(count_cells(table), interval=interval, bootstrap_draws=100)
        (row,) = found.filter(group="c", score="positive_fpr").to_dicts()
        assert row["value"] is row["low"] is row["q"] is row["significant"] is None
        assert (row["n"], row["units"]) == (0, 0)


@SMALL
def test_equal_rates_are_never_significant_by_rounding() -> None:
    table = predictions(models=1, runs=5, groups=tuple("abcdefg")).with_columns(
        pred=pl.when(pl.col("template_id") == "t0").then(2).otherwise("label").cast(pl.Int16)
    )
    table = table.unique(["run_id", "group", "template_id"])
    for interval in ("normal", "t", "bootstrap"):
        found = gaps(count_cells(table), interval=interval, adjust="none", bootstrap_draws=100)
        assert found["value"].to_list() == [0.0] * len(found)
        assert not found["significant"].any()
        if interval == "normal":
            assert found["p"].min() == 1
        else:
            (reason,) = found["reason"].unique()
            assert reason == "no template differs (4 read: at most 52.7% of others would)"


def test_copies_of_a_run_make_nothing_certain() -> None:
    one = predictions(models=1, runs=1, templates=20, groups=tuple("abcd"))
    copies = [one.with_columns(run_id=pl.lit(f"r{run}")) for run in range(5)]
    varying = predictions(models=2, runs=5, templates=20, groups=tuple("abcd")).filter(model="m1")
    both = pl.concat([*copies, varying])
    with pytest.warns(StatisticsWarning, match="8 of 16 gaps are the same .* no verdict"):
        found = gaps(count_cells(both))
    mine = found.filter(model="m0")
    for name in ("low", "high", "p", "q", "significant", "survives"):
        assert mine[name].null_count() == mine.height, name
    assert set(mine["reason"]) == {NO_VARIATION}
    # They are no part of the others' correction.
    alone = gaps(count_cells(varying))
    assert found.filter(model="m1").equals(alone)
    # The papers' rule stays as it was published, and is told to say nothing.
    with pytest.warns(StatisticsWarning, match="nor does its verdict"):
        paper = gaps(count_cells(pl.concat(copies)), interval="normal", adjust="none")
    assert paper["significant"].all()
    assert (paper["high"] - paper["low"]).max() < 1e-12
    # Templates vary, whatever the runs do.
    drawn = gaps(
        count_cells(pl.concat(copies)), scope="sentences", interval="bootstrap", bootstrap_draws=200
    )
    assert drawn["reason"].null_count() == drawn.height
    assert (drawn["high"] - drawn["low"]).min() > 0


@pytest.mark.parametrize("neutral", [0.0, 0.002])
def test_two_rates_that_are_one_number_are_counted_once(neutral: float) -> None:
    table = predictions(models=1, runs=5, templates=200, groups=tuple("abcdef"))
    random = np.random.default_rng(0)
    rate = np.where(table["group"] == "a", 0.55, 0.35)
    pred = np.where(random.random(table.height) < rate, 0, 2)
    pred[random.random(table.height) < neutral] = 1
    table = table.with_columns(label=pl.lit(1, pl.Int16), pred=pl.Series(pred, dtype=pl.Int16))
    with pytest.warns(StatisticsWarning, match="what negative_fpr leaves, one result"):
        found = gaps(count_cells(table))
    first, second = (found.filter(score=rate) for rate in ("negative_fpr", "positive_fpr"))
    assert (first["value"] + second["value"]).abs().max() < 0.01
    assert set(second["reason"]) == {"mirror of negative_fpr"}
    assert second["survives"].null_count() == second["q"].null_count() == second.height
    expected = scipy_stats.false_discovery_control(first["p"].to_numpy())
    assert np.allclose(first["q"].to_numpy(), expected)
    assert first["survives"].to_list() == [*(first["significant"] & (first["q"] <= 0.05))]
    told = found.with_columns(statistic=pl.lit("gap"), condition=pl.lit(""))
    words = pl.DataFrame(schema={"probe": pl.String, "attribute": pl.String, "group": pl.String,
                                 "words": pl.Int64})  # fmt: skip
    kind = pl.lit("predictions").alias("kind")
    assert "of 6 gaps" in by_scope(Judged(told.with_columns(kind), words))
    with pytest.warns(StatisticsWarning, match="counted twice by the papers' rule"):
        paper = gaps(count_cells(table), interval="normal", adjust="none")
    assert paper["significant"].null_count() == 0
    # A classifier that knows the label has two results.
    knows = pl.Series(random.random(table.height) < 0.1)
    known = table.with_columns(pred=pl.when(knows).then(pl.lit(1, pl.Int16)).otherwise("pred"))
    assert gaps(count_cells(known))["reason"].null_count() == 12


def test_reference_groups() -> None:
    groups = (*REFERENCE_GROUPS["gender"], "aab")
    cells = count_cells(predictions(attribute="gender", groups=groups))
    found = gaps(cells)
    assert found.filter(~pl.col("in_mean"))["group"].unique().to_list() == ["aab"]
    chosen = gaps(cells, reference_groups={"gender": ["male", "female"]})
    assert set(chosen.filter("in_mean")["group"]) == {"male", "female"}
    rates = metric_rates(cells).filter(model="m0", run_id="m0.s0", score="negative_fpr")
    value = dict(rates.select("group", "value").iter_rows())
    one = gaps(
        cells.filter(pl.col("run_id") == "m0.s0"), reference_groups={"gender": ["male", "female"]}
    ).row(by_predicate=(pl.col("group") == "aab") & (pl.col("score") == "negative_fpr"), named=True)
    assert one["value"] == pytest.approx(value["aab"] - (value["male"] + value["female"]) / 2)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"colour": ["a", "bb"]}, "no group 'bb'"),
        ({"colour": []}, "names no group"),
        ({"colour": ["a", "unmarked"]}, "'unmarked', which is no group"),
    ],
)
def test_wrong_reference_groups_are_refused(chosen: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gaps(count_cells(predictions()), reference_groups=chosen)
    counts = analysed(count_cells(predictions())).counts
    rules = Rules.under("strict", everywhere={"hue": ["a"]})
    with pytest.raises(ConfigError, match="attributes are colour"):
        gap_analysis(counts, rules)


def test_part_of_the_papers_groups_makes_a_mean_over_all() -> None:
    cells = count_cells(predictions(attribute="age", groups=("old", "young", "teen")))
    with pytest.warns(StatisticsWarning, match="age of probe made lacks adult"):
        found = gaps(cells)
    assert found["in_mean"].all()


def test_answers_without_label_count_as_wrong_and_warn() -> None:
    table = predictions(models=1, runs=2).with_columns(
        pred=pl.when(pl.col("item_id") == "0000").then(None).otherwise("pred")
    )
    cells = count_cells(table)
    with pytest.warns(StatisticsWarning, match="2 of .* answers hold no label"):
        found = gaps(cells)
    assert found["n"].sum() == gaps(count_cells(predictions(models=1, runs=2)))["n"].sum()
    accuracy = (table["pred"] == table["label"]).fill_null(False).mean()
    with pytest.warns(StatisticsWarning, match="hold no label"):
        found = accuracy_rows(analysed(cells).counts, Rules.under("strict"))
    found = found.filter(score="accuracy")
    assert found["value"].to_list() == pytest.approx([accuracy] * found.height)


def test_accuracies_equal_plain_loops() -> None:
    table = predictions(runs=3, extras=True)
    plain = table.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    found = accuracy_rows(analysed(count_cells(table)).counts, Rules.under("strict"))
    assert set(found["scope"]) == {"runs", "sentences"}
    for row in found.iter_rows(named=True):
        part = plain.filter(model=row["model"])
        runs = [(p["label"] == p["pred"]).mean() for p in part.partition_by("run_id")]
        if row["score"] == "accuracy_sd":
            assert row["value"] == pytest.approx(np.std(runs, ddof=1))
            continue
        assert row["value"] == pytest.approx(np.mean(runs))
        if row["scope"] == "runs":
            # Wilson's, of as many answers as would vary like the runs do.
            rate, quantile = np.mean(runs), scipy_stats.t.ppf(0.975, 2)
            square = quantile**2 * scipy_stats.sem(runs) ** 2 / (rate * (1 - rate))
            root = np.sqrt(square * rate * (1 - rate) + square**2 / 4)
            expected = (rate + square / 2 + root) / (1 + square)
            assert row["high"] == pytest.approx(expected)


@SMALL
def test_net_significance_and_spans() -> None:
    group = pl.col("group")
    value = pl.when(group == "a").then(0.2).when(group == "b").then(-0.3).otherwise(0.1)
    survives = pl.when(group == "c").then(None).otherwise(group == "b")
    found = gaps(count_cells(predictions(runs=2))).with_columns(value=value, survives=survives)
    net = net_significance(found).filter(score="negative_fpr_net_significance")
    assert dict(net.select("group", "value").iter_rows()) == {"a": 0, "b": -2}
    assert net["units"].to_list() == [2, 2]
    span = spans(found.with_columns(in_mean=group != "b"), None).row(0, named=True)
    assert (span["value"], span["reason"]) == (pytest.approx(0.1), "leaves out b")


def test_bootstrap_without_templates_says_so() -> None:
    cells = count_cells(predictions().with_columns(template_id=pl.lit(None, pl.String)))
    with pytest.raises(DataError, match="have no template_id"):
        gaps(cells, interval="bootstrap")


@pytest.mark.parametrize("interval", ["t", "normal", "bootstrap"])
def test_a_group_that_alone_is_the_reference_is_called_so(
    interval: Interval, recwarn: pytest.WarningsRecorder
) -> None:
    cells = count_cells(predictions(runs=4, templates=40))
    found = gaps(cells, interval=interval, reference_groups={"colour": ("a",)})
    assert not [each for each in recwarn if "same in every run" in str(each.message)]
    reference, others = found.filter(group="a"), found.filter(pl.col("group") != "a")
    assert reference["value"].to_list() == [0.0] * reference.height
    assert reference["reason"].to_list() == [REFERENCE] * reference.height
    assert reference["significant"].null_count() == reference.height
    assert others["reason"].null_count() == others.height > 0
