"""Read anyone's predictions: a table of labels, predictions or scores, and groups.

What is not there is filled in: `model` is the file's name, `attribute` is "group", an item is named
by its place in its run. `pred` may be left out where there is a `score` of class 1: it is 1 from
0.5 on. Without templates, source examples are what could be drawn anew, else blocks of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.table_files import refuse

#: Columns beside those of schema.PREDICTIONS: the score of class 1, and what names the source
#: example of versions that differ in the group alone (else `template_id` does).
EXTRA: Final = pl.Schema({"score": pl.Float64(), "source_id": pl.String()})
#: Begins a `template_id` that is a block of items, which are drawn anew where no templates are
#: known. A thousand blocks vary their mean as much as drawing items one by one.
BLOCK: Final = "items "
_BLOCKS: Final = 1_000
#: Between the attributes and the groups of an intersection.
CROSSED: Final = ", "
_TYPES: Final = pl.Schema({**pl.Schema(schema.PREDICTIONS), **EXTRA})
_TEXTS: Final = ("run_id", "method", "dataset", "probe")
_CALLED: Final = 0.5
#: Labels that a message names.
_NAMED: Final = 5
_CURE: Final = "mend the row or leave it out"
_SENTIMENT: Final = {name: str(number) for number, name in enumerate(schema.LABELS)}
_SAID: Final = {"true": "1", "false": "0"}


@dataclass(frozen=True)
class Columns:
    """Where a table of others has what predictions need."""

    label: str = "label"
    pred: str = "pred"
    by: tuple[str, ...] = ()
    """Columns of groups, each an attribute; several are also crossed. By default `group`, of the
    attribute that a column `attribute` names."""
    positive: str = ""
    """The word of the class, where labels are words of one's own."""


def plain_predictions(
    table: pl.DataFrame, *, name: str, where: str, columns: Columns | None = None
) -> pl.DataFrame:
    """Make schema.PREDICTIONS, and the columns of `EXTRA`, of a table.

    Parameters
    ----------
    table: `label`, `group`, and `pred` or `score`; other columns of both as far as they are known.
    name: of its file.
    where: the file's path, for messages.
    columns: where these are, if not under their own names.

    Raises
    ------
    DataError: a missing column, no rows, a label that is neither a number nor a word that is known,
        a score that is no number, or an empty group.
    """
    columns = columns or Columns()
    table = _named(table, columns, where)
    _check_columns(table, where)
    there = table.columns
    found = _numbered(table, columns, where)
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
    own = [*schema.KEYS, "attribute"]
    if "item_id" not in there:
        place = pl.int_range(pl.len()).over([*own, "run_id"]).cast(pl.String).str.zfill(9)
        found = found.with_columns(item_id=pl.col("attribute") + "." + place)
    known = [unit for unit in ("template_id", "source_id") if unit in there]
    found = found.with_columns(template_id=unit_of(own, known))
    return found.select(
        (pl.col(column) if column in found.columns else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in _TYPES.items()
    )


def unit_of(own: Sequence[str], known: Sequence[str]) -> pl.Expr:
    """Name what is drawn anew: the first of `known` that is whole, else blocks of items.

    Parameters
    ----------
    own: columns within which it must be whole: those of a classifier on an attribute.
    known: columns of text.
    """
    whole = [pl.when((pl.col(name).null_count() == 0).over(own)).then(name) for name in known]
    block = (pl.col("item_id").rank("dense").over(own) % _BLOCKS).cast(pl.String)
    return pl.coalesce(*whole, pl.lit(BLOCK) + block)


def _named(table: pl.DataFrame, columns: Columns, where: str) -> pl.DataFrame:
    """Give columns the names of predictions; of several attributes, below one another."""
    asked = {columns.label: "label", columns.pred: "pred"}
    wanted = [*(name for name, own in asked.items() if name != own), *columns.by]
    if missing := [name for name in wanted if name not in table.columns]:
        raise DataError(
            f"has no column {missing[0]!r}",
            where=where,
            cure=f"its columns are {', '.join(table.columns)}",
        )
    own = [name for name, there in asked.items() if name != there]
    table = table.drop([asked[name] for name in own], strict=False).rename(
        {name: asked[name] for name in own}
    )
    if not columns.by:
        return table
    groups = {name: pl.col(name).cast(pl.String) for name in columns.by}
    if len(columns.by) > 1:
        # A missing group of one attribute is one of the crossed.
        groups[CROSSED.join(columns.by)] = pl.concat_str(groups.values(), separator=CROSSED)
    rows = table.with_row_index("row")
    parts = []
    for attribute, group in groups.items():
        part = rows.with_columns(group=group, attribute=pl.lit(attribute))
        if "item_id" in table.columns:
            part = part.with_columns(item_id=pl.concat_str(pl.lit(f"{attribute}."), "item_id"))
        parts.append(part)
    return pl.concat(parts).sort("row", maintain_order=True).drop("row")


def _check_columns(table: pl.DataFrame, where: str) -> None:
    there = table.columns
    missing = [column for column in ("label", "group") if column not in there]
    if "pred" not in there and "score" not in there:
        missing.append("pred (or score)")
    if missing:
        raise DataError(
            f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            cure="predictions need label, group, and pred or score; --label-column, --pred-column "
            "and --by name columns that are called otherwise",
        )
    if not table.height:
        raise DataError("holds no predictions", where=where, cure="leave it out")


def _numbered(table: pl.DataFrame, columns: Columns, where: str) -> pl.DataFrame:
    """Write labels as schema.Label, or as 0 and 1 where the class is a word."""
    there = [name for name in ("label", "pred") if name in table.columns]
    texts = {name: table[name].cast(pl.String).str.strip_chars() for name in there}
    words = pl.concat(texts.values()).drop_nulls().unique().sort()
    numbers = words.cast(pl.Float64, strict=False).is_not_null().all()
    if columns.positive and columns.positive not in words:
        raise DataError(
            f"no label is {columns.positive!r}",
            where=where,
            cure=f"choose the class from {', '.join(words.head(_NAMED))}",
        )
    if columns.positive and not numbers:
        codes: dict[str, str] = {word: str(int(word == columns.positive)) for word in words}
    else:
        codes = {**_SENTIMENT, **_SAID, **{each.title(): code for each, code in _SAID.items()}}
    coded = []
    for name, text in texts.items():
        number = text.replace(codes).cast(pl.Float64, strict=False)
        known = number.is_in([float(label) for label in schema.Label]).fill_null(False)
        refuse(~known, table[name], "is not 0, 1 or 2", where, _cure(words, numbers=numbers))
        coded.append(number.cast(pl.Int8).alias(name))
    if "score" in table.columns:
        given = table["score"]
        score = given.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
        refuse(~score.is_finite().fill_null(False), given, "is not a number", where, _CURE)
        coded.append(score)
    return table.with_columns(coded)


def _cure(words: pl.Series, *, numbers: bool) -> str:
    if numbers or len(words) > _NAMED:
        return _CURE
    return f"say which of {', '.join(words)} is the class: --positive {words[-1]}"
