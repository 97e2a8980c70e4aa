"""From cells to per-run false positive rates and accuracies.

It does not know which groups are compared with which.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema
from raybias.schema import Label
from raybias.stats.cells import RUN_KEYS, summed, without_extras

#: The two reported rates and the class each takes against the rest.
RATES: Final = {"negative_fpr": Label.NEGATIVE, "positive_fpr": Label.POSITIVE}

#: The attribute of an accuracy over all attributes of a probe.
ALL: Final = "all"


def rates(cells: pl.DataFrame) -> pl.DataFrame:
    """Compute one-vs-rest false positive rates per group and run (Tian2023, Kohankhaki2024).

    Parameters
    ----------
    cells: schema.CELLS.

    Returns
    -------
    The run keys, attribute, group, rate (a name of `RATES`), false_positives, n_items
    (FP + TN sentences) and value in [0, 1], null where n_items is 0.
    """
    by = [*RUN_KEYS, "attribute", "group"]
    counts = summed(cells, [*by, "label", "pred"]).cast({pl.Categorical: pl.String})
    other = {rate: pl.col("label") != int(label) for rate, label in RATES.items()}
    tables = [
        counts.group_by(by)
        .agg(
            rate=pl.lit(rate),
            false_positives=pl.col("n").filter(other[rate] & (pl.col("pred") == int(label))).sum(),
            n_items=pl.col("n").filter(other[rate]).sum(),
        )
        .with_columns(pl.col("rate").cast(pl.String))
        for rate, label in RATES.items()
    ]
    value = pl.when(pl.col("n_items") > 0).then(pl.col("false_positives") / pl.col("n_items"))
    return pl.concat(tables).with_columns(value=value).sort(*by, "rate")


def accuracies(cells: pl.DataFrame) -> pl.DataFrame:
    """Compute accuracy per attribute: mean and sd over runs (Kohankhaki2024, Table 2).

    A probe with several attributes also has the attribute `all`, over all sentences of a run
    (Kohankhaki2024, Table 3). An answer without a label counts as wrong; the extra groups do not
    count.

    Returns
    -------
    schema.ACCURACY; `sd` (ddof 1) is null for one run, `n_items` is the sentences of a run
    (the fewest, where runs differ).
    """
    by = [*RUN_KEYS, "attribute"]
    counts = summed(without_extras(cells), [*by, "label", "pred"])
    counts = counts.cast({pl.Categorical: pl.String})
    right = (pl.col("label") == pl.col("pred")).fill_null(False)
    apart = counts.group_by(by).agg(
        n_items=pl.col("n").sum(), right=pl.col("n").filter(right).sum()
    )
    together = (
        apart.filter(pl.col("attribute").n_unique().over("probe") > 1)
        .group_by(RUN_KEYS)
        .agg(pl.lit(ALL).alias("attribute"), pl.col("n_items", "right").sum())
    )
    keys = [*schema.KEYS, "attribute"]
    last = pl.col("attribute") == ALL
    return (
        # Sorted runs make the float sums the same for any order of the rows.
        pl.concat([apart, together.select(apart.columns)])
        .with_columns(accuracy=pl.col("right") / pl.col("n_items"))
        .sort(*schema.KEYS, last, "attribute", "run_id")
        .group_by(keys, maintain_order=True)
        .agg(
            mean=pl.col("accuracy").mean(),
            sd=pl.col("accuracy").std(ddof=1),
            n_runs=pl.len().cast(pl.Int64),
            n_items=pl.col("n_items").min(),
        )
        .select(schema.ACCURACY.names)
    )
