"""The accuracy of classifiers, beside what always naming the commonest label would reach."""

from __future__ import annotations

from functools import partial

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import under
from raybias.report import wording
from raybias.report.rendering import TextTable, count, same, table, worded
from raybias.stats.counts import without_extras
from raybias.stats.scopes import SCOPES


def chance_of(composition: pl.DataFrame) -> pl.DataFrame:
    """Return the share of the commonest label in `stats.composition`, by probe and attribute."""
    groups = without_extras(composition)
    place, labels = ["probe", "attribute"], [*label_columns(composition)]
    counts = pl.concat([groups.with_columns(attribute=pl.lit(schema.ALL)), groups])
    sums = counts.group_by(place).agg(pl.col(labels).sum())
    return sums.select(*place, chance=pl.max_horizontal(labels) / pl.sum_horizontal(labels))


def accuracies(estimates: pl.DataFrame, chance: pl.DataFrame, scope: str) -> TextTable:
    """Compare accuracy with always guessing the commonest label.

    scope: that decides; intervals are of it, or of the widest narrower one.
    chance: its share among right labels: probe, attribute and `chance`. Attributes of the same rows
    have one row.
    """

    def guessing(level: float | None) -> str:
        return "one label only" if level in (None, 1) else wording.number(level)

    found = estimates.filter(score="accuracy", statistic="rate", group="all")
    place = ["probe", "attribute"]
    rows = under(found, SCOPES, scope).join(
        chance, on=place, how="left", nulls_equal=True, maintain_order="left"
    )
    once = rows.unique(
        [*schema.KEYS, "value", "low", "high", "n", "chance"], keep="first", maintain_order=True
    )
    several = once.height > once.select(*schema.KEYS).n_unique()
    named = [name for name in place if (once[name] != "").any() and (several or name == "probe")]
    return table(
        "Accuracy, and what always naming the commonest label would reach",
        once,
        {
            **same(*wording.naming_keys(found), *named),
            "accuracy": worded(partial(wording.interval, plus=False), "value", "low", "high"),
            "chance": worded(guessing, "chance"),
            "items": count("n"),
        },
    )


def label_columns(composition: pl.DataFrame) -> dict[str, str]:
    """Return the label that each column of `stats.composition` counts the items of."""
    beginning = "items_"
    return {
        name: name.removeprefix(beginning)
        for name in composition.columns
        if name.startswith(beginning)
    }
