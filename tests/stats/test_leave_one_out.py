"""Leaving one template or word out: against counting again, and a gap that one word carries."""

from __future__ import annotations

import polars as pl
import pytest

from raybias import schema, stats
from raybias.config import Statistics
from raybias.stats.breakdown import leave_one_out
from support.stats_data import predictions


def table_of(frame: pl.DataFrame) -> pl.DataFrame:
    by = pl.Schema(schema.WORD_CELLS).names()[:-1]
    words = frame.group_by(by).agg(n=pl.len()).cast(pl.Schema(schema.WORD_CELLS))
    analysis = stats.GapAnalysis(stats.cells(frame), Statistics(), lambda *_: None)
    return leave_one_out(analysis.tables, words)


def gap(frame: pl.DataFrame, group: str, rate: str) -> float:
    found = stats.gaps(stats.cells(frame)).filter(group=group, rate=rate, model="m0")
    return float(found["gap"].item())


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
    rows = table_of(frame).filter(unit=unit)
    assert rows.height == 6
    for row in rows.iter_rows(named=True):
        assert row["gap"] == pytest.approx(gap(frame, row["group"], row["rate"]))
        left = pl.lit(True) if unit == "template" else pl.col("group") == row["group"]
        names = frame.filter(left)[column].unique().to_list()
        again = {
            name: gap(frame.filter(~(left & (pl.col(column) == name))), row["group"], row["rate"])
            for name in names
        }
        for end in ("lowest", "highest"):
            assert row[end] == pytest.approx(again[row[f"{end}_without"]], abs=tolerance)
        assert (row["lowest"], row["highest"]) == pytest.approx(
            (min(again.values()), max(again.values())), abs=tolerance
        )


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
    found = table_of(frame).filter(rate="negative_fpr")
    carried = {row[:2]: row[2] for row in found.select("group", "unit", "carried_by").iter_rows()}
    assert carried == {("a", "word"): "a0", ("b", "word"): None,
                       ("a", "template"): None, ("b", "template"): None}  # fmt: skip
