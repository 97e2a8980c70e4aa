"""Gaps against loops, textbooks and the papers' rules."""

from __future__ import annotations

import math
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from raybias import schema, stats
from raybias.config import Interval, Probe
from raybias.errors import BadInput, ConfigError, DataError, WorkFailed
from raybias.probes import probe_items
from raybias.report.sentences import by_scope
from support.stats_data import predictions

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
    gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
    for model, run in sorted({key[:2] for key in wrong}):
        rates = {g: np.mean(hits) for (m, r, g), hits in wrong.items() if (m, r) == (model, run)}
        for group, rate in rates.items():
            gaps[model, group].append(float(rate - np.mean(list(rates.values()))))
    return gaps


@SMALL
@EXAMPLES
@given(TABLES)
def test_gaps_and_cells_equal_plain_loops(table: pl.DataFrame) -> None:
    cells = stats.cells(table)
    naive = table.group_by(schema.CELLS.names[:-1], maintain_order=True).agg(n=pl.len())
    assert cells.equals(naive.cast({"n": pl.Int64}))
    found = stats.gaps(cells, interval="t")
    assert found.schema == pl.Schema(schema.GAPS)
    for rate, label in (("negative_fpr", 0), ("positive_fpr", 2)):
        expected = by_hand(table, label)
        rows = found.filter(rate=rate)
        assert len(rows) == len(expected)
        for row in rows.iter_rows(named=True):
            values = expected[row["model"], row["group"]]
            assert row["n_runs"] == len(values)
            assert row["gap"] == pytest.approx(np.mean(values), abs=1e-12)
            if len(values) == 1:
                assert [row[k] for k in ("sd", "low", "high", "p_value", "significant")] == [
                    None
                ] * 5
            else:
                assert row["sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-12)


@SMALL
@EXAMPLES
@given(TABLES)
def test_gaps_add_to_zero_over_reference_groups(table: pl.DataFrame) -> None:
    sums = stats.gaps(stats.cells(table)).group_by("model", "rate").agg(pl.col("gap").sum())
    assert sums["gap"].abs().max() < 1e-12


@SMALL
@EXAMPLES
@given(TABLES, st.integers(0, 99), st.sampled_from(["normal", "t", "bootstrap"]))
def test_row_order_changes_nothing(table: pl.DataFrame, seed: int, interval: str) -> None:
    shuffled = table.sample(fraction=1, shuffle=True, seed=seed)
    results = [
        stats.gaps(stats.cells(rows), interval=interval, draws=100)  # type: ignore[arg-type]
        for rows in (table, shuffled)
    ]
    assert results[0].equals(results[1])


@SMALL
def test_intervals_follow_the_textbook() -> None:
    # Five gaps of a two-group attribute, made from rates k/10 against 0.
    hits = [1, 3, 2, 5, 4]
    rows = [
        {"run_id": f"r{run}", "group": group, "label": 1, "pred": 2 if hit else 1, "n": n}
        for run, k in enumerate(hits)
        for group, split in (("a", k), ("b", 0))
        for hit, n in ((True, split), (False, 10 - split))
        if n
    ]
    keys = {"model": "m", "method": "", "dataset": "", "probe": "", "style": "", "attribute": "x"}
    cells = pl.DataFrame([{**keys, **row, "template_id": None} for row in rows]).cast(
        {"label": pl.Int8, "pred": pl.Int8, "template_id": pl.String}
    )
    gaps = np.array(hits) / 20
    error = gaps.std(ddof=1) / math.sqrt(5)
    for interval, quantile in (("normal", 1.96), ("t", 2.7764451051977987)):
        table = stats.gaps(cells, interval=interval, adjust="none")  # type: ignore[arg-type]
        row = table.row(
            by_predicate=(pl.col("group") == "a") & (pl.col("rate") == "positive_fpr"), named=True
        )
        assert row["gap"] == pytest.approx(0.15)
        assert row["half_width"] == pytest.approx(quantile * error, rel=1e-12)
        assert (row["low"], row["high"]) == pytest.approx(
            (0.15 - quantile * error, 0.15 + quantile * error)
        )
        assert (row["n_items"], row["mean_rate"]) == (10, pytest.approx(0.3))
    expected = scipy_stats.ttest_1samp(gaps, 0).pvalue
    assert row["p_value"] == pytest.approx(expected, rel=1e-9)
    wider = stats.gaps(cells, interval="normal", level=0.99)
    assert wider["half_width"].max() == pytest.approx(2.5758293035489004 * error)


def test_benjamini_hochberg_is_scipys_and_only_removes() -> None:
    cells = stats.cells(predictions(runs=4, groups=tuple("abcdef")))
    plain = stats.gaps(cells, interval="t", adjust="none")
    adjusted = stats.gaps(cells, interval="t", adjust="benjamini_hochberg")
    expected = scipy_stats.false_discovery_control(plain["p_value"].to_numpy())
    assert np.allclose(adjusted["q_value"].to_numpy(), expected)
    assert adjusted["significant"].equals(plain["significant"])
    assert plain["survives"].equals(plain["significant"])
    assert adjusted["survives"].to_list() == [
        alone and q <= 0.05
        for alone, q in zip(plain["significant"], adjusted["q_value"], strict=True)
    ]
    assert not (adjusted["survives"] & ~adjusted["significant"]).any()


def test_undefined_rate_is_missing_and_leaves_the_mean() -> None:
    table = predictions(models=1, runs=2)
    # In run s0, group c keeps only positive sentences: positive_fpr has FP + TN = 0 there.
    thin = table.filter(
        ~((pl.col("run_id") == "m0.s0") & (pl.col("group") == "c") & (pl.col("label") != 2))
    )
    with pytest.warns(stats.StatisticsWarning, match=r"positive_fpr of colour c .* 1 run"):
        found = stats.gaps(stats.cells(thin), interval="normal")
    per_run = stats.rates(stats.cells(thin)).filter(
        pl.col("rate") == "positive_fpr", pl.col("run_id") == "m0.s0"
    )
    assert per_run.filter(group="c").select("value", "n_items").row(0) == (None, 0)
    row = found.row(
        by_predicate=(pl.col("group") == "c") & (pl.col("rate") == "positive_fpr"), named=True
    )
    assert row["n_runs"] == 1
    assert row["low"] is None
    other = found.row(
        by_predicate=(pl.col("group") == "a") & (pl.col("rate") == "positive_fpr"), named=True
    )
    a, b = (per_run.filter(group=group)["value"].item() for group in "ab")
    whole = stats.gaps(stats.cells(table.filter(run_id="m0.s1"))).filter(
        group="a", rate="positive_fpr"
    )
    assert other["gap"] == pytest.approx(((a - b) / 2 + whole["gap"].item()) / 2)


def test_never_a_number_where_no_run_has_a_rate() -> None:
    table = predictions(models=1, runs=2).filter((pl.col("group") != "c") | (pl.col("label") == 2))
    for interval in ("normal", "t", "bootstrap"):
        with pytest.warns(stats.StatisticsWarning):
            found = stats.gaps(stats.cells(table), interval=interval, draws=100)  # type: ignore[arg-type]
        row = found.row(
            by_predicate=(pl.col("group") == "c") & (pl.col("rate") == "positive_fpr"), named=True
        )
        assert row["gap"] is row["low"] is row["q_value"] is row["significant"] is None
        assert (row["n_items"], row["n_runs"]) == (0, 0)


@SMALL
def test_equal_rates_are_never_significant_by_rounding() -> None:
    table = predictions(models=1, runs=5, groups=tuple("abcdefg")).with_columns(
        pred=pl.when(pl.col("template_id") == "t0").then(2).otherwise("label").cast(pl.Int8)
    )
    table = table.unique(["run_id", "group", "template_id"])
    for interval in ("normal", "t", "bootstrap"):
        found = stats.gaps(stats.cells(table), interval=interval, adjust="none", draws=100)  # type: ignore[arg-type]
        assert found["gap"].to_list() == [0.0] * len(found)
        assert not found["significant"].any()
        if interval == "normal":
            assert found["p_value"].min() == 1
        else:
            assert set(found["no_verdict"]) == {stats.NO_VARIATION}


def test_copies_of_a_run_make_nothing_certain() -> None:
    one = predictions(models=1, runs=1, templates=20, groups=tuple("abcd"))
    copies = [one.with_columns(run_id=pl.lit(f"r{run}")) for run in range(5)]
    varying = predictions(models=2, runs=5, templates=20, groups=tuple("abcd")).filter(model="m1")
    both = pl.concat([*copies, varying])
    with pytest.warns(stats.StatisticsWarning, match="8 of 16 gaps are the same .* no verdict"):
        found = stats.gaps(stats.cells(both))
    mine = found.filter(model="m0")
    for name in ("low", "high", "half_width", "p_value", "q_value", "significant", "survives"):
        assert mine[name].null_count() == mine.height, name
    assert set(mine["no_verdict"]) == {stats.NO_VARIATION}
    # They are no part of the others' correction.
    alone = stats.gaps(stats.cells(varying))
    assert found.filter(model="m1").equals(alone)
    # The papers' rule stays as it was published, and is told to say nothing.
    with pytest.warns(stats.StatisticsWarning, match="nor does its verdict"):
        paper = stats.gaps(stats.cells(pl.concat(copies)), interval="normal", adjust="none")
    assert paper["significant"].all()
    assert paper["half_width"].max() < 1e-12
    # Templates vary, whatever the runs do.
    drawn = stats.gaps(
        stats.cells(pl.concat(copies)), scope="sentences", interval="bootstrap", draws=200
    )
    assert drawn["no_verdict"].null_count() == drawn.height
    assert drawn["half_width"].min() > 0


@pytest.mark.parametrize("neutral", [0.0, 0.002])
def test_two_rates_that_are_one_number_are_counted_once(shared: Path, neutral: float) -> None:
    folder = shared / "data" / "ns_prompts"
    items = probe_items(Probe(source="ns_prompts", data=str(folder))).drop("text")
    random = np.random.default_rng(0)
    tables = []
    for run in range(5):
        chance = {g: random.uniform(0.3, 0.4) for g in items["group"].unique().sort()}
        chance["white"] += 0.2
        rate = items["group"].replace_strict(chance, return_dtype=pl.Float64).to_numpy()
        pred = np.where(random.random(items.height) < rate, 0, 2)
        pred[random.random(items.height) < neutral] = 1
        keys = {key: pl.lit("") for key in schema.KEYS}
        tables.append(items.with_columns(**keys, run_id=pl.lit(f"s{run}"), pred=pl.Series(pred)))
    cells = stats.cells(pl.concat(tables))
    with pytest.warns(stats.StatisticsWarning, match="what negative_fpr leaves, one result"):
        found = stats.gaps(cells)
    first, second = (found.filter(rate=rate) for rate in ("negative_fpr", "positive_fpr"))
    assert (first["gap"] + second["gap"]).abs().max() < 0.01
    assert set(second["no_verdict"]) == {"mirror of negative_fpr"}
    assert second["survives"].null_count() == second["q_value"].null_count() == second.height
    expected = scipy_stats.false_discovery_control(first["p_value"].to_numpy())
    assert np.allclose(first["q_value"].to_numpy(), expected)
    named = {"gap": "value", "no_verdict": "reason", "rate": "score"}
    told = found.rename(named).with_columns(statistic=pl.lit("gap"), condition=pl.lit(""))
    assert "of 6 gaps" in by_scope(told, pl.DataFrame(schema=pl.Schema(schema.COMPONENTS)))
    with pytest.warns(stats.StatisticsWarning, match="counted twice by the papers' rule"):
        paper = stats.gaps(cells, interval="normal", adjust="none")
    assert paper["significant"].null_count() == 0
    # A classifier that knows the label has two results.
    known = pl.concat(tables).with_columns(
        pred=pl.when(pl.col("item_id").hash() % 10 == 0).then(1).otherwise("pred")
    )
    assert stats.gaps(stats.cells(known))["no_verdict"].null_count() == 12


def test_reference_groups() -> None:
    groups = (*stats.REFERENCE_GROUPS["gender"], "aab")
    cells = stats.cells(predictions(attribute="gender", groups=groups))
    found = stats.gaps(cells)
    assert found.filter(~pl.col("in_mean"))["group"].unique().to_list() == ["aab"]
    chosen = stats.gaps(cells, reference_groups={"gender": ["male", "female"]})
    assert set(chosen.filter("in_mean")["group"]) == {"male", "female"}
    rates = stats.rates(cells).filter(model="m0", run_id="m0.s0", rate="negative_fpr")
    value = dict(rates.select("group", "value").iter_rows())
    one = stats.gaps(
        cells.filter(pl.col("run_id") == "m0.s0"), reference_groups={"gender": ["male", "female"]}
    ).row(by_predicate=(pl.col("group") == "aab") & (pl.col("rate") == "negative_fpr"), named=True)
    assert one["gap"] == pytest.approx(value["aab"] - (value["male"] + value["female"]) / 2)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"colour": ["a", "bb"]}, "no group 'bb'"),
        ({"colour": []}, "names no group"),
        ({"hue": ["a"]}, "attributes are colour"),
    ],
)
def test_wrong_reference_groups_are_refused(chosen: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stats.gaps(stats.cells(predictions()), reference_groups=chosen)


def test_part_of_the_papers_groups_makes_a_mean_over_all() -> None:
    cells = stats.cells(predictions(attribute="age", groups=("old", "young", "teen")))
    with pytest.warns(stats.StatisticsWarning, match="age of probe made lacks adult"):
        found = stats.gaps(cells)
    assert found["in_mean"].all()


def test_answers_without_label_count_as_wrong_and_warn() -> None:
    table = predictions(models=1, runs=2).with_columns(
        pred=pl.when(pl.col("item_id") == "0000").then(None).otherwise("pred")
    )
    cells = stats.cells(table)
    with pytest.warns(stats.StatisticsWarning, match="2 of .* answers hold no label"):
        found = stats.gaps(cells)
    assert (
        found["n_items"].sum()
        == stats.gaps(stats.cells(predictions(models=1, runs=2)))["n_items"].sum()
    )
    accuracy = (table["pred"] == table["label"]).fill_null(False).mean()
    assert stats.accuracies(cells)["mean"].item() == pytest.approx(accuracy)


def test_accuracies_equal_plain_loops() -> None:
    table = predictions(runs=3)
    found = stats.accuracies(stats.cells(table))
    assert found.columns == schema.ACCURACY.names
    for row in found.iter_rows(named=True):
        part = table.filter(model=row["model"])
        runs = [(p["label"] == p["pred"]).mean() for p in part.partition_by("run_id")]
        assert (row["mean"], row["sd"]) == pytest.approx((np.mean(runs), np.std(runs, ddof=1)))
    alone = stats.accuracies(stats.cells(predictions(runs=1)))
    assert alone["sd"].to_list() == [None, None]


@SMALL
def test_net_significance_and_spans() -> None:
    found = stats.gaps(stats.cells(predictions(runs=2))).with_columns(
        gap=pl.when(pl.col("group") == "a")
        .then(0.2)
        .when(pl.col("group") == "b")
        .then(-0.3)
        .otherwise(0.1),
        survives=pl.when(pl.col("group") == "c").then(None).otherwise(pl.col("group") == "b"),
    )
    net = stats.net_significance(found).filter(rate="negative_fpr")
    assert dict(net.select("group", "net").iter_rows()) == {"a": 0, "b": -2, "c": 0}
    assert net["n_models"].to_list() == [2, 2, 0]
    span = stats.spans(found).row(0, named=True)
    assert (span["span"], span["lowest"], span["highest"]) == (pytest.approx(0.5), "b", "a")


def test_no_warning_on_ordinary_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stats.gaps(stats.cells(predictions()), interval="bootstrap", draws=100)


def test_a_broken_invariant_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stats.rates(stats.cells(predictions())).with_columns(value=pl.lit(math.inf))
    monkeypatch.setattr(sys.modules["raybias.stats.gaps"], "metric_rates", lambda *_: broken)
    with pytest.raises(WorkFailed, match="add to"):
        stats.gaps(stats.cells(predictions()))


def test_bootstrap_without_templates_says_so() -> None:
    cells = stats.cells(predictions().with_columns(template_id=pl.lit(None, pl.String)))
    with pytest.raises(DataError, match="have no template_id") as caught:
        stats.gaps(cells, interval="bootstrap")
    assert isinstance(caught.value, BadInput)


@pytest.mark.parametrize("interval", ["t", "normal", "bootstrap"])
def test_a_group_that_alone_is_the_reference_is_called_so(
    interval: Interval, recwarn: pytest.WarningsRecorder
) -> None:
    cells = stats.cells(predictions(runs=4, templates=40))
    found = stats.gaps(cells, interval=interval, reference_groups={"colour": ("a",)})
    assert not [each for each in recwarn if "same in every run" in str(each.message)]
    reference, others = found.filter(group="a"), found.filter(pl.col("group") != "a")
    assert reference["gap"].to_list() == [0.0] * reference.height
    assert reference["no_verdict"].to_list() == [stats.REFERENCE] * reference.height
    assert reference["significant"].null_count() == reference.height
    assert others["no_verdict"].null_count() == others.height > 0
