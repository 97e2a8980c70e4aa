"""Gaps: a group's rate minus the unweighted mean over reference groups in the same run.

The mean over runs is judged by a normal, Student's t or template-bootstrap
interval, alone or with Benjamini-Hochberg over the table. Normal and t
intervals cover the noise of training, the bootstrap that of the templates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import polars as pl

from raybias import schema
from raybias.errors import WorkFailed
from raybias.stats.bootstrap import resampled
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.intervals import (
    ROUNDING,
    Adjust,
    over_runs,
    parametric,
    unrounded,
    verdicts,
    without_verdict,
)
from raybias.stats.metric import DEFAULT, shares
from raybias.stats.mirrors import mirrored_rates, warn_mirrored
from raybias.stats.rates import rates
from raybias.stats.reference_groups import StatisticsWarning, membership

_ROW: Final = (*schema.KEYS, "attribute", "group", "rate")


def gaps(
    cells: pl.DataFrame,
    *,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    interval: Literal["normal", "t", "bootstrap"] = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    draws: int = 10_000,
    seed: int = 0,
    withheld: pl.DataFrame | None = None,
    metrics: Sequence[str] = DEFAULT,
    values: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Compute the gap of every metric and group, its interval and whether it is significant.

    A group whose rate is undefined in a run (FP + TN = 0) has no gap there and leaves that
    run's mean. With one run, normal and t intervals are null and so is `significant`; a t
    interval also where the gap is the same in every run. Where the two rates of a classifier are
    one number twice (`mirrors`), the second has no verdict, except by the papers' own rule
    (normal, no correction), which stays as it was published. The extra groups of
    schema.EXTRA_GROUPS have other templates and no gap: see `markedness`.

    Parameters
    ----------
    cells: schema.CELLS.
    reference_groups: groups of the mean by attribute; the papers' by default
        (`REFERENCE_GROUPS`), all groups for other attributes.
    interval: normal (1.96 sd / sqrt n at level .95, as the papers' code), t, or bootstrap
        over templates (percentiles; needs template ids).
    adjust: with benjamini_hochberg, what `survives` also has q <= 1 - level.
    draws, seed: of the bootstrap.
    withheld: of `unreadable`: classifiers that have gaps and intervals, but no verdict.
    metrics: names of the metrics that gaps are taken of.
    values: of `run_values`; metrics of predictions have no cells to draw templates from, so
        their intervals are Student's where the others are bootstrapped.

    Returns
    -------
    schema.GAPS, sorted by model, attribute, rate and group. `n_items` is FP + TN of a run
    (the fewest, where runs differ), `sd` has ddof 1, `p_value` is two-sided and belongs to
    the interval, `q_value` is Benjamini-Hochberg's over the whole table. A gap is
    `significant` when its interval excludes 0; `no_verdict` says why it is null.

    Raises
    ------
    ConfigError: reference groups that are not in the data.
    DataError: a bootstrap over predictions without template ids.
    WorkFailed: gaps over the reference groups that do not add to 0.

    Warns
    -----
    StatisticsWarning: answers without a label, undefined rates, gaps that do not vary over runs,
    rates that are one number twice, or a probe without some of the papers' groups.
    """
    # Categories are numbered once for all the groupings below.
    cells = without_extras(cells).cast({pl.String: pl.Categorical})
    _warn_unread(cells)
    per_run = rates(cells, metrics, None if values is None else without_extras(values))
    inside = membership(per_run.select("probe", "attribute", "group").unique(), reference_groups)
    counts = pl.col("n_items").filter(pl.col("gap").is_not_null())
    table = over_runs(
        _per_run(per_run, inside),
        _ROW,
        pl.col("value").mean().alias("mean_rate"),
        counts.min().fill_null(0).alias("n_items"),
        pl.col("in_mean").first(),
        value="gap",
    )
    drawn = None
    if interval == "bootstrap" and shares(metrics):
        drawn = resampled(cells, inside, metrics=metrics, level=level, draws=draws, seed=seed).gaps
    judged = _with_intervals(table, drawn, interval, level)
    twice = mirrored_rates(cells, per_run, metrics)
    by_papers = (interval, adjust) == ("normal", "none")
    counted = "counted twice by the papers' rule" if by_papers else "and is counted once"
    warn_mirrored(twice, counted=counted)
    excluded = [
        *([] if withheld is None else [withheld]),
        *([] if by_papers else [twice.drop("mirrors")]),
    ]
    explained = without_verdict(judged, value="gap", excluded=excluded)
    return (
        verdicts(explained, level=level, adjust=adjust)
        .with_columns(half_width=(pl.col("high") - pl.col("low")) / 2)
        .sort("model", "attribute", "rate", "group", *schema.KEYS[1:])
        .select(pl.col(name).cast(dtype) for name, dtype in pl.Schema(schema.GAPS).items())
    )


def _per_run(rates: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    run = [*RUN_KEYS, "attribute", "rate"]
    table = rates.join(inside, on=["probe", "attribute", "group"], how="left")
    _warn_undefined(table)
    mean = pl.col("value").filter("in_mean").mean().over(run)
    table = table.with_columns(gap=unrounded(pl.col("value") - mean))
    sums = table.filter("in_mean").group_by(run).agg(pl.col("gap").sum())
    worst = sums["gap"].abs().max()
    if isinstance(worst, float) and not worst <= 1e-9:  # NaN too
        raise WorkFailed(f"gaps over the reference groups add to {worst:.2e} in a run, not to 0")
    return table


def _with_intervals(
    table: pl.DataFrame, drawn: pl.DataFrame | None, interval: str, level: float
) -> pl.DataFrame:
    """Add the interval of each mean, and which kind it is: drawn where the metric has draws."""
    resampled = pl.col("rate").is_in([] if drawn is None else drawn["rate"].unique().to_list())
    kind = "t" if interval == "bootstrap" else interval
    over = table.filter(~resampled)
    _warn_unvaried(over, kind)
    judged = parametric(over, value="gap", interval=kind, level=level)
    judged = judged.with_columns(interval=pl.lit(kind))
    if drawn is None:
        return judged
    joined = table.filter(resampled).join(drawn, on=_ROW, how="left")
    return pl.concat([judged, joined.with_columns(interval=pl.lit("bootstrap"))], how="diagonal")


def _warn_unread(cells: pl.DataFrame) -> None:
    if cells["pred"].null_count():
        unread = cells.filter(pl.col("pred").is_null())["n"].sum()
        warnings.warn(
            f"{unread} of {cells['n'].sum()} answers hold no label; they count as wrong, and as "
            "false positives of no class",
            StatisticsWarning,
            stacklevel=3,
        )


def _warn_unvaried(table: pl.DataFrame, interval: str) -> None:
    same = table.filter(pl.col("n_runs") > 1, pl.col("sd") <= ROUNDING).height
    if not same:
        return
    without = interval != "normal"
    warnings.warn(
        f"{same} of {table['gap'].count()} gaps are the same in every run: identical runs were "
        "given, or the classifier reads these sentences alike in each; an interval over runs says "
        f"nothing of them, {'so they have no verdict' if without else 'nor does its verdict'}",
        StatisticsWarning,
        stacklevel=3,
    )


def _warn_undefined(table: pl.DataFrame) -> None:
    undefined = (
        table.filter(pl.col("value").is_null())
        .group_by(_ROW)
        .agg(pl.len())
        .sort(_ROW)
        .iter_rows(named=True)
    )
    for row in undefined:
        warnings.warn(
            f"{row['rate']} of {row['attribute']} {row['group']} is undefined in {row['len']} "
            f"run(s) of {row['model']} (FP + TN = 0); the group leaves their mean",
            StatisticsWarning,
            stacklevel=4,
        )
