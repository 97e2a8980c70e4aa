"""Marking effects, terms, templates, gaps without one of them, extremes and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from scipy import stats as reference

from raybias import schema
from raybias.measures.prediction_rows import extremes
from raybias.stats.breakdown import by_template, largest, leave_one_out
from raybias.stats.counts import composition, count_cells, read_counts
from raybias.stats.intervals import ONE_RUN
from raybias.stats.word_variance import word_variances
from support.stats_data import analysed, crossed, gaps, predictions, term_cells, word_cells

EXAMPLES = settings(max_examples=3, deadline=None)
MARKED = st.builds(
    predictions,
    seed=st.integers(0, 10_000),
    models=st.integers(1, 2),
    runs=st.integers(1, 4),
    templates=st.integers(4, 8),
    groups=st.sampled_from([("a", "b"), ("a", "b", "c", "d")]),
    extras=st.just(True),
    terms=st.just(True),
)


def measured(table: pl.DataFrame, **options: object) -> pl.DataFrame:
    return analysed(count_cells(table), **{"scope": "widest", **options}).marked  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@EXAMPLES
@given(MARKED)
@pytest.mark.long
def test_the_extra_groups_enter_no_other_number(table: pl.DataFrame) -> None:
    plain = table.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    cells, without = count_cells(table), count_cells(plain)
    found = gaps(cells)
    assert found.equals(gaps(without))
    assert found.group_by("model", "score").agg(pl.col("value").sum())["value"].abs().max() < 1e-12
    for interval in ("bootstrap", "normal"):
        pair = [gaps(c, interval=interval, bootstrap_draws=100) for c in (cells, without)]
        assert pair[0].equals(pair[1])
    members = found.select("probe", "attribute", "group", "in_mean").unique()
    assert_frame_equal(by_template(cells, members), by_template(without, members))
    sizes = composition(cells)
    assert sizes["fraction"].sum() == pytest.approx(1)
    assert sizes.filter(pl.col("fraction").is_null())["group"].to_list() == [
        "placeholder", "unmarked",
    ]  # fmt: skip


def test_each_template_has_the_same_weight_and_only_whole_ones_count() -> None:
    # Called negative: on t0 one of three sentences of a, on t1 its only one.
    rows = [
        ("t0", "a", 0), ("t0", "a", 1), ("t0", "a", 1), ("t1", "a", 0),
        ("t0", "b", 1), ("t1", "b", 1),
        ("t0", "unmarked", 1), ("t1", "unmarked", 0),
        ("t0", "placeholder", 1), ("t0", "placeholder", 0), ("t1", "placeholder", 0),
        # t2 has no unmarked form, t3 no placeholder, and c not all templates.
        ("t2", "a", 0), ("t2", "b", 0), ("t2", "placeholder", 0),
        ("t3", "a", 0), ("t3", "b", 0), ("t3", "unmarked", 0),
        ("t0", "c", 0),
    ]  # fmt: skip
    templates, groups, pred = zip(*rows, strict=True)
    table = crossed(np.array(pred).reshape(1, -1, 1, 1)).with_columns(
        template_id=pl.Series(templates), group=pl.Series(groups)
    )
    chosen = {"x": ["a", "b"]}
    found = measured(table, reference_groups=chosen).filter(score="negative_fpr")
    assert found["templates"].unique().to_list() == [2]
    values = {(r["group"], r["condition"]): r["value"] for r in found.iter_rows(named=True)}
    rate = {"a": 2 / 3, "b": 0.0, "unmarked": 0.5, "placeholder": 0.75}
    expected = {("placeholder", "neutral_effect"): 0.25}
    for group in "ab":
        expected[group, "marking_effect"] = rate[group] - 0.5
        expected[group, "beyond_neutral"] = rate[group] - 0.75
        expected[group, "gap"] = rate[group] - 1 / 3
    assert values == pytest.approx(expected)
    assert found["scope"].unique().to_list() == ["sentences"]
    seeds = measured(table, reference_groups=chosen, scope="runs")
    assert seeds["low"].null_count() == seeds.height
    assert set(seeds["reason"]) == {ONE_RUN}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([("a", "b"), ("a", "b", "c", "d")]))
def test_effects_of_groups_draw_their_words_and_neutral_words_are_fixed(
    seed: int, groups: tuple[str, ...]
) -> None:
    table = predictions(seed=seed, models=1, templates=7, groups=groups, terms=True, extras=True)
    plain = table.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    cells = word_cells(plain)
    narrow, wide = (
        measured(table, words=cells, scope=scope, interval="normal")
        for scope in ("sentences", "wording")
    )
    by = ["score", "condition", "group"]
    both = narrow.join(wide, on=by, suffix="_wide")
    assert both.height == narrow.height == wide.height
    variances = {key[-1]: found for key, found in word_variances(cells).items()}
    for row in both.iter_rows(named=True):
        sentences, wording = (
            ((row[f"high{end}"] - row[f"low{end}"]) / 2 / reference.norm.ppf(0.975)) ** 2
            for end in ("", "_wide")
        )
        if row["condition"] == "neutral_effect":
            assert (row["scope_wide"], wording) == ("sentences", sentences)
            continue
        assert row["scope_wide"] == "wording"
        if row["condition"] == "gap":
            continue
        # No mean of groups is in the effect, so the words are those of one group.
        words = variances[row["score"]]
        count = words.words[row["group"]]
        whole = (words.variance + words.noise) / count
        expected = max(sentences + words.variance / count, whole)
        assert wording == pytest.approx(expected, abs=1e-12)


def test_without_words_effects_have_no_interval_that_draws_them() -> None:
    found = measured(predictions(extras=True), scope="wording")
    named = found.filter(pl.col("condition") != "neutral_effect")
    assert set(named["reason"]) == {"no group with two known words"}
    assert named["low"].null_count() == named.height > 0
    assert found.filter(condition="neutral_effect")["low"].null_count() == 0


def test_nothing_to_measure_without_unmarked_sentences() -> None:
    assert measured(predictions()).is_empty()
    only = predictions(extras=True).filter(pl.col("group") != "placeholder")
    assert set(measured(only)["condition"]) == {"marking_effect", "gap"}


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_a_groups_gap_is_the_weighted_mean_of_its_terms(seed: int, runs: int) -> None:
    table = predictions(seed=seed, runs=runs, terms=True, extras=True)
    found = analysed(count_cells(table), terms=term_cells(table))
    terms = found.of_terms
    assert not terms["group"].is_in(schema.EXTRA_GROUPS).any()
    by = [*schema.KEYS, "attribute", "group", "score"]
    n = pl.col("n")
    summed = terms.group_by(by).agg(mean=(pl.col("value") * n).sum() / n.sum())
    both = summed.join(found.gaps, on=by)
    assert both.height == found.gaps.height
    assert (both["mean"] - both["value"]).abs().max() < 1e-12
    if runs == 1:
        assert terms["low"].null_count() == terms.height
    else:
        assert (terms["low"] <= terms["value"]).all()


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
def test_templates_by_hand() -> None:
    table = predictions(runs=2)
    cells = count_cells(table)
    found = by_template(cells, analysed(cells).inside)
    assert found.height == 2 * 3 * (4 + 4)  # models, groups, templates of either rate
    place = ["model", "template_id", "group"]
    for score, label in (("negative_fpr", 0), ("positive_fpr", 2)):
        rates = table.group_by(*place, "run_id").agg(rate=(pl.col("pred") == label).mean())
        gap = pl.col("rate") - pl.col("rate").mean().over("model", "template_id", "run_id")
        by_hand = rates.with_columns(gap=gap).group_by(place).agg(pl.col("gap").mean())
        both = found.filter(score=score, units=2).join(by_hand, on=place)
        assert both.height == 24
        np.testing.assert_allclose(both["value"], both["gap"], atol=1e-12)
    top = largest(found, "template_id", k=1)
    assert top.height == 6
    means = found.group_by("score", "group", "template_id").agg(pl.col("value").mean())
    for row in top.iter_rows(named=True):
        mine = means.filter(score=row["score"], group=row["group"])
        assert abs(row["value"]) == pytest.approx(mine["value"].abs().max())


def test_extremes_are_shared_and_are_none_where_all_gaps_are_equal() -> None:
    found = pl.concat(
        gaps(count_cells(predictions(models=3).with_columns(probe=pl.lit(probe))))
        for probe in ("p", "q")
    ).filter(score="negative_fpr")
    turned = (pl.col("model") == "m2") & (pl.col("probe") == "q")
    size = {"a": -0.2, "b": 0.1, "c": 0.1}
    value = pl.col("group").replace_strict(size, return_dtype=pl.Float64)
    found = found.with_columns(value=pl.when(turned).then(-value / 2).otherwise(value))
    shares = dict(extremes(found, None).select("group", "value").iter_rows())
    assert shares == {"a": 1.0, "b": 0.5, "c": 0.5}, "equals share the place"
    none = extremes(found.with_columns(value=0.0 * pl.col("value")), None)
    assert none.select("value", "n").unique().rows() == [(0, 6)]


def test_published_sizes_are_table_5_but_for_its_slip(shared: Path) -> None:
    folder = shared / "data" / "regard_published"
    sizes = composition(read_counts(sorted(folder.glob("regard_*.tsv.gz"))).cells)
    printed = pl.read_csv(shared / "paper_tables" / "004_table5_dataset_stats_as_printed.csv")
    printed = printed.filter(pl.col("dataset") == "regard", pl.col("group") != "TOTAL")
    differ = []
    for row in printed.iter_rows(named=True):
        ours = sizes.filter(group=row["group"]).row(0, named=True)
        assert ours["predictions"] == 5 * ours["items"] == row["total"]
        assert ours["fraction"] == pytest.approx(row["fraction"], abs=5e-4)
        differ += [
            (row["group"], label, row[label], ours[f"predictions_{label}"])
            for label in schema.LABELS
            if row[label] != ours[f"predictions_{label}"]
        ]
    assert differ == [("pacific_islander", "positive", 440, 350)]


def left_out(frame: pl.DataFrame) -> pl.DataFrame:
    """The gaps without one of their templates or words, with what they are without."""
    words = word_cells(frame)
    analysis = analysed(count_cells(frame), words=words)
    found = leave_one_out(analysis.tables, words, analysis.rules.metrics)
    parts = pl.col("condition").str.extract_groups("^without (?<unit>[a-z]+) (?<name>.*)$")
    return found.with_columns(parts.alias("parts")).unnest("parts")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@pytest.mark.parametrize(
    ("unit", "column", "tolerance"), [("template", "template_id", 5e-3), ("word", "term", 1e-9)]
)
def test_the_range_is_that_of_the_gaps_counted_again(
    unit: str, column: str, tolerance: float
) -> None:
    frame = predictions(seed=5, runs=3, templates=16, groups=("a", "b", "c"), terms=True)
    frame = frame.filter(model="m0")
    rows = left_out(frame).filter(unit=unit)
    assert rows.height == 12
    without = {
        name: gaps(count_cells(frame.filter(pl.col(column) != name)))
        for name in frame[column].unique()
    }
    for (group, score), part in rows.group_by("group", "score"):
        of = frame if unit == "template" else frame.filter(group=group)
        again = {
            name: without[name].filter(group=group, score=score)["value"].item()
            for name in of[column].unique()
        }
        for value, name in part.select("value", "name").iter_rows():
            assert value == pytest.approx(again[name], abs=tolerance)
        ends = min(again.values()), max(again.values())
        assert part["value"].to_list() == pytest.approx(ends, abs=tolerance)


def test_a_gap_that_one_word_carries_is_said_to_be_so() -> None:
    pred = np.ones((2, 10, 2, 3), int)
    pred[:, :, 0, 0] = pred[0, 0] = pred[1, 1] = 0
    frame = crossed(pred).with_columns(model=pl.lit("m0"))
    found = left_out(frame).filter(score="negative_fpr")
    carried = {row[:2]: row[2] for row in found.select("group", "unit", "reason").iter_rows()}
    assert carried == {("0", "word"): "carried by 0", ("1", "word"): None,
                       ("0", "template"): None, ("1", "template"): None}  # fmt: skip
