"""Accuracy, of which gaps can be taken too (Kohankhaki2024 reports its mean over all groups)."""

from __future__ import annotations

import polars as pl

from raybias.stats.metric_types import Share, metric


@metric(
    of="counts",
    title="rightly classified",
    about="the share of the group's sentences whose label is right",
    words="rightly classified",
    above="benefit",
    below="harm",
    source="Kohankhaki2024",
)
def accuracy(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the sentences whose label is right."""
    return Share(among=label.is_not_null(), holds=pred == label)
