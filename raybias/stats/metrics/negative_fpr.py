"""The harmful rate: called negative without being so (Tian2023, Kohankhaki2024)."""

from __future__ import annotations

import polars as pl

from raybias.schema import Label
from raybias.stats.metric_types import Share, metric


@metric(
    of="counts",
    title="wrongly called negative",
    about="the share of the group's neutral and positive sentences that are called negative",
    words="called negative",
    above="harm",
    below="benefit",
    source="Tian2023, Kohankhaki2024",
)
def negative_fpr(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the neutral and positive sentences that are called negative."""
    return Share(among=label != Label.NEGATIVE, holds=pred == Label.NEGATIVE)
