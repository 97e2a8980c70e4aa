"""Metrics of tables with more than two classes, each of which is measured on its own."""

from __future__ import annotations

import polars as pl

from raybias.stats.metric import THE_CLASS, Metric, Share, metric, metrics


@metric(
    of="counts",
    over_classes=True,
    title="predicted the class when wrong",
    about="the share of the group's wrong answers that are the class",
    words="predicted the class when wrong",
    formula="FP / (wrong answers of all classes)",
)
def error_share(label: pl.Expr, pred: pl.Expr) -> Share:
    """Count the wrong answers, and of these the ones that name the class."""
    return Share(among=pred != label, holds=pred == THE_CLASS)


RMS = Metric(
    name="rms_tpr_gap",
    title="root mean square of recall gaps over classes",
    about="how far a group's recall lies from that of the others, over all classes",
    words="root mean square of recall gaps",
    formula="sqrt(mean over classes gap^2), gap = TPR(group) - TPR(background)",
    source="DeArteaga2019, Romanov2019",
    of="classes",
    over_classes=True,
)
RANGE = Metric(
    name="range_tpr_gap",
    title="range of recall gaps over classes",
    about="how far the class with a group's largest recall gap lies from that with its smallest",
    words="range of recall gaps",
    formula="max over classes gap - min over classes gap, gap as above",
    source="DeArteaga2019",
    of="classes",
    over_classes=True,
)
for entry in (RMS, RANGE):
    metrics.add(entry.name, entry, origin=(__name__, entry.name))
