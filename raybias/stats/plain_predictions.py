"""Read anyone's predictions: a table of labels, predictions or scores, and groups.

What is not there is filled in: `model` is the file's name, `attribute` is "group", an item is named
by its place in its run. `pred` may be left out where there is a `score` of class 1: it is 1 from
0.5 on.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.table_files import refuse

#: Columns beside those of schema.PREDICTIONS: the score of class 1, and what names the source
#: example of versions that differ in the group alone (else `template_id` does).
EXTRA: Final = pl.Schema({"score": pl.Float64(), "source_id": pl.String()})
_TYPES: Final = pl.Schema({**pl.Schema(schema.PREDICTIONS), **EXTRA})
_TEXTS: Final = ("run_id", "method", "dataset", "probe")
_CALLED: Final = 0.5
_CURE: Final = "mend the row or leave it out"


def plain_predictions(table: pl.DataFrame, *, name: str, where: str) -> pl.DataFrame:
    """Make schema.PREDICTIONS, and the columns of `EXTRA`, of a table.

    Parameters
    ----------
    table: `label`, `group`, and `pred` or `score`; other columns of both as far as they are known.
    name: of its file.
    where: the file's path, for messages.

    Raises
    ------
    DataError: a missing column, no rows, a label that is not 0, 1 or 2, a score that is no number,
        or an empty group.
    """
    _check_columns(table, where)
    there = table.columns
    found = table.with_columns(
        _numbers(table, column, where) for column in ("label", "pred", "score") if column in there
    )
    if "pred" not in there:
        beyond = found["label"] > 1
        refuse(beyond, table["label"], "is not 0 or 1, as beside a score", where, _CURE)
        found = found.with_columns(pred=(pl.col("score") >= _CALLED).cast(pl.Int8))
    stem = name.rpartition("/")[2].split(".")[0]
    for column, default in (("model", stem), ("attribute", "group")):
        if column not in there:
            found = found.with_columns(pl.lit(default).alias(column))
    for column in ("model", "attribute", "group"):
        text = found[column].cast(pl.String)
        refuse(text.is_null() | (text.str.strip_chars() == ""), text, "is empty", where, _CURE)
    filled = [
        pl.col(name).cast(pl.String).fill_null("") if name in there else pl.lit("").alias(name)
        for name in _TEXTS
    ]
    style = pl.col("style") if "style" in there else pl.lit(None, pl.String)
    found = found.with_columns(*filled, style=style.fill_null("original"), parsed=pl.lit(True))
    if "item_id" not in there:
        run = [*schema.KEYS, "run_id", "attribute"]
        place = pl.int_range(pl.len()).over(run).cast(pl.String).str.zfill(9)
        found = found.with_columns(item_id=pl.col("attribute") + "." + place)
    return found.select(
        (pl.col(column) if column in found.columns else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in _TYPES.items()
    )


def _check_columns(table: pl.DataFrame, where: str) -> None:
    there = table.columns
    missing = [column for column in ("label", "group") if column not in there]
    if "pred" not in there and "score" not in there:
        missing.append("pred (or score)")
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            cure="predictions need label, group, and pred or score",
        )
    if not table.height:
        raise DataError("holds no predictions", where=where, cure="leave it out")


def _numbers(table: pl.DataFrame, column: str, where: str) -> pl.Series:
    given = table[column]
    found = given.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    if column == "score":
        refuse(~found.is_finite().fill_null(False), given, "is not a number", where, _CURE)
        return found
    known = found.is_in([float(label) for label in schema.Label]).fill_null(False)
    refuse(~known, given, "is not 0, 1 or 2", where, _CURE)
    return found.cast(pl.Int8)
