"""Rates of one class: how often a group is called it, by whether it is right.

That is taken for a benefit, as being called positive is: the class of a study is `positive`.
"""

from __future__ import annotations

import polars as pl

from raybias.stats.metric_types import Share, metric


@metric(
    of="class",
    title="wrongly called the class",
    about="the share of the group's examples not of the class that are called it",
    words="wrongly called the class",
    above="benefit",
    below="harm",
    formula="FP / (FP + TN)",
    source="Hardt2016",
)
def fpr(gold: pl.Expr, called: pl.Expr) -> Share:
    """Count the examples not of the class that are called it."""
    return Share(among=~gold, holds=called)


@metric(
    of="class",
    title="missed",
    about="the share of the group's examples of the class that are not called it",
    words="missed",
    above="harm",
    below="benefit",
    formula="FN / (TP + FN)",
    source="Hardt2016",
)
def fnr(gold: pl.Expr, called: pl.Expr) -> Share:
    """Count the examples of the class that are not called it."""
    return Share(among=gold, holds=~called)


@metric(
    of="class",
    title="rightly called the class",
    about="the share of the group's examples of the class that are called it",
    words="rightly called the class",
    above="benefit",
    below="harm",
    formula="TP / (TP + FN)",
    source="Hardt2016",
)
def tpr(gold: pl.Expr, called: pl.Expr) -> Share:
    """Count the examples of the class that are called it."""
    return Share(among=gold, holds=called)


@metric(
    of="class",
    title="rightly not called the class",
    about="the share of the group's examples not of the class that are not called it",
    words="rightly not called the class",
    above="harm",
    below="benefit",
    formula="TN / (TN + FP)",
    source="Hardt2016",
)
def tnr(gold: pl.Expr, called: pl.Expr) -> Share:
    """Count the examples not of the class that are not called it."""
    return Share(among=~gold, holds=~called)


@metric(
    of="class",
    title="called the class",
    about="the share of the group's examples that are called the class",
    words="called the class",
    above="benefit",
    below="harm",
    formula="(TP + FP) / n",
    source="Dwork2012",
)
def selection_rate(gold: pl.Expr, called: pl.Expr) -> Share:
    """Count the examples that are called the class."""
    return Share(among=gold | ~gold, holds=called)
