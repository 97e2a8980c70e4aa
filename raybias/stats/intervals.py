"""Average values over runs, with intervals, tests and verdicts.

One way for gaps, terms and markedness alike. It does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

#: Below this a difference of rates, which are quotients of counts, is rounding.
ROUNDING: Final = 1e-12

Adjust = Literal["none", "benjamini_hochberg"]

#: Why a mean over runs has no verdict (column `no_verdict`).
UNDEFINED: Final = "not defined"
#: Begins the reason of a metric that is another one with its sign turned.
MIRROR: Final = "mirror of "
ONE_RUN: Final = "one run"
NO_VARIATION: Final = "runs do not vary"
#: Of a group that alone is what the others are compared with: its gap is 0 whatever was predicted.
REFERENCE: Final = "the reference itself"


def unrounded(value: pl.Expr) -> pl.Expr:
    """Set a difference of rates to 0 where only rounding differs."""
    return pl.when(value.abs() < ROUNDING).then(0.0).otherwise(value)


def over_runs(table: pl.DataFrame, by: Sequence[str], *more: pl.Expr, value: str) -> pl.DataFrame:
    """Average `value` over runs, with `sd` (ddof 1) and `n_runs`; runs without one do not count.

    Parameters
    ----------
    table: a row per run and `by`; its column `run_id` orders the sums.
    more: further aggregates.
    """
    return (
        # Sorted runs make the float sums the same for any order of the rows.
        table.sort(*by, "run_id")
        .group_by(by, maintain_order=True)
        .agg(
            pl.col(value).mean(),
            pl.col(value).std(ddof=1).alias("sd"),
            pl.col(value).is_not_null().sum().alias("n_runs"),
            *more,
        )
    )


def parametric(table: pl.DataFrame, *, value: str, interval: str, level: float) -> pl.DataFrame:
    """Add `low`, `high` and the two-sided `p_value` of means over runs; null for one run.

    A t interval is null too where the runs do not vary: no number of copies of one run says how
    another would come out.

    Parameters
    ----------
    table: `value`, `sd` and `n_runs`, as `over_runs` gives them.
    interval: normal (1.96 sd / sqrt n at level .95, as the papers' code, also where sd is 0) or t.
    """
    n = table["n_runs"].to_numpy().astype(float)
    mean = table[value].cast(pl.Float64).fill_null(np.nan).to_numpy()
    sd = table["sd"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        error = sd / np.sqrt(n)
        score = np.where(mean == 0, 0.0, np.abs(mean) / error)
    upper = (1 + level) / 2
    if interval == "normal":
        quantile = np.full(len(n), 1.96 if level == 0.95 else stats.norm.ppf(upper))
        p_value = 2 * stats.norm.sf(score)
    else:
        freedom = np.maximum(n - 1, 1)
        quantile = stats.t.ppf(upper, freedom)
        p_value = 2 * stats.t.sf(score, freedom)
    known = n > 1 if interval == "normal" else (n > 1) & (sd > ROUNDING)
    columns = {
        "low": mean - quantile * error,
        "high": mean + quantile * error,
        "p_value": p_value,
    }
    return table.with_columns(
        pl.Series(name, np.where(known, values, np.nan)).fill_nan(None)
        for name, values in columns.items()
    )


def without_verdict(
    table: pl.DataFrame, *, value: str, excluded: Sequence[pl.DataFrame] = ()
) -> pl.DataFrame:
    """Add `no_verdict`: why a mean over runs cannot be judged; null where it can.

    Parameters
    ----------
    table: `value`, `n_runs` and `low`.
    excluded: what is known to have none: columns that name rows of the table, and `no_verdict`;
        of several reasons the first counts.
    """
    unknown = pl.col("low").is_null()
    reason = (
        pl.when(pl.col(value).is_null())
        .then(pl.lit(UNDEFINED))
        .when(pl.col("no_verdict").is_not_null())
        .then("no_verdict")
        .when(unknown & (pl.col("n_runs") < 2))
        .then(pl.lit(ONE_RUN))
        .when(unknown)
        .then(pl.lit(NO_VARIATION))
    )
    known = [_reasons(table, each) for each in excluded]
    given = pl.coalesce(*known) if known else pl.lit(None, pl.String)
    return table.with_columns(no_verdict=given).with_columns(no_verdict=reason)


def verdicts(table: pl.DataFrame, *, level: float, adjust: Adjust) -> pl.DataFrame:
    """Add `q_value` (Benjamini-Hochberg over the table), `significant` and `survives`.

    They are null in rows with a `no_verdict`, where the table has that column, and such rows
    enter no correction.
    """
    explained = "no_verdict" in table.columns
    judged = pl.col("no_verdict").is_null() if explained else pl.lit(True)
    excludes_zero = pl.when(judged).then((pl.col("low") > 0) | (pl.col("high") < 0))
    passes = pl.col("q_value") <= 1 - level if adjust == "benjamini_hochberg" else pl.lit(True)
    tested = table.select(pl.when(judged).then("p_value")).to_series()
    return table.with_columns(q_value=false_discovery(tested)).with_columns(
        significant=excludes_zero, survives=excludes_zero & passes
    )


def _reasons(table: pl.DataFrame, excluded: pl.DataFrame) -> pl.Series:
    """Look up why each row has no verdict by `excluded`; null where it is not named there."""
    by = [name for name in excluded.columns if name != "no_verdict"]
    rows = table.select(pl.col(by).cast(pl.String))
    found = rows.join(excluded, on=by, how="left", nulls_equal=True, maintain_order="left")
    return found["no_verdict"].cast(pl.String)


def false_discovery(p_value: pl.Series) -> pl.Series:
    """Compute Benjamini-Hochberg's `q_value` over a whole column; null where there is no p."""
    p: npt.NDArray[np.float64] = p_value.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = ~np.isnan(p)
    q = np.full(len(p), np.nan)
    if known.any():
        q[known] = stats.false_discovery_control(p[known], method="bh")
    return pl.Series("q_value", q).fill_nan(None)
