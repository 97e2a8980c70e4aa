"""Gaps: a group's rate minus the unweighted mean over reference groups in the same run.

The mean over runs is judged by a normal, Student's t or template-bootstrap
interval, alone or with Benjamini-Hochberg over the table. Normal and t
intervals cover the noise of training, the bootstrap that of the templates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias import schema
from raybias.errors import WorkFailed
from raybias.stats.bootstrap import bootstrap_intervals
from raybias.stats.cells import RUN_KEYS
from raybias.stats.rates import ROUNDING, rates
from raybias.stats.reference import StatisticsWarning, membership

_ROW: Final = (*schema.KEYS, "attribute", "group", "rate")


def gaps(
    cells: pl.DataFrame,
    *,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    interval: Literal["normal", "t", "bootstrap"] = "t",
    level: float = 0.95,
    adjust: Literal["none", "benjamini_hochberg"] = "benjamini_hochberg",
    draws: int = 10_000,
    seed: int = 0,
) -> pl.DataFrame:
    """Compute every false positive rate gap, its interval and whether it is significant.

    A group whose rate is undefined in a run (FP + TN = 0) has no gap there and leaves that
    run's mean. With one run, normal and t intervals are null and so is `significant`.

    Parameters
    ----------
    cells: schema.CELLS.
    reference_groups: groups of the mean by attribute; the papers' by default
        (`REFERENCE_GROUPS`), all groups for other attributes.
    interval: normal (1.96 sd / sqrt n at level .95, as the papers' code), t, or bootstrap
        over templates (percentiles; needs template ids).
    adjust: with benjamini_hochberg, what `survives` also has q <= 1 - level.
    draws, seed: of the bootstrap.

    Returns
    -------
    schema.GAPS, sorted by model, attribute, rate and group. `n_items` is FP + TN of a run
    (the fewest, where runs differ), `sd` has ddof 1, `p_value` is two-sided and belongs to
    the interval, `q_value` is Benjamini-Hochberg's over the whole table. A gap is
    `significant` when its interval excludes 0.

    Raises
    ------
    ConfigError: reference groups that are not in the data.
    DataError: a bootstrap over predictions without template ids.
    WorkFailed: gaps over the reference groups that do not add to 0.

    Warns
    -----
    StatisticsWarning: answers without a label, undefined rates, or a probe without some of
    the papers' groups.
    """
    # Categories are numbered once for all the groupings below.
    cells = cells.cast({pl.String: pl.Categorical})
    _warn_unread(cells)
    per_run = rates(cells)
    inside = membership(per_run.select("probe", "attribute", "group").unique(), reference_groups)
    table = _over_runs(_per_run(per_run, inside))
    if interval == "bootstrap":
        judged = table.join(
            bootstrap_intervals(cells, inside, level=level, draws=draws, seed=seed),
            on=_ROW,
            how="left",
        )
    else:
        judged = _parametric(table, interval, level)
    alpha = 1 - level
    excludes_zero = (pl.col("low") > 0) | (pl.col("high") < 0)
    passes = pl.col("q_value") <= alpha if adjust == "benjamini_hochberg" else pl.lit(True)
    return (
        judged.with_columns(
            half_width=(pl.col("high") - pl.col("low")) / 2,
            interval=pl.lit(interval),
            q_value=_false_discovery(judged["p_value"]),
        )
        .with_columns(significant=excludes_zero, survives=excludes_zero & passes)
        .sort("model", "attribute", "rate", "group", *schema.KEYS[1:])
        .select(pl.col(name).cast(dtype) for name, dtype in pl.Schema(schema.GAPS).items())
    )


def _per_run(rates: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    run = [*RUN_KEYS, "attribute", "rate"]
    table = rates.join(inside, on=["probe", "attribute", "group"], how="left")
    _warn_undefined(table)
    mean = pl.col("value").filter("in_mean").mean().over(run)
    gap = pl.col("value") - mean
    table = table.with_columns(gap=pl.when(gap.abs() < ROUNDING).then(0.0).otherwise(gap))
    sums = table.filter("in_mean").group_by(run).agg(pl.col("gap").sum())
    worst = sums["gap"].abs().max()
    if isinstance(worst, float) and not worst <= 1e-9:  # NaN too
        raise WorkFailed(f"gaps over the reference groups add to {worst:.2e} in a run, not to 0")
    return table


def _warn_unread(cells: pl.DataFrame) -> None:
    if cells["pred"].null_count():
        unread = cells.filter(pl.col("pred").is_null())["n"].sum()
        warnings.warn(
            f"{unread} of {cells['n'].sum()} answers hold no label; they count as wrong, and as "
            "false positives of no class",
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


def _over_runs(table: pl.DataFrame) -> pl.DataFrame:
    counted = pl.col("gap").is_not_null()
    return (
        # Sorted runs make the float sums the same for any order of the rows.
        table.sort(*_ROW, "run_id")
        .group_by(_ROW, maintain_order=True)
        .agg(
            pl.col("gap").mean(),
            sd=pl.col("gap").std(ddof=1),
            n_runs=counted.sum(),
            mean_rate=pl.col("value").mean(),
            n_items=pl.col("n_items").filter(counted).min().fill_null(0),
            in_mean=pl.col("in_mean").first(),
        )
    )


def _parametric(table: pl.DataFrame, interval: str, level: float) -> pl.DataFrame:
    n = table["n_runs"].to_numpy().astype(float)
    gap = table["gap"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    sd = table["sd"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        error = sd / np.sqrt(n)
        score = np.where(gap == 0, 0.0, np.abs(gap) / error)
    upper = (1 + level) / 2
    if interval == "normal":
        quantile = np.full(len(n), 1.96 if level == 0.95 else stats.norm.ppf(upper))
        p_value = 2 * stats.norm.sf(score)
    else:
        freedom = np.maximum(n - 1, 1)
        quantile = stats.t.ppf(upper, freedom)
        p_value = 2 * stats.t.sf(score, freedom)
    known = n > 1
    columns = {
        "low": gap - quantile * error,
        "high": gap + quantile * error,
        "p_value": p_value,
    }
    return table.with_columns(
        pl.Series(name, np.where(known, values, np.nan)).fill_nan(None)
        for name, values in columns.items()
    )


def _false_discovery(p_value: pl.Series) -> pl.Series:
    p: npt.NDArray[np.float64] = p_value.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = ~np.isnan(p)
    q = np.full(len(p), np.nan)
    if known.any():
        q[known] = stats.false_discovery_control(p[known], method="bh")
    return pl.Series("q_value", q).fill_nan(None)
