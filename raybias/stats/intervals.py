"""Average values over runs, and judge estimates: intervals, reasons for no verdict, corrections.

Gaps, rates, terms and markedness go through the same few functions. Frames have the columns of
schema.ESTIMATES that they know; `estimates` fills in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias import schema

#: Below this a difference of rates, which are quotients of counts, is rounding.
ROUNDING: Final = 1e-12

Adjust = Literal["none", "benjamini_hochberg"]

#: Why a mean over runs has no verdict (column `reason`).
UNDEFINED: Final = "not defined"
#: Begins the reason of a metric that is another one with its sign turned.
MIRROR: Final = "mirror of "
ONE_RUN: Final = "one run"
NO_VARIATION: Final = "runs do not vary"
#: Of a group that alone is what the others are compared with: its gap is 0 whatever was predicted.
REFERENCE: Final = "the reference itself"

_TYPES: Final = pl.Schema(schema.ESTIMATES)
_TEXTS: Final = [n for n, dtype in _TYPES.items() if dtype == pl.String and n != "reason"]


class Rules(Protocol):
    """How estimates are judged: `config.Statistics`, or the rules of a kind of answers."""

    @property
    def level(self) -> float:
        """Confidence level."""

    @property
    def adjust(self) -> Adjust:
        """Correction for many tests."""


def from_rows(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Make a frame of all columns of schema.ESTIMATES; what rows lack, and NaN, is null."""
    return pl.DataFrame(rows, _TYPES).fill_nan(None)


def estimates(frame: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Select the columns of schema.ESTIMATES; those that a frame lacks are empty, NaN is null."""
    missing = [pl.lit(None, t).alias(n) for n, t in _TYPES.items() if n not in frame.columns]
    whole = frame.with_columns(missing).select(_TYPES.names()).cast(_TYPES).fill_nan(None)
    return whole.with_columns(pl.col(_TEXTS).fill_null("")).with_columns(kind=pl.lit(kind))


def unrounded(value: pl.Expr) -> pl.Expr:
    """Set a difference of rates to 0 where only rounding differs."""
    return pl.when(value.abs() < ROUNDING).then(0.0).otherwise(value)


def over_runs(
    table: pl.DataFrame, by: Sequence[str], *more: pl.Expr, **named: pl.Expr
) -> pl.DataFrame:
    """Average `value` over runs, with `sd` (ddof 1) and `units`, the number of runs that have one.

    `table` has a row per run and `by`; its column `run_id` orders the sums. `more` and `named` are
    further aggregates.
    """
    return (
        # Sorted runs make the float sums the same for any order of the rows.
        table.sort(*by, "run_id")
        .group_by(by, maintain_order=True)
        .agg(
            pl.col("value").mean(),
            pl.col("value").std(ddof=1).alias("sd"),
            pl.col("value").is_not_null().sum().cast(pl.Int64).alias("units"),
            *more,
            **named,
        )
    )


def parametric(table: pl.DataFrame, *, interval: str, level: float) -> pl.DataFrame:
    """Add `low`, `high` and the two-sided `p` of means over runs (`over_runs`); null for one run.

    A normal interval is 1.96 sd / sqrt n at level .95, as the papers' code, also where sd is 0. A t
    interval (anything else) is null where the runs do not vary: copies of one run do not say how
    another would come out.
    """
    n = table["units"].to_numpy().astype(float)
    mean, sd = (
        table[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("value", "sd")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = sd / np.sqrt(n)
        score = np.where(mean == 0, 0.0, np.abs(mean) / error)
    upper = (1 + level) / 2
    if interval == "normal":
        quantile = np.full(len(n), 1.96 if level == 0.95 else stats.norm.ppf(upper))
        p = 2 * stats.norm.sf(score)
    else:
        freedom = np.maximum(n - 1, 1)
        quantile = stats.t.ppf(upper, freedom)
        p = 2 * stats.t.sf(score, freedom)
    known = n > 1 if interval == "normal" else (n > 1) & (sd > ROUNDING)
    columns = {"low": mean - quantile * error, "high": mean + quantile * error, "p": p}
    return table.with_columns(
        pl.Series(name, np.where(known, values, np.nan)).fill_nan(None)
        for name, values in columns.items()
    )


def judged(
    table: pl.DataFrame, rules: Rules, excluded: Sequence[pl.DataFrame] = ()
) -> pl.DataFrame:
    """Add `reason`, why a mean over runs cannot be judged, and the verdicts on the others.

    `excluded` are frames of columns that name rows of the table, and the `reason` why these have no
    verdict; of several reasons the first counts.
    """
    unknown = pl.col("low").is_null()
    reason = (
        pl.when(pl.col("value").is_null())
        .then(pl.lit(UNDEFINED))
        .when(pl.col("reason").is_not_null())
        .then("reason")
        .when(unknown & (pl.col("units").fill_null(0) < 2))
        .then(pl.lit(ONE_RUN))
        .when(unknown)
        .then(pl.lit(NO_VARIATION))
    )
    known = [reasons_of(table, each) for each in excluded]
    given = pl.coalesce(*known) if known else pl.lit(None, pl.String)
    return verdicts(table.with_columns(reason=given).with_columns(reason=reason), rules)


def verdicts(table: pl.DataFrame, rules: Rules, significant: pl.Expr | None = None) -> pl.DataFrame:
    """Add `q` (Benjamini-Hochberg over the table), `significant` and `survives`.

    They are null in rows with a `reason`, which enter no correction. By default an estimate is
    significant where its interval excludes 0.
    """
    tried = pl.col("reason").is_null()
    if significant is None:
        significant = (pl.col("low") > 0) | (pl.col("high") < 0)
    seen = pl.when(tried).then(significant)
    passes = pl.col("q") <= 1 - rules.level if rules.adjust != "none" else pl.lit(True)
    tested = table.select(pl.when(tried).then("p")).to_series()
    return table.with_columns(q=false_discovery(tested)).with_columns(
        significant=seen, survives=seen & passes
    )


def reasons_of(table: pl.DataFrame, excluded: pl.DataFrame) -> pl.Series:
    """Look up why each row has no verdict by `excluded`; null where it is not named there."""
    by = [name for name in excluded.columns if name != "reason"]
    rows = table.select(pl.col(by).cast(pl.String))
    found = rows.join(excluded, on=by, how="left", nulls_equal=True, maintain_order="left")
    return found["reason"].cast(pl.String)


def false_discovery(p_value: pl.Series) -> pl.Series:
    """Compute Benjamini-Hochberg's `q` over a whole column; null where there is no p."""
    p: npt.NDArray[np.float64] = p_value.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = ~np.isnan(p)
    q = np.full(len(p), np.nan)
    if known.any():
        q[known] = stats.false_discovery_control(p[known], method="bh")
    return pl.Series("q", q).fill_nan(None)
