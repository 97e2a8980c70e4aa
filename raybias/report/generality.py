"""Tables for people on what goes beyond one classifier's gap: models together, and rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.report import wording
from raybias.report.summary_tables import Cell, Row, SummaryTable, same, table
from raybias.stats.over_models import MODEL_REDRAWN
from raybias.stats.scopes import REDRAWN, SCOPES

#: What the chances of extremes are.
_CHANCE: Final = (
    "p of lowest and highest: the chance of as many models or more if in every sentence the groups "
    "exchanged their names at random, alike in all models and runs; groups at one end share a model"
)
_KEYS: Final = ("method", "dataset", "style")


def over_models(judged: pl.DataFrame) -> SummaryTable:
    """Show the mean gaps over models, an interval a scope, and in how many a group is extreme.

    Parameters
    ----------
    judged: schema.OVER_MODELS.
    """
    keys = [*schema.KEYS[1:], "attribute", "rate", "group"]
    wide = judged.unique(keys, keep="first", maintain_order=True)
    for scope in MODEL_REDRAWN:
        one = judged.filter(scope=scope).select(
            *keys, pl.struct("low", "high", "survives").alias(f"of {scope}")
        )
        wide = wide.join(one, on=keys, how="left", nulls_equal=True, maintain_order="left")
    varying = [key for key in (*_KEYS, "probe", "attribute") if judged[key].n_unique() > 1]
    columns: dict[str, Cell] = {
        **same(*varying, "rate", "group"),
        "mean gap": lambda row: wording.signed(row["gap"]),
        **{
            question: _interval(f"of {scope}")
            for scope, question in MODEL_REDRAWN.items()
            if scope in judged["scope"]
        },
        "lowest in": _models("lowest"),
        "highest in": _models("highest"),
    }
    title = "On average over models (* significant after correction)"
    return table(title, wide, columns)


def chance(judged: pl.DataFrame) -> str:
    """Say what the p of extremes are, and what the smallest is among as many.

    Parameters
    ----------
    judged: schema.OVER_MODELS.
    """
    each = judged.unique([*schema.KEYS[1:], "attribute", "rate", "group"])
    p = pl.concat([each["p_lowest"], each["p_highest"]]).drop_nulls().to_list()
    if not p:
        return f"{_CHANCE}."
    least, most = min(p), min(1.0, len(p) * min(p))
    return (
        f"{_CHANCE}. The smallest of these {len(p)} is {wording.probability(least)}, which is "
        f"{wording.probability(most)} after correction for their number (Bonferroni)."
    )


def reliability(rankings: pl.DataFrame) -> SummaryTable:
    """Sum up, over classifiers or groups, how reliable the rankings of each kind are.

    Parameters
    ----------
    rankings: schema.RELIABILITY.
    """
    value = pl.col("reliability")
    summed = (
        rankings.group_by("ranking", "rate", "scope")
        .agg(value.median().alias("middle"), value.min().alias("low"), value.max().alias("high"),
             pl.col("spread", "error").median(), n=pl.len())
        .sort("ranking", "rate", pl.col("scope").cast(pl.Enum(SCOPES)))
    )  # fmt: skip
    return table(
        "Would the ranking come out again? About the correlation with another such study",
        summed,
        {
            **same("ranking", "rate"),
            "drawn anew": lambda row: REDRAWN[row["scope"]],
            "reliability (median)": lambda row: wording.number(row["middle"], 2),
            "lowest to highest": lambda row: " to ".join(
                wording.number(row[end], 2) for end in ("low", "high")
            ),
            "sd of true gaps": lambda row: wording.number(row["spread"]),
            "sd of error": lambda row: wording.number(row["error"]),
            "rankings": "n",
        },
    )


def _interval(column: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found: dict[str, Any] = row[column]
        return wording.span(found["low"], found["high"]) + (" *" if found["survives"] else "")

    return cell


def _models(end: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        count = row[f"n_{end}"]
        if count is None:
            return ""
        chance = f" (p {wording.probability(row[f'p_{end}'])})" if count else ""
        return f"{count:.3g} of {row['n_models']}{chance}"

    return cell
