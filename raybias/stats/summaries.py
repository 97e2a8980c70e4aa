"""Summaries over models: net significance (001, Table 1) and gap spans (004, Table 4)."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema

_ACROSS_MODELS: Final = tuple(name for name in schema.KEYS if name != "model")


def net_significance(gaps: pl.DataFrame) -> pl.DataFrame:
    """Count models with a significant gap, up minus down (001, Table 1).

    Parameters
    ----------
    gaps: schema.GAPS; what counts is what `survives` the table's own correction.

    Returns
    -------
    method, dataset, probe, style, attribute, group, rate, net (+1 for each model whose gap is
    significantly above 0, -1 below) and n_models (those that could be judged).
    """
    by = [*_ACROSS_MODELS, "attribute", "group", "rate"]
    sign = pl.col("gap").sign() * pl.col("survives")
    return (
        gaps.group_by(by)
        .agg(
            net=sign.sum().cast(pl.Int64),
            n_models=pl.col("survives").is_not_null().sum().cast(pl.Int64),
        )
        .sort(by)
    )


def spans(gaps: pl.DataFrame) -> pl.DataFrame:
    """Largest minus smallest mean gap of a model's reference groups (004, Table 4).

    A span is a maximum of noisy values and so is too large on average; it has no interval.

    Returns
    -------
    The keys, attribute, rate, span, and the groups at its ends: lowest, highest (the first
    by name among equals).
    """
    by = [*schema.KEYS, "attribute", "rate"]
    inside = gaps.filter(pl.col("in_mean") & pl.col("gap").is_not_null())
    return (
        inside.sort("group")
        .group_by(by)
        .agg(
            span=pl.col("gap").max() - pl.col("gap").min(),
            lowest=pl.col("group").get(pl.col("gap").arg_min()),
            highest=pl.col("group").get(pl.col("gap").arg_max()),
        )
        .sort(by)
    )
