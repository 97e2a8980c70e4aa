"""Marking effects: identities, a planted effect found again, and groups that never count."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from raybias import schema, stats
from support.stats_data import analysed, gaps, predictions

EXAMPLES = settings(max_examples=15, deadline=None)
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
    return analysed(stats.cells(table), **{"scope": "widest", **options}).marked  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@EXAMPLES
@given(MARKED)
def test_effects_add_up_and_gaps_add_to_zero(table: pl.DataFrame) -> None:
    found = measured(table)
    by = ["model", "score"]
    neutral = found.filter(condition="neutral_effect").select(*by, neutral="value")
    assert neutral.height == found.select(by).unique().height
    wide = found.filter(pl.col("condition") != "neutral_effect").pivot(
        "condition", index=[*by, "group"], values="value"
    )
    wide = wide.join(neutral, on=by)
    remains = wide["marking_effect"] - wide["neutral"] - wide["beyond_neutral"]
    assert remains.abs().max() < 1e-12
    assert wide.group_by(by).agg(pl.col("gap").sum())["gap"].abs().max() < 1e-12
    # A gap is what is left of a marking effect when that of all groups is taken away.
    shared = pl.col("marking_effect").mean().over(by)
    assert (
        wide["gap"] - wide.select(pl.col("marking_effect") - shared).to_series()
    ).abs().max() < (1e-12)
    shuffled = table.sample(fraction=1, shuffle=True, seed=3)
    assert measured(shuffled).equals(found)


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
@EXAMPLES
@given(MARKED)
@pytest.mark.long
def test_the_extra_groups_enter_no_other_number(table: pl.DataFrame) -> None:
    plain = table.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    cells, without = stats.cells(table), stats.cells(plain)
    found = gaps(cells)
    assert found.equals(gaps(without))
    assert found.group_by("model", "score").agg(pl.col("value").sum())["value"].abs().max() < 1e-12
    for interval in ("bootstrap", "normal"):
        pair = [gaps(c, interval=interval, bootstrap_draws=100) for c in (cells, without)]
        assert pair[0].equals(pair[1])
    members = found.select("probe", "attribute", "group", "in_mean").unique()
    assert_frame_equal(stats.by_template(cells, members), stats.by_template(without, members))
    sizes = stats.composition(cells)
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
    table = pl.DataFrame(
        [
            {"model": "m", "method": "", "dataset": "", "run_id": "r", "probe": "p", "style": "",
             "item_id": str(i), "label": 1, "attribute": "x", "group": group,
             "template_id": template, "pred": pred}
            for i, (template, group, pred) in enumerate(rows)
        ],
        schema=pl.Schema(schema.PREDICTIONS),
    )  # fmt: skip
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
    assert set(seeds["reason"]) == {stats.ONE_RUN}


@pytest.mark.filterwarnings("ignore:.*are the same in every run")
def test_a_planted_marking_effect_is_recovered() -> None:
    """Any mark adds .10 to being called negative, and group c .25 more."""
    random = np.random.default_rng(7)
    chance = {"unmarked": 0.2, "placeholder": 0.3, "a": 0.3, "b": 0.3, "c": 0.55}
    templates, runs = 1200, 5
    rows = [
        ("m", "", "", "p", "", f"r{run}", "x", group, f"{t:04d}", 1, 0 if hit else 1, 1)
        for run in range(runs)
        for group, p in chance.items()
        for t, hit in enumerate(random.random(templates) < p)
    ]
    cells = pl.DataFrame(rows, schema=pl.Schema(schema.CELLS), orient="row")
    found = analysed(cells, scope="widest").marked.filter(score="negative_fpr")
    planted = {
        ("placeholder", "neutral_effect"): 0.10, ("a", "marking_effect"): 0.10,
        ("c", "marking_effect"): 0.35, ("a", "beyond_neutral"): 0.0,
        ("c", "beyond_neutral"): 0.25, ("a", "gap"): -0.25 / 3, ("c", "gap"): 0.5 / 3,
    }  # fmt: skip
    for (group, effect), size in planted.items():
        row = found.filter(group=group, condition=effect).row(0, named=True)
        assert row["value"] == pytest.approx(size, abs=0.03)
        assert row["low"] <= size <= row["high"]
        assert row["survives"] == (size != 0)
    normal = analysed(cells, scope="widest", interval="normal", adjust="none").marked
    normal = normal.filter(score="negative_fpr")
    assert (normal["high"] - normal["low"] < found["high"] - found["low"]).all()


def test_nothing_to_measure_without_unmarked_sentences() -> None:
    assert measured(predictions()).is_empty()
    only = predictions(extras=True).filter(pl.col("group") != "placeholder")
    assert set(measured(only)["condition"]) == {"marking_effect", "gap"}
