"""From cells to the values of metrics per run and group, and to accuracies.

It does not know which groups are compared with which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.metric import DEFAULT, VALUES, counted, shares

#: The attribute of an accuracy over all attributes of a probe.
ALL: Final = "all"


def rates(
    cells: pl.DataFrame,
    metrics: Sequence[str] = DEFAULT,
    values: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compute the metrics per group and run; by default one-vs-rest false positive rates.

    Parameters
    ----------
    cells: schema.CELLS.
    metrics: their names.
    values: of `run_values`, for the metrics that are of predictions.

    Returns
    -------
    The run keys, attribute, group, rate (the metric's name), n_items (the items that count, FP +
    TN for a false positive rate) and value, null where n_items is 0.
    """
    by = [*RUN_KEYS, "attribute", "group"]
    cells = cells.cast({pl.String: pl.Categorical})
    tables = [
        cells.group_by(by).agg(*counted(share), rate=pl.lit(name))
        for name, share in shares(metrics).items()
    ]
    value = pl.when(pl.col("n_items") > 0).then(pl.col("hits") / pl.col("n_items"))
    found = [
        table.select(pl.exclude("hits"), value=value).select(VALUES.names()) for table in tables
    ]
    more = [] if values is None else [values.filter(pl.col("rate").is_in(list(metrics)))]
    none = pl.DataFrame(schema=VALUES)
    return pl.concat([none, *(table.cast(VALUES) for table in (*found, *more))]).sort(*by, "rate")


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
    cells = without_extras(cells).cast({pl.String: pl.Categorical})
    apart = cells.group_by(by).agg(*counted(shares(["accuracy"])["accuracy"]))
    apart = apart.cast({pl.Categorical: pl.String})
    together = (
        apart.filter(pl.col("attribute").n_unique().over("probe") > 1)
        .group_by(RUN_KEYS)
        .agg(pl.lit(ALL).alias("attribute"), pl.col("n_items", "hits").sum())
    )
    last = pl.col("attribute") == ALL
    return (
        # Sorted runs make the float sums the same for any order of the rows.
        pl.concat([apart, together.select(apart.columns)])
        .with_columns(accuracy=pl.col("hits") / pl.col("n_items"))
        .sort(*schema.KEYS, last, "attribute", "run_id")
        .group_by(*schema.KEYS, "attribute", maintain_order=True)
        .agg(
            mean=pl.col("accuracy").mean(),
            sd=pl.col("accuracy").std(ddof=1),
            n_runs=pl.len().cast(pl.Int64),
            n_items=pl.col("n_items").min(),
        )
        .select(schema.ACCURACY.names)
    )
