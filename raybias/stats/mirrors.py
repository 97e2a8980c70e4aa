"""Where the two false positive rates are one number twice.

If every sentence of an attribute is neutral and a classifier calls none of them neutral,
what is not called negative is called positive: the gaps of the two rates differ in their
sign alone, and testing both is testing one result twice.
"""

from __future__ import annotations

import warnings
from typing import Final

import polars as pl

from raybias import schema
from raybias.schema import Label
from raybias.stats.cells import RUN_KEYS
from raybias.stats.intervals import MIRRORED
from raybias.stats.reference_groups import StatisticsWarning

#: The largest share of any group's sentences in any run that may be called neutral.
_SHARE: Final = 0.01


def mirrored_rates(cells: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """Find the classifiers whose positive_fpr is what negative_fpr leaves.

    Parameters
    ----------
    cells: schema.CELLS without the extra groups.
    rates: of `stats.rates` on them.

    Returns
    -------
    The keys, attribute, rate (positive_fpr; negative_fpr is the one that counts), no_verdict.
    """
    labels = cells.select("probe", "attribute", "label").unique().cast({pl.Categorical: pl.String})
    only = labels.filter((pl.col("label") == Label.NEUTRAL).all().over("probe", "attribute"))
    concerned = rates.join(only, on=["probe", "attribute"], how="semi", nulls_equal=True)
    by = [*schema.KEYS, "attribute"]
    return (
        concerned.group_by(*RUN_KEYS, "attribute", "group")
        .agg(together=pl.col("value").sum())
        .group_by(by)
        .agg(pl.col("together").min())
        .filter(pl.col("together") >= 1 - _SHARE)
        .select(*by, rate=pl.lit("positive_fpr"), no_verdict=pl.lit(MIRRORED))
        .sort(by)
    )


def warn_mirrored(found: pl.DataFrame, *, counted: str) -> None:
    """Say of which classifiers the two rates are one result."""
    for row in found.iter_rows(named=True):
        name = " ".join(row[key] for key in ("model", "method") if row[key])
        place = " ".join(row[key] for key in ("probe", "attribute") if row[key])
        warnings.warn(
            f"{name} calls (almost) no sentence of {place} neutral, and all of them are: its "
            f"positive_fpr is what negative_fpr leaves, one result with two signs, {counted}",
            StatisticsWarning,
            stacklevel=4,
        )
