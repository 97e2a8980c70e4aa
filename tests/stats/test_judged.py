"""Gaps of judged texts are corrected as the textbook says (coverage: benchmarks/coverage.py)."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from raybias import schema
from raybias.stats.components import MeanEstimate
from raybias.stats.counts import count_cells
from raybias.stats.gaps import GapAnalysis
from raybias.stats.judged import JudgeSample, corrected_gaps
from support.stats_data import analysed, crossed


def predictions() -> pl.DataFrame:
    """A judge that is harsh on the first group; people's labels are in `human`."""
    drawn = np.random.default_rng(0).random((2, 30, 3, 2))
    human = (drawn[..., :1] > 0.3).astype(int)
    wrong = drawn[..., 1:] < np.array([[0.35], [0.1], [0.1]])
    frame = crossed(np.where(wrong, 1 - human, human))
    return frame.with_columns(human=pl.Series(human.ravel(), dtype=pl.Int16))


def analysis(table: pl.DataFrame, **rules: object) -> GapAnalysis:
    known = {"metrics": ("negative_fpr",), "scope": "sentences", "interval": "t", **rules}
    return analysed(count_cells(table.drop("human")), **known)  # type: ignore[arg-type]


def labelled(table: pl.DataFrame) -> pl.DataFrame:
    rows = table.with_columns(row=pl.format("t{}", pl.int_range(pl.len())))
    types = pl.Schema(schema.LABELLED)
    return rows.select(types.names()).cast(types)


def test_the_correction_is_the_textbooks() -> None:
    random = np.random.default_rng(1)
    n, groups = 40, 3
    human = (random.random((groups, n)) < 0.3).astype(float)
    judged = np.where(random.random((groups, n)) < 0.2, 1 - human, human)
    units = np.arange(groups * n)
    sample = JudgeSample(judged.ravel(), human.ravel(), np.repeat(np.arange(groups), n), units)
    # The slope of people's labels on verdicts with an intercept for each group.
    design = np.column_stack([judged.ravel(), np.kron(np.eye(groups), np.ones((n, 1)))])
    weight = np.linalg.lstsq(design, human.ravel(), rcond=None)[0][0]
    assert sample.weight == pytest.approx(weight)

    naive = MeanEstimate(np.array([0.1, 0.0, -0.1]), np.full(3, 4e-4), np.full(3, 50.0))
    inside = np.ones(3, bool)
    found = sample.corrected({"sentences": naive}, "sentences", inside)
    errors = human - weight * judged
    contrast = np.eye(3) - 1 / 3
    np.testing.assert_allclose(found.mean, weight * naive.mean + contrast @ errors.mean(axis=1))
    variance = weight**2 * 4e-4 + contrast**2 @ (errors.var(axis=1, ddof=1) / n)
    np.testing.assert_allclose(found.variance, variance)
    assert ((found.freedom > 50) & (found.freedom < 200)).all()
    # Other words for the groups are as uncertain as in the verdicts.
    wide = MeanEstimate(naive.mean, np.full(3, 9e-4), np.full(3, 5.0))
    wording = sample.corrected({"sentences": naive, "wording": wide}, "wording", inside)
    np.testing.assert_allclose(wording.variance, variance + 5e-4)


def test_where_people_label_everything_the_gap_is_theirs() -> None:
    table = predictions()
    found = corrected_gaps(analysis(table), labelled(table)).sort("group")
    rates = table.group_by("group").agg((pl.col("human") == 0).mean()).sort("group")["human"]
    np.testing.assert_allclose(found["value"], rates - rates.mean(), atol=1e-12)
    assert found["judged_value"][0] > found["value"][0] + 0.05
    first = found.row(0, named=True)
    people, judge = (table.filter(group="0")[name] == 0 for name in ("human", "pred"))
    assert first["labelled"] == 60
    assert first["held"] == people.sum()
    assert first["wrongly_held"] == (judge & ~people).sum()
    assert first["missed"] == (people & ~judge).sum()
    assert found["reason"].null_count() == 3
    assert found["scope"].unique().to_list() == ["sentences"]
    # Neither the order of labels nor their names matter.
    again = corrected_gaps(
        analysis(table), labelled(table).sample(fraction=1, shuffle=True, seed=1)
    )
    assert again.sort("group").equals(found)


def test_what_cannot_be_corrected_says_why() -> None:
    table = predictions()
    place = pl.int_range(pl.len()).over("group")
    of_others = pl.col("group") != "1"
    for few, said in (
        (place < 19, "too few labelled texts: 0 has 19, 1 has 19, 2 has 19 of at least 20"),
        (of_others | (place < 8), "too few labelled texts: 1 has 8 of at least 20"),
        (of_others, "too few labelled texts: 1 has 0 of at least 20"),
        (of_others | (pl.col("template_id") == "0"), "the labelled texts of a group are of one"),
    ):
        # Twelve texts of each prompt.
        several = pl.concat([labelled(table)] * 12)
        found = corrected_gaps(analysis(table), several.filter(few))
        assert str(found["reason"][0]).startswith(said)
        assert found["reason"].n_unique() == 1
        assert found["value"].null_count() == found["low"].null_count() == 3
        assert found["significant"].null_count() == found["survives"].null_count() == 3
        assert found["judged_value"].null_count() == 0
    enough = corrected_gaps(analysis(table), labelled(table).filter(place < 20))
    assert enough["reason"].null_count() == enough["significant"].count() == 3
    assert corrected_gaps(analysis(table), labelled(table).clear()).is_empty()
    alone = corrected_gaps(analysis(table, scope="wording"), labelled(table))
    assert set(alone["reason"]) == {"no interval of scope wording"}
    same = table.with_columns(pred=pl.col("human"))
    # A judge that never errs in the sample is not taken to be one that never errs.
    agreed = corrected_gaps(analysis(same), labelled(same).filter(pl.col("run_id") == "0"))
    assert agreed["weight"].to_list() == pytest.approx([1.0] * 3)
    assert (agreed["high"] - agreed["low"] > agreed["judged_high"] - agreed["judged_low"]).all()
