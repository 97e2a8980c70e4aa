"""Count predictions: a cell is how many one run has of an item's kind and predicted label.

Prompted classifiers are read twice: the sampled answer, and the likeliest label, under method names
of their own.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema
from raybias.table_files import conformed

#: What names one run of one classifier on one probe.
RUN_KEYS: Final = (*schema.KEYS, "run_id")
#: What names one classifier on one attribute.
TABLE: Final = (*schema.KEYS, "attribute")

#: Ends the method name of the second reading of a prompted classifier.
LIKELIHOOD: Final = "+likelihood"


def cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions as schema.CELLS; a null `pred`, which is always wrong, counts apart."""
    types = pl.Schema(schema.CELLS)
    counted = predictions.lazy().group_by(types.names()[:-1], maintain_order=True)
    return counted.agg(n=pl.len()).cast(types).collect()


def without_extras(cells: pl.DataFrame) -> pl.DataFrame:
    """Drop the rows of schema.EXTRA_GROUPS, which are no protected groups."""
    extra = cells["group"].is_in(schema.EXTRA_GROUPS)
    return cells.filter(~extra) if extra.any() else cells


def with_likelihood(predictions: pl.DataFrame) -> pl.DataFrame:
    """Add the likelihood reading below prompted predictions, which have an answer and scores.

    It is of method `METHOD+likelihood`, with the label of the highest score. A judge's verdict,
    which has one score, has none.
    """
    answered = predictions.filter(
        pl.col("answer").is_not_null()
        & pl.col("scores").list.len().fill_null(0).ge(len(schema.LABELS))
    )
    second = answered.with_columns(
        method=(pl.col("method").cast(pl.String) + LIKELIHOOD).cast(predictions["method"].dtype),
        pred=pl.col("scores").list.arg_max().cast(pl.Int8),
        parsed=pl.lit(True),
        unread=pl.lit(None, pl.String),
        answer=pl.lit(None, pl.String),
    )
    return pl.concat([predictions, second]) if second.height else predictions


def answers(counted: pl.DataFrame) -> pl.DataFrame:
    """Count the answers of prompted classifiers that hold no label: schema.ANSWERS.

    `counted` has a row per run: the run keys, predictions, unparsed, several, negated. A row with
    the run id `all` is added per classifier and probe.
    """
    sums = pl.col("predictions", "unparsed", "several", "negated").sum()
    runs = counted.group_by(RUN_KEYS).agg(sums)
    overall = runs.group_by(schema.KEYS).agg(pl.lit("all").alias("run_id"), sums)
    both = pl.concat([runs, overall.select(runs.columns)])
    last = pl.col("run_id") == "all"
    shared = both.with_columns(share=pl.col("unparsed") / pl.col("predictions"))
    return conformed(shared.sort(*schema.KEYS, last, "run_id"), pl.Schema(schema.ANSWERS))


def composition(cells: pl.DataFrame) -> pl.DataFrame:
    """Count the sentences of each group, by right label (Kohankhaki2024, Table 5).

    Gives probe, attribute, group; `items` of one run by label and together (the most, where runs
    differ); `predictions` of one classifier's runs likewise; and `fraction`, the group's share of
    the attribute's items (null for the extra groups).
    """
    place = ["probe", "attribute", "group", "label"]
    per_run = cells.group_by(*RUN_KEYS, *place[1:]).agg(pl.col("n").sum())
    per_classifier = per_run.group_by(*schema.KEYS, *place[1:]).agg(
        items=pl.col("n").max(), predictions=pl.col("n").sum()
    )
    kinds = ("items", "predictions")
    counts = per_classifier.group_by(place).agg(pl.col(kinds).max())
    sums = [
        pl.col(kind).filter(pl.lit(value=True) if label is None else pl.col("label") == label)
        .sum().alias(f"{kind}{end}")
        for kind in kinds
        for label, end in (*enumerate(f"_{name}" for name in schema.LABELS), (None, ""))
    ]  # fmt: skip
    wide = counts.group_by(place[:3]).agg(sums).cast({pl.Categorical: pl.String})
    own = pl.when(~pl.col("group").is_in(schema.EXTRA_GROUPS)).then("items")
    return wide.with_columns(fraction=own / own.sum().over(place[:2])).sort(place[:3])
