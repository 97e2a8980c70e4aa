"""Judge estimates: averages over runs, jackknifed scores, reasons for no verdict, corrections.

The standard error of a score that is no mean, such as a ratio, is that of the score without each
unit, such as the questions of one template (jackknife, Tukey 1958; too large rather than too small,
Efron and Stein 1981). The interval is Student's, with the degrees of freedom of as many equal units
as the unequal ones are worth (Kish 1965), on the logit scale of the score's range; it holds the
truth more often than the percentile bootstrap (`benchmarks/coverage.py`).

Shapes: U units, M scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field
from scipy import special, stats

from raybias import schema
from raybias.config import Statistics
from raybias.schema import LABELS, Label
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, satterthwaite
from raybias.table_files import conformed

#: Why a group has no rate, gap or ratio (column `reason`): none of its rows counts in the rate.
NO_ROWS: Final = "no rows"
#: Why a mean over runs has no verdict (column `reason`).
UNDEFINED: Final = "not defined"
#: Begins the reason of a metric that is another one with its sign turned.
MIRROR: Final = "mirror of "
ONE_RUN: Final = "one run"
NO_VARIATION: Final = "runs do not vary"
#: Why a jackknifed score has no interval.
ONE_UNIT: Final = "one unit"
CARRIED: Final = "not defined without one unit"
ALIKE: Final = "units do not vary"
AT_END: Final = "at the end of its range"
#: Of a group that alone is what the others are compared with: its gap is 0 whatever was predicted.
REFERENCE: Final = "the reference itself"

#: Estimates that are corrected together: those of the groups of one attribute by one rate of one
#: classifier.
FAMILY: Final = (*schema.TABLE, "score")

_TYPES: Final = pl.Schema(schema.ESTIMATES)
_TEXTS: Final = [n for n, dtype in _TYPES.items() if dtype == pl.String and n != "reason"]


class Rules(Statistics):
    """How estimates are judged: a study's statistics, and what else of it decides."""

    strict: bool = True
    """Paired tests of pairs; else the paper's tests of two proportions and of independent lists."""
    references: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    """Reference groups of gaps by probe and attribute; the papers' lists for what is left out."""
    everywhere: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Reference groups by attribute for every probe that has it, instead of those above."""
    judged: frozenset[str] = frozenset()
    """Methods whose labels are a judge's verdicts."""
    letters: frozenset[str] = frozenset()
    """Methods that answer by the likelihoods of the options' letters."""
    engines: dict[str, str] = Field(default_factory=dict)
    """Models that are other engines of a model, each with that model."""
    sizes: dict[str, float] = Field(default_factory=dict)
    """Numbers of parameters, by model, where the model's name does not tell."""

    labels: tuple[str, ...] = LABELS
    """Labels of the study, in order."""

    @property
    def number_of_class(self) -> int | None:
        """Number of the label that `positive` names; None if it names none."""
        return None if self.positive is None else self.labels.index(self.positive)

    @property
    def names_of_classes(self) -> list[str]:
        """The labels in the order of numbers that `stats.metric_files.as_class` leaves."""
        names, last = [*self.labels], int(Label.POSITIVE)
        if self.number_of_class is not None and len(names) > last:
            names[self.number_of_class], names[last] = names[last], names[self.number_of_class]
        return names

    def groups_of(self, probe: str, attribute: str) -> tuple[str, ...] | None:
        """Return the reference groups that were chosen; None where the papers' list decides."""
        return self.everywhere.get(attribute, self.references.get(probe, {}).get(attribute))


def from_rows(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Make a frame of all columns of schema.ESTIMATES; what rows lack, and NaN, is null."""
    return pl.DataFrame(rows, _TYPES).fill_nan(None)


def estimates(frame: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Select the columns of schema.ESTIMATES; those that a frame lacks are empty, NaN is null."""
    whole = conformed(frame, _TYPES).fill_nan(None)
    return whole.with_columns(pl.col(_TEXTS).fill_null("")).with_columns(kind=pl.lit(kind))


def unrounded(value: pl.Expr) -> pl.Expr:
    """Set a difference of rates to 0 where only rounding differs."""
    return pl.when(value.abs() < ROUNDING).then(0.0).otherwise(value)


def over_runs(
    table: pl.DataFrame, by: Sequence[str], *more: pl.Expr, **named: pl.Expr
) -> pl.DataFrame:
    """Average `value` over runs, in order of `run_id`: also `sd` (ddof 1) and `units`, the runs."""
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


def columns_of(
    estimate: MeanEstimate, rules: Statistics, reach: Callable[[float], Doubles] | None = None
) -> dict[str, npt.NDArray[np.generic]]:
    """Compute `value`, `low`, `high`, `p`, `mde` and, with a margin, `equivalent` [...] of means.

    A gap is `equivalent` if its interval at 2 level - 1 lies within the margin, which is to say
    that two one-sided tests at 1 - level reject (Schuirmann 1987); and so does `reach` of `level`,
    if units are resampled: the bound of its size without an assumption about them.
    """
    level, margin = rules.level, rules.margin
    if rules.interval == "normal":
        estimate = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf))
    low, high = estimate.interval(level)
    columns: dict[str, npt.NDArray[np.generic]] = {
        "value": estimate.mean, "low": low, "high": high, "p": estimate.p_value(),
        "mde": estimate.detectable(level),
    }  # fmt: skip
    if margin is not None:
        inner_low, inner_high = estimate.interval(2 * level - 1)
        within = (inner_low >= -margin) & (inner_high <= margin)
        if reach is not None and within.any():
            within &= reach(level) <= margin
        columns["equivalent"] = within
    return columns


def parametric(table: pl.DataFrame, rules: Statistics) -> pl.DataFrame:
    """Add `columns_of` means over runs (`over_runs`); null for one run.

    A normal interval is 1.96 sd / sqrt n at level .95, as the papers' code, also where sd is 0. A t
    interval (anything else) is null where the runs do not vary: copies of one run do not say how
    another would come out.
    """
    n, mean, sd = (
        table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in ("units", "value", "sd")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = columns_of(MeanEstimate(mean, sd**2 / n, np.maximum(n - 1, 1)), rules)
        known = (n > 1) & (sd > ROUNDING)
        if rules.interval == "normal":
            known, error = n > 1, sd / np.sqrt(n)
            upper = 1.96 if rules.level == 0.95 else stats.norm.ppf((1 + rules.level) / 2)
            p = 2 * stats.norm.sf(np.where(mean == 0, 0.0, np.abs(mean) / error))
            columns |= {"low": mean - upper * error, "high": mean + upper * error, "p": p}
    types = {"low": pl.Float64, "high": pl.Float64, "p": pl.Float64, "mde": pl.Float64,
             "equivalent": pl.Boolean}  # fmt: skip
    return table.with_columns(
        pl.when(pl.Series(known, dtype=pl.Boolean))
        .then(pl.Series(columns[name], dtype=dtype) if name in columns else None)
        .cast(dtype)
        .alias(name)
        for name, dtype in types.items()
    )


def judged(
    table: pl.DataFrame,
    rules: Statistics,
    excluded: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Add `reason`, why a mean over runs cannot be judged, and the `verdicts` on the others.

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


def verdicts(
    table: pl.DataFrame,
    rules: Statistics,
    significant: pl.Expr | None = None,
    *,
    family: Sequence[str] = FAMILY,
) -> pl.DataFrame:
    """Add `q` (Benjamini-Hochberg), `significant` and `survives`.

    They are null in rows with a `reason`, which enter no correction. By default an estimate is
    significant where its interval excludes 0. Rows with the same values in the columns of `family`
    are corrected together, and no others, so that a verdict does not depend on what else was asked.
    """
    tried = pl.col("reason").is_null()
    if significant is None:
        significant = (pl.col("low") > 0) | (pl.col("high") < 0)
    seen = pl.when(tried).then(significant)
    passes = pl.col("q") <= 1 - rules.level if rules.adjust != "none" else pl.lit(True)
    return table.with_columns(q=_corrected(tried, family)).with_columns(
        significant=seen, survives=seen & passes
    )


def _corrected(tested: pl.Expr, family: Sequence[str | pl.Expr]) -> pl.Expr:
    """Correct the p of rows that are tested, within families."""
    p = pl.when(tested).then("p")
    return p.map_batches(false_discovery, return_dtype=pl.Float64).over(family)


def correct_within(
    table: pl.DataFrame, family: Sequence[str | pl.Expr], tested: pl.Expr, rules: Statistics
) -> pl.DataFrame:
    """Correct the tests of each family of rows together, in place of the corrections so far.

    Parameters
    ----------
    table: with p, q, significant and survives.
    family: columns, or expressions, with one value in each family.
    tested: selects the rows with a test; the others keep their `q` and `survives`.
    """
    q = pl.coalesce(_corrected(tested, family), "q")
    passes = pl.lit(value=True) if rules.adjust == "none" else pl.col("q") <= 1 - rules.level
    survives = pl.when(tested & pl.col("survives").is_not_null())
    return table.with_columns(q=q).with_columns(
        survives=survives.then(pl.col("significant") & passes).otherwise("survives")
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


def without_each(counts_U: Doubles) -> Doubles:
    """Sum counts [U, ...] over all units but one, for each one left out: [U, ...]."""
    return np.asarray(counts_U.sum(axis=0) - counts_U)


def unit_intervals(
    value_M: Doubles,
    facets: Sequence[tuple[Doubles, Doubles]],
    bounds: tuple[float, float] | None,
    level: float,
) -> tuple[Doubles, Doubles, float, str | None]:
    """Compute low and high [M] of scores, p, and why there is no interval (NaN).

    `facets` are resampled (`jackknifed`). `bounds` are the least and the greatest that a score can
    be; without them it is a mean, tested against 0.
    """
    nothing = np.full(len(value_M), np.nan)
    found, reason = jackknifed(value_M, facets)
    if bounds is None:
        if reason is None and not found.variance[0] > ROUNDING**2:
            reason = ALIKE
        ends = (nothing, nothing) if reason else found.interval(level)
        return *ends, float("nan") if reason else float(found.p_value()[0]), reason
    least, greatest = bounds
    place_M = (value_M - least) / (greatest - least)
    if reason is None and ((place_M < ROUNDING) | (place_M > 1 - ROUNDING)).any():
        reason = AT_END
    if reason is not None:
        return nothing, nothing, float("nan"), reason
    slope_M = place_M * (1 - place_M) * (greatest - least)
    reach_M = stats.t.ppf((1 + level) / 2, found.freedom) * np.sqrt(found.variance) / slope_M
    low_M, high_M = (
        least + (greatest - least) * special.expit(special.logit(place_M) + sign * reach_M)
        for sign in (-1, 1)
    )
    return low_M, high_M, float("nan"), None


def jackknifed(
    value_M: Doubles, facets: Sequence[tuple[Doubles, Doubles]]
) -> tuple[MeanEstimate, str | None]:
    """Estimate functions [M] of sums by the jackknife; or say why there is no variance.

    `facets` are resampled: of each the values of `without_each` [M, U] and the items of each unit
    [U] (a unit of none is not there). Of two crossed ones a third gives their cells: the variances
    of both are added and that of the cells is taken away (Cameron, Gelbach and Miller 2011), never
    less than the larger of the two.
    """
    parts = [_jackknifed(value_M, *facet) for facet in facets]
    reason = next((why for _, why in parts[:2] if why), None)
    found, *others = (estimate for estimate, _ in parts)
    if others and reason is None:
        cells = -np.nan_to_num(others[1].variance)
        terms = [(each.variance, each.freedom) for each in (found, others[0])]
        whole = MeanEstimate(value_M, *satterthwaite([*terms, (cells, others[1].freedom)]))
        found = whole.at_least(found).at_least(others[0])
    return found, reason


def _jackknifed(
    value_M: Doubles, without_MU: Doubles, sizes_U: Doubles
) -> tuple[MeanEstimate, str | None]:
    """Estimate functions [M] by the jackknife over one facet; or say why there is no variance."""
    there_U = sizes_U > 0
    without_MU, sizes_U = without_MU[:, there_U], sizes_U[there_U]
    units, ones_M = len(sizes_U), np.ones(len(value_M))
    reason = None
    if units < 2:
        reason = ONE_UNIT
    elif np.isnan(value_M).any():
        reason = UNDEFINED
    elif np.isnan(without_MU).any():
        reason = CARRIED
    elif (np.ptp(without_MU, axis=1) < ROUNDING).any():
        reason = ALIKE
    if reason is not None:
        return MeanEstimate(value_M, np.nan * ones_M, ones_M), reason
    freedom = max(float(sizes_U.sum() ** 2 / (sizes_U**2).sum()) - 1, 1.0)
    return MeanEstimate(value_M, without_MU.var(axis=1) * (units - 1), freedom * ones_M), None
