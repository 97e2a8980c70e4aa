"""Where two metrics are one number twice.

If every sentence of an attribute is neutral and a classifier calls none of them neutral,
what is not called negative is called positive: the gaps of the two rates differ in their
sign alone, and testing both is testing one result twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import polars as pl

from raybias import schema
from raybias.stats.cells import RUN_KEYS
from raybias.stats.intervals import MIRROR
from raybias.stats.metric import DEFAULT, shares
from raybias.stats.metric_types import metrics
from raybias.stats.reference_groups import StatisticsWarning

#: The largest share of any group's sentences in any run that neither metric counts.
_SHARE: Final = 0.01


def mirrored_rates(
    cells: pl.DataFrame, rates: pl.DataFrame, names: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Find the classifiers of which one metric is what another leaves.

    Two metrics mirror each other if they count the same sentences of an attribute and their
    values add to 1; the first by name is the one that counts.

    Parameters
    ----------
    cells: schema.CELLS without the extra groups.
    rates: of `stats.rates` on them.
    names: of the metrics.

    Returns
    -------
    The keys, attribute, rate (the second), mirrors (the first) and no_verdict.
    """
    place = ["probe", "attribute"]
    kinds = cells.select(*place, "label", "pred").unique().cast({pl.Categorical: pl.String})
    by = [*schema.KEYS, "attribute"]
    types = dict.fromkeys((*by, "rate", "mirrors", "no_verdict"), pl.String)
    tables = [pl.DataFrame(schema=types)]
    for (first, one), (second, other) in combinations(sorted(shares(names).items()), 2):
        same = kinds.group_by(place).agg((one.among == other.among).all().alias("same"))
        concerned = rates.filter(pl.col("rate").is_in([first, second])).join(
            same.filter("same"), on=place, how="semi", nulls_equal=True
        )
        together = concerned.group_by(*RUN_KEYS, "attribute", "group").agg(pl.col("value").sum())
        off = (pl.col("value") - 1).abs().max()
        tables.append(
            together.group_by(by)
            .agg(off.alias("off"))
            .filter(pl.col("off") <= _SHARE)
            .select(
                *by,
                rate=pl.lit(second),
                mirrors=pl.lit(first),
                no_verdict=pl.lit(MIRROR + first),
            )
        )
    # Of several that a rate mirrors, the first.
    found = pl.concat(tables).sort(by, maintain_order=True)
    return found.unique([*by, "rate"], keep="first", maintain_order=True)


def warn_mirrored(found: pl.DataFrame, *, counted: str) -> None:
    """Say of which classifiers two metrics are one result, but of those that always are."""
    always = [name for name, entry in metrics.items() if entry.one_class is not None]
    told = ~(pl.col("rate").is_in(always) & pl.col("mirrors").is_in(always))
    for row in found.filter(told).iter_rows(named=True):
        name = " ".join(row[key] for key in ("model", "method") if row[key])
        place = " ".join(row[key] for key in ("probe", "attribute") if row[key])
        warnings.warn(
            f"{name} on {place}: {row['rate']} is (almost) what {row['mirrors']} leaves, one "
            f"result with two signs, {counted}",
            StatisticsWarning,
            stacklevel=4,
        )
