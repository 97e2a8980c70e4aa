"""Ratios of rates: to the highest, which the data choose, or to a group that is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

import raybias
from raybias.stats.ratios import NO_RATE


def people(**selected: tuple[int, int]) -> pl.DataFrame:
    """A table of people: of each group so many selected, of so many."""
    rows = []
    for group, (hits, n) in selected.items():
        rows += [{"group": group, "label": k % 2, "pred": int(k < hits)} for k in range(n)]
    return pl.DataFrame(rows)


def ratios_of(table: pl.DataFrame, **options: Any) -> dict[str, dict[str, Any]]:
    found = raybias.measure(table, metric="selection_rate", **options).filter(statistic="ratio")
    return {row["group"]: row for row in found.iter_rows(named=True)}


TEMPLATES = 80
#: How many of a template's sentences about each group are selected, drawn once.
SELECTED = {
    group: np.random.default_rng(3).permutation(np.arange(TEMPLATES) < hits).astype(float)
    for group, hits in {"a": 44, "b": 40, "c": 14}.items()
}


def sentences() -> pl.DataFrame:
    rows = [
        {"group": group, "template_id": f"t{t:02}", "label": t % 2, "pred": int(hit)}
        for group, hits in SELECTED.items()
        for t, hit in enumerate(hits)
    ]
    return pl.DataFrame(rows)


def ends_of_pair(one: str, other: str, each: float) -> tuple[float, float]:
    """Ends of the logarithm of a ratio by a t interval over templates, linearised."""
    rates = SELECTED[one].mean(), SELECTED[other].mean()
    parts = SELECTED[one] / rates[0] - SELECTED[other] / rates[1]
    reach = stats.t.ppf((1 + each) / 2, TEMPLATES - 1) * stats.sem(parts)
    middle = np.log(rates[0] / rates[1])
    return middle - reach, middle + reach


def test_every_ratio_is_the_lowest_of_those_to_each_group_that_may_be_highest() -> None:
    found = ratios_of(sentences())
    assert found["a"]["reason"] == "the reference itself"
    assert {row["condition"] for row in found.values()} == {"by a"}
    # Tukey's intervals of all three pairs hold at once.
    reach = stats.studentized_range.ppf(0.95, 3, np.inf) / np.sqrt(2)
    each = 2 * stats.norm.cdf(reach) - 1
    for group, others in (("b", "ac"), ("c", "ab")):
        ends = [ends_of_pair(group, other, each) for other in others]
        low, high = (min(0, *end) for end in zip(*ends, strict=True))
        row = found[group]
        assert np.log([row["low"], row["high"]]) == pytest.approx([low, high], abs=1e-9)
    assert found["b"]["high"] == 1
    assert found["c"]["high"] < 0.8
    assert all(row["significant"] is None and row["p"] is None for row in found.values())


def test_a_group_that_is_named_is_divided_by() -> None:
    for given in ({"reference_groups": {"group": "b"}}, {"background": "reference:b"}):
        found = ratios_of(sentences(), **given)
        assert {row["condition"] for row in found.values()} == {"by b"}
        assert found["a"]["value"] == pytest.approx(44 / 40)
        for group in "ac":
            # Two ratios hold at once, each at the root of .95.
            expected = ends_of_pair(group, "b", float(np.sqrt(0.95)))
            row = found[group]
            assert np.log([row["low"], row["high"]]) == pytest.approx(expected, abs=1e-9)


def test_a_group_under_two_percent_is_not_divided_by_unless_it_is_named() -> None:
    table = people(few=(8, 8), many=(300, 600), others=(200, 400))
    found = ratios_of(table)
    assert found["few"]["value"] == pytest.approx(2)
    assert found["few"]["condition"] in ("by many", "by others")
    # It may have a higher rate than those that others are divided by.
    assert found["few"]["high"] > 1
    assert ratios_of(table, reference_groups={"group": "few"})["many"]["value"] == 0.5


def test_a_rate_of_0_has_a_ratio_with_an_upper_end() -> None:
    row = ratios_of(people(without=(0, 14), some=(60, 100)))["without"]
    # Wilson's upper end of 0 of 14.
    square = 1.96**2
    assert row["value"] == row["low"] == 0
    assert row["high"] == pytest.approx(square / (14 + square) / 0.6, rel=1e-3)
    assert row["reason"] == NO_RATE
    none = ratios_of(people(a=(0, 20), b=(0, 20)))
    assert not none


def test_words_widen_ratios_as_they_widen_gaps() -> None:
    """Words that differ: the interval that redraws them is the widest of a ratio too."""
    random = np.random.default_rng(5)
    rows = [
        {"group": f"g{group}", "term": f"g{group}w{word}", "template_id": f"t{t}", "label": t % 2,
         "pred": int(random.random() < 0.5 + 0.15 * (word - 1))}
        for group in range(3) for word in range(3) for t in range(60)
    ]  # fmt: skip
    found = raybias.measure(pl.DataFrame(rows), metric="selection_rate", scope="wording")
    wide = found.filter(statistic="ratio").drop_nulls("low")
    assert {*wide["scope"]} == {"sentences", "wording"}
    width = wide.with_columns(width=pl.col("low").log().abs()).pivot(
        "scope", index="group", values="width"
    )
    assert (width["wording"] > 1.5 * width["sentences"]).all()
