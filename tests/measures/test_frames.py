"""Tables in memory: of pandas, Polars or Python; and groups that are all treated alike."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raybias
from raybias.errors import DataError
from raybias.stats.checks import StatisticsWarning


def rates(table: Any, **options: Any) -> dict[str, Any]:
    """The rates of each group and score that raybias finds."""
    found = raybias.measure(table, **options)
    shown = found.filter(pl.col("group") != "all", statistic="rate")
    return {(row["group"], row["score"]): row["value"] for row in shown.iter_rows(named=True)}


def people(n: int = 60) -> pd.DataFrame:
    """A frame of pandas."""
    random = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "label": random.integers(0, 2, n),
            "pred": random.integers(0, 2, n),
            "sex": random.choice(["female", "male"], n),
            "age": random.integers(18, 80, n),
        }
    )


def test_frames_of_every_kind_are_read_or_one_line() -> None:
    frame = people()
    whole = rates(frame, by="sex")
    assert {group for group, _ in whole} == {"female", "male"}
    assert rates(pl.from_pandas(frame).lazy(), by="sex") == whole
    assert rates({name: frame[name] for name in frame}, by=("sex",)) == whole
    assert rates(pd.concat([frame, frame[["age"]]], axis=1), by="sex") == whole
    banded = frame.assign(band=pd.cut(frame["age"], [0, 40, 90]))
    assert {group for group, _ in rates(banded, by="band")} == {"(0, 40]", "(40, 90]"}
    columns = {name: [*banded[name]] for name in ("label", "pred")}
    assert {g for g, _ in rates({**columns, "group": [*banded["band"]]})} == {"(0, 40]", "(40, 90]"}
    for wrong, message in (
        (frame["label"], "one column is no table"),
        (pl.Series([1, 2]), "one column is no table"),
        ([frame["label"], frame["pred"]], "one column is no table"),
        (None, "None is no file and no table"),
        ({"label": [0, 1], "pred": [1], "group": ["a", "b"]}, "cannot be read as a table"),
        (
            pl.DataFrame({"label": [0], "pred": [0], "group": [[1]]}),
            r"^the table: group is List\(Int64\), not text",
        ),
    ):
        with pytest.raises(DataError, match=message):
            raybias.measure(wrong)


def test_a_call_warns_once_of_each_thing_at_the_line_that_calls() -> None:
    table = {"group": [f"g{n:02}" for n in range(25)] * 2, "label": [1] * 50, "pred": [1, 0] * 25}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        raybias.measure(table)
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    assert "fpr of group g00, g01, g02, g03, g04 and 20 more are undefined" in str(
        caught[0].message
    )


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 12), min_size=3, max_size=7),
    st.sampled_from([3, 20, 60]),
    st.sets(st.integers(0, 59), max_size=12),
    st.booleans(),
)
def test_equal_rates_are_no_finding(
    words: list[int], templates: int, wrong: set[int], several: bool
) -> None:
    """A classifier that reads the template alone treats groups of any number of words alike."""
    rows = [
        {
            "group": f"g{g}",
            "template_id": f"t{t}",
            "item_id": f"{g}.{t}.{w}",
            "run_id": run,
            "label": t % 3,
            "pred": (t + (t in wrong)) % 3,
        }
        for run in ("r1", "r2")[: 1 + several]
        for g, number in enumerate(words)
        for t in range(templates)
        for w in range(number)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        found = raybias.measure(pl.DataFrame(rows), kind="predictions")
    compared = found.filter(pl.col("statistic").is_in(["gap", "ratio"]))
    assert not compared["significant"].fill_null(value=False).any()
    gaps = compared.filter(statistic="gap", condition="").drop_nulls("value")
    assert (gaps["value"] == 0).all()
    assert gaps["low"].null_count() == gaps.height
