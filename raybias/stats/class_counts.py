"""Count the predictions of a table by class: each class against the rest, in one pass.

A class becomes a level of the classifier: a table of counts, in which the column `dataset`
begins with the number of the class, goes through the estimators of one class as if it were as many
classifiers. So gaps of all classes are estimated at once, by the same code as those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias.stats.metric import THE_CLASS

#: Parts the number of a class from the name of a training set.
_MARK: Final = "\x1f"
#: Numbers of a label or prediction that is not the class; a wrong answer has the second.
_OTHER: Final = 0
_WRONG: Final = 1
_COUNTED: Final = ("label", "pred", "n")


def by_class(cells: pl.DataFrame, classes: Sequence[int]) -> pl.DataFrame:
    """Expand counts by label and prediction to counts of each class against the rest.

    Parameters
    ----------
    cells: `label`, `pred` (null if no label could be read) and `n`, by the other columns.
    classes: numbers of the classes.

    Returns the columns of `cells`: `dataset` begins with the number of the class (`without_class`
    takes it off), and `label` and `pred` are `metric.THE_CLASS` or another number; these are equal
    exactly if the answer is right.
    """
    by = [name for name in cells.columns if name not in _COUNTED]
    right = (pl.col("pred") == pl.col("label")).fill_null(False)
    sums = cells.group_by(by, maintain_order=True).agg(
        right=pl.col("n").filter(right).sum(), wrong=pl.col("n").filter(~right).sum()
    )
    labelled = cells.group_by(*by, code="label").agg(
        tp=pl.col("n").filter(right).sum(), fn=pl.col("n").filter(~right).sum()
    )
    called = cells.filter(~right, pl.col("pred").is_not_null()).group_by(*by, code="pred")
    every = pl.DataFrame({"code": pl.Series([*classes], dtype=cells["label"].dtype)})
    counts = every.join(sums, how="cross")
    for some in (labelled, called.agg(fp=pl.col("n").sum())):
        counts = counts.join(
            some, on=[*by, "code"], how="left", nulls_equal=True, maintain_order="left"
        )
    counts = counts.with_columns(pl.col("tp", "fn", "fp").fill_null(0))
    kinds = {
        (THE_CLASS, THE_CLASS): pl.col("tp"),
        (THE_CLASS, _WRONG): pl.col("fn"),
        (_OTHER, THE_CLASS): pl.col("fp"),
        (_OTHER, _OTHER): pl.col("right") - pl.col("tp"),
        (_OTHER, _WRONG): pl.col("wrong") - pl.col("fn") - pl.col("fp"),
    }
    rows = pl.concat(
        counts.select(*by, "code", label=pl.lit(label), pred=pl.lit(pred), n=n)
        for (label, pred), n in kinds.items()
    )
    marked = pl.concat_str("code", pl.lit(_MARK), pl.col("dataset").cast(pl.String))
    expanded = rows.filter(pl.col("n") > 0).with_columns(dataset=marked)
    return expanded.select(cells.columns).cast(cells.schema)


def without_class(table: pl.DataFrame) -> pl.DataFrame:
    """Part the column `dataset` of estimates into itself and `code`, the number of the class."""
    parts = table["dataset"].cast(pl.String).str.splitn(_MARK, 2).struct
    return table.with_columns(
        dataset=parts.field("field_1"), code=parts.field("field_0").cast(pl.Int64)
    )


def recalls_by_unit(counted: pl.DataFrame) -> pl.DataFrame:
    """Count the rows of each class that are rightly called it: `items` and `hits` by `code`.

    `counted` has `unit`, label, pred and n, beside the other columns of counts.
    """
    by = [name for name in counted.columns if name not in _COUNTED]
    right = (pl.col("pred") == pl.col("label")).fill_null(False)
    return counted.group_by(*by, code="label", maintain_order=True).agg(
        items=pl.col("n").sum(), hits=pl.col("n").filter(right).sum()
    )
