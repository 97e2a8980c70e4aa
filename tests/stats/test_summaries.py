"""Terms, templates, gaps without one of them, extremes and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias import schema, stats
from raybias.measures.prediction_rows import extremes
from raybias.stats.breakdown import leave_one_out
from support.stats_data import analysed, gaps, predictions, term_cells


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_a_groups_gap_is_the_weighted_mean_of_its_terms(seed: int, runs: int) -> None:
    table = predictions(seed=seed, runs=runs, terms=True, extras=True)
    found = analysed(stats.cells(table), terms=term_cells(table))
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
    cells = stats.cells(table)
    found = stats.by_template(cells, analysed(cells).inside)
    assert found.height == 2 * 3 * (4 + 4)  # models, groups, templates of either rate
    for row in found.sample(12, seed=1).iter_rows(named=True):
        label = {"negative_fpr": 0, "positive_fpr": 2}[row["score"]]
        values = []
        for _, part in table.filter(model=row["model"], template_id=row["template_id"]).group_by(
            "run_id"
        ):
            rate = {g: (p["pred"] == label).mean() for (g,), p in part.group_by("group")}
            values.append(rate[row["group"]] - np.mean(list(rate.values())))
        assert row["value"] == pytest.approx(np.mean(values), abs=1e-12)
        assert row["units"] == 2
    top = stats.largest(found, "template_id", k=1)
    assert top.height == 6
    means = found.group_by("score", "group", "template_id").agg(pl.col("value").mean())
    for row in top.iter_rows(named=True):
        mine = means.filter(score=row["score"], group=row["group"])
        assert abs(row["value"]) == pytest.approx(mine["value"].abs().max())


def test_extremes_are_shared_and_are_none_where_all_gaps_are_equal() -> None:
    found = pl.concat(
        gaps(stats.cells(predictions(models=3).with_columns(probe=pl.lit(probe))))
        for probe in ("p", "q")
    ).filter(score="negative_fpr")
    turned = (pl.col("model") == "m2") & (pl.col("probe") == "q")
    size = {"a": -0.2, "b": 0.1, "c": 0.1}
    value = pl.col("group").replace_strict(size, return_dtype=pl.Float64)
    found = found.with_columns(value=pl.when(turned).then(-value / 2).otherwise(value))
    shares = dict(extremes(found, None, "").select("group", "value").iter_rows())
    assert shares == {"a": 1.0, "b": 0.5, "c": 0.5}, "equals share the place"
    none = extremes(found.with_columns(value=0.0 * pl.col("value")), None, "")
    assert none.select("value", "n").unique().rows() == [(0, 6)]


def test_published_sizes_are_table_5_but_for_its_slip(shared: Path) -> None:
    folder = shared / "data" / "regard_published"
    sizes = stats.composition(stats.read_counts(sorted(folder.glob("regard_*.tsv.gz"))).cells)
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
    by = pl.Schema(schema.WORD_CELLS).names()[:-1]
    words = frame.group_by(by).agg(n=pl.len()).cast(pl.Schema(schema.WORD_CELLS))
    analysis = analysed(stats.cells(frame), words=words)
    found = leave_one_out(analysis.tables, words, analysis.options.metrics)
    parts = pl.col("condition").str.extract_groups("^without (?<unit>[a-z]+) (?<name>.*)$")
    return found.with_columns(parts.alias("parts")).unnest("parts")


def gap_of(frame: pl.DataFrame, group: str, score: str) -> float:
    found = gaps(stats.cells(frame)).filter(group=group, score=score, model="m0")
    return float(found["value"].item())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@pytest.mark.parametrize(
    ("unit", "column", "tolerance"), [("template", "template_id", 5e-3), ("word", "term", 1e-9)]
)
def test_the_range_is_that_of_the_gaps_counted_again(
    unit: str, column: str, tolerance: float
) -> None:
    frame = predictions(seed=5, runs=3, templates=30, groups=("a", "b", "c"), terms=True)
    frame = frame.filter(model="m0")
    rows = left_out(frame).filter(unit=unit)
    assert rows.height == 12
    for (group, score), part in rows.group_by("group", "score"):
        left = pl.lit(True) if unit == "template" else pl.col("group") == group
        again = {
            name: gap_of(frame.filter(~(left & (pl.col(column) == name))), str(group), str(score))
            for name in frame.filter(left)[column].unique()
        }
        for value, name in part.select("value", "name").iter_rows():
            assert value == pytest.approx(again[name], abs=tolerance)
        ends = min(again.values()), max(again.values())
        assert part["value"].to_list() == pytest.approx(ends, abs=tolerance)


def test_a_gap_that_one_word_carries_is_said_to_be_so() -> None:
    rows = [
        {"run_id": run, "template_id": str(t), "group": group, "term": f"{group}{word}",
         "pred": 0 if (group, word) == ("a", 0) or t == run else 1}
        for run in range(2) for t in range(10) for group in "ab" for word in range(3)
    ]  # fmt: skip
    keys = {**dict.fromkeys(schema.KEYS, "k"), "model": "m0", "attribute": "x", "label": 1}
    frame = pl.DataFrame(rows).with_columns(
        pl.col("run_id").cast(pl.String), **{name: pl.lit(value) for name, value in keys.items()}
    )
    found = left_out(frame).filter(score="negative_fpr")
    carried = {row[:2]: row[2] for row in found.select("group", "unit", "reason").iter_rows()}
    assert carried == {("a", "word"): "carried by a0", ("b", "word"): None,
                       ("a", "template"): None, ("b", "template"): None}  # fmt: skip
