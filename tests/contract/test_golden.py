"""What `make golden` names: numbers that moved, and none that was renamed."""

from __future__ import annotations

import polars as pl
import pytest

import golden


def facts(**columns: object) -> pl.DataFrame:
    frame = pl.DataFrame({"group": ["a", "b"], "note": ["", None], "scores": [[1.0, 2.0], [3.0]]})
    return golden._facts("foreign: x", "gaps", frame.with_columns(**columns))


def test_what_differs_is_named_and_what_was_renamed_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = facts(gap=pl.Series([0.5, float("nan")]), low=pl.Series([1.0, 2.0]))
    assert old.filter(column="gap").rows() == [("foreign: x", "gaps", "group=a", "gap", 0.5, None)]
    now = facts(gap=pl.Series([0.5 + 1e-11, None]), low=pl.Series([1.0, 2.0 + 1e-6]))
    (wrong,) = golden.differences("foreign", old, now).rows()
    assert wrong == ("foreign: x", "gaps", "group=b", "low", "2.0", "2.000001")
    assert golden.differences("foreign", old, old.head(2)).height == 4

    renamed = {("*", "new", "*"): ("gaps", "*"), ("foreign", "new", "who"): ("gaps", "group")}
    monkeypatch.setattr(golden, "RENAMED", renamed)
    table = pl.DataFrame({"who": ["a", "b"], "gap": [0.5, None], "scores": [[1.0, 2.0], [3.0]]})
    found = golden._facts("foreign: x", "new", table)
    assert golden.differences("foreign", old.filter(pl.col("column") != "low"), found).is_empty()
