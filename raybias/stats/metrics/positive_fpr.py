"""The favourable rate: called positive without being so (Tian2023, Kohankhaki2024)."""

from __future__ import annotations

import polars as pl

from raybias.schema import Label
from raybias.stats.metric_types import Share, metric


@metric(
    of="counts",
    title="wrongly called positive",
    about="the share of the group's negative and neutral sentences that are called positive",
    words="called positive",
    above="benefit",
    below="harm",
    source="Tian2023, Kohankhaki2024",
)
def positive_fpr(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the negative and neutral sentences that are called positive."""
    return Share(among=label != Label.POSITIVE, holds=pred == Label.POSITIVE)
