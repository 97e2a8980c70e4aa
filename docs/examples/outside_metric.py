"""Add a metric from outside raybias, and compute it from a file of predictions.

    python docs/examples/outside_metric.py decisions.csv

A package registers its metrics by an entry point instead, so that studies know them too
(docs/extending.md). decisions.csv is as in gaps_with_intervals.py, with three labels.
"""

import sys

import polars as pl

import raybias
from raybias.schema import Label
from raybias.stats.metric import Share, metric


@metric(
    of="counts",
    title="charged sentences called neutral",
    about="the share of the group's negative and positive sentences that are called neutral",
    words="muted",
)
def muted(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the charged sentences that are called neutral."""
    return Share(among=label != Label.NEUTRAL, holds=pred == Label.NEUTRAL)


estimates = raybias.measure(pl.read_csv(sys.argv[1]), metric=["muted"])
mine = estimates.filter(score="muted", condition="")
print(mine.select("score", "group", "statistic", "scope", "value", "low", "high"))
