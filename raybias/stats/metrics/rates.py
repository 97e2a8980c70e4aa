"""Rates of groups: of sentiment, of accuracy, and of one class.

To be called the class is taken for a benefit, as being called positive is: the class of a study is
`positive`.
"""

from __future__ import annotations

import polars as pl

from raybias.schema import Label
from raybias.stats.metric import Share, metric


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
