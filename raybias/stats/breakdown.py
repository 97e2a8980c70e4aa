"""Which words and which templates drive a gap.

A group's gap is the mean of its terms' gaps, weighted by their sentences, and on
templates alike. Counts in, counts out: it never sees a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.intervals import (
    Adjust,
    over_runs,
    parametric,
    unrounded,
    verdicts,
    without_verdict,
)
from raybias.stats.markedness import named_runs, template_rates
from raybias.stats.metric import DEFAULT, counted, shares

_TERM_COUNTS: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "term"), pl.String()),
        **dict.fromkeys(("n_items", "hits"), pl.Int64()),
        "rate": pl.String(),
    }
)
_PLACE: Final = (*RUN_KEYS, "attribute", "rate")
_TERM: Final = (*schema.KEYS, "attribute", "rate", "group", "term")
_TEMPLATE: Final = (*schema.KEYS, "attribute", "rate", "group", "template_id")


def by_term(
    terms: pl.DataFrame,
    rates: pl.DataFrame,
    members: pl.DataFrame,
    *,
    interval: str = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    excluded: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Compute each term's rate minus the mean over reference groups in the same run.

    Parameters
    ----------
    terms: schema.TERM_CELLS.
    rates: of `stats.rates` on the cells of the same predictions.
    members: of `stats.members`.
    interval: normal or t, over runs; anything else is taken as t.
    excluded: such as `stats.excluded`: rates of classifiers that have no verdict.

    Returns
    -------
    The keys, attribute, rate, group, term, gap, sd, n_runs, mean_rate, n_items (FP + TN
    sentences of a run; the fewest), low, high, p_value, no_verdict, q_value, significant,
    survives.
    """
    terms = without_extras(terms).filter(pl.col("term") != "").cast({pl.Categorical: pl.String})
    keys = ["probe", "attribute", "group"]
    inside = rates.join(members, on=keys, how="left", nulls_equal=True).filter("in_mean")
    mean = inside.group_by(_PLACE).agg(mean=pl.col("value").mean())
    by = [*RUN_KEYS, "attribute", "group", "term"]
    tables = [pl.DataFrame(schema=_TERM_COUNTS)] + [
        terms.filter(share.among).group_by(by).agg(*counted(share), rate=pl.lit(rate))
        for rate, share in shares(rates["rate"].unique().sort()).items()
    ]
    value = pl.col("hits") / pl.col("n_items")
    per_run = (
        pl.concat([table.select(_TERM_COUNTS.names()) for table in tables])
        .join(mean, on=_PLACE, nulls_equal=True)
        .with_columns(value=value, gap=unrounded(value - pl.col("mean")))
    )
    more = (pl.col("value").mean().alias("mean_rate"), pl.col("n_items").min())
    table = over_runs(per_run, _TERM, *more, value="gap").with_columns(
        pl.col("n_runs").cast(pl.Int64)
    )
    rule = "normal" if interval == "normal" else "t"
    judged = parametric(table, value="gap", interval=rule, level=level)
    explained = without_verdict(judged, value="gap", excluded=excluded)
    return verdicts(explained, level=level, adjust=adjust)


def by_template(
    cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each group's rate on a template minus the template's mean over groups.

    The mean is over the reference groups that have the template, in the same run. There is
    no interval: a template has few sentences, and their rates often agree over runs.

    Returns
    -------
    The keys, attribute, rate, group, template_id, gap, sd, n_runs, mean_rate and n_items
    (FP + TN sentences of a run; the fewest).
    """
    cells = without_extras(cells).cast({pl.String: pl.Categorical})
    run, names = named_runs(cells)
    cells = cells.with_columns(run=run)
    classifier = names.select(pl.struct(schema.KEYS).rle_id()).to_series()
    parts = [
        _template_gaps(template_rates(cells, members, share), classifier).with_columns(
            rate=pl.lit(rate)
        )
        for rate, share in shares(metrics).items()
    ]
    first = names.select(schema.KEYS).with_columns(classifier=classifier).unique("classifier")
    columns = (*_TEMPLATE, "gap", "sd", "n_runs", "mean_rate", "n_items")
    order = ["classifier", "attribute", "rate", "group", "template_id"]
    table = pl.concat(parts).cast({pl.Categorical: pl.String}).sort(order)
    return table.join(first, on="classifier", maintain_order="left").select(columns)


def _template_gaps(rates: pl.DataFrame, classifier: pl.Series) -> pl.DataFrame:
    """Average the gaps of one rate over runs, by classifier number, attribute, group, template."""
    place = ["run", "attribute", "template_id"]
    mean = rates.filter("in_mean").group_by(place).agg(mean=pl.col("value").mean())
    by = ["classifier", "attribute", "group", "template_id"]
    return (
        rates.join(mean, on=place)
        .with_columns(
            gap=unrounded(pl.col("value") - pl.col("mean")),
            classifier=classifier[rates["run"]],
        )
        # Sorted runs make the float sums the same for any order of the rows.
        .sort("run")
        .group_by(by)
        .agg(
            pl.col("gap").mean(),
            sd=pl.col("gap").std(ddof=1),
            n_runs=pl.len().cast(pl.Int64),
            mean_rate=pl.col("value").mean(),
            n_items=pl.col("n_items").min(),
        )
    )


def largest(table: pl.DataFrame, unit: str, *, k: int) -> pl.DataFrame:
    """Select the k terms or templates of each group that lie farthest from the mean.

    Over several classifiers of a probe their gaps are averaged.

    Parameters
    ----------
    table: of `by_term` or `by_template`.
    unit: its column `term` or `template_id`.

    Returns
    -------
    probe, attribute, rate, group, `unit`, gap, lowest and highest gap of a classifier,
    mean_rate and n_classifiers.
    """
    by = ["probe", "attribute", "rate", "group"]
    over = (
        # Sorted classifiers make the float sums the same for any order of the rows.
        table.sort(*by, unit, *schema.KEYS)
        .group_by(*by, unit, maintain_order=True)
        .agg(
            pl.col("gap").mean(),
            lowest=pl.col("gap").min(),
            highest=pl.col("gap").max(),
            mean_rate=pl.col("mean_rate").mean(),
            n_classifiers=pl.len(),
        )
        .filter(pl.col("gap") != 0)
    )
    farthest = over.sort(*by, pl.col("gap").abs(), unit, descending=[False] * 4 + [True, False])
    return farthest.group_by(by, maintain_order=True).head(k)
