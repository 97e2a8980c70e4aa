"""Judge how estimates change from one arm to another: worse, better, equivalent, or cannot tell.

With D the change and M the middle of two distances from no bias, |candidate| > |base| exactly where
D and M have the same sign. So an estimate is `worse` where the bands of both exclude 0 on the same
side, and `better` where on opposite sides (an intersection-union test, Berger 1982). It is
`equivalent`, before either, where the 90% interval of D (at level 0.95) lies within the margin, and
so does the bound of D that assumes nothing about how units (templates, pairs) differ: an interval
cannot know of a harm that sits in a few whole units, as long as none of these was sampled.
Bands hold for all changes of a comparison at once.

The change of a score of pairs is the mean paired difference of its outcomes, its distance that from
50% of preferences, or from no difference of coreference. Without clusters, a change for better or
worse must pass McNemar's exact test too.

Shapes: M metrics, S styles, N pairs, U units; K = T bias types and two averages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.measures.pair_means import NEUTRAL, UNWEIGHTED, Layout, layouts, mcnemar
from raybias.schema import ESTIMATES
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, Places
from raybias.stats.largest_mean import largest_mean, units_needed
from raybias.table_files import conformed

Verdict = Literal["worse", "unread", "cannot tell", "better", "equivalent"]
#: The gravest first; of none that is grave, `better` says more than `equivalent`.
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
#: Estimates of the statistic `difference`, candidate less base. `low` and `high` are the band,
#: `at_most` is the smallest margin within which the change would be equivalent, and `reason` what
#: would tell where the verdict cannot; flips are sentences or pairs, p that of McNemar's test.
#: `still` describes a change of which no unit shows any, with the answers that differ all the same.
COMPARED: Final = pl.Schema(
    {
        **pl.Schema(ESTIMATES),
        **dict.fromkeys(("base", "candidate", "at_most"), pl.Float64()),
        **dict.fromkeys(("flips_up", "flips_down"), pl.Int64()),
        "p_flips": pl.Float64(),
        "verdict": pl.String(),
        "still": pl.String(),
    }
)
#: Intervals cover other pairs like these, by other writers where writers are known.
SCOPE: Final = "pairs"
_SCORED: Final = ("model", "probe", "style", "score")
_PAIR: Final = ("model", "score", "probe", "style", "bias_type", "pair_id")
Row = dict[str, Any]
Ends = tuple[float, float]
#: Gives the interval at a level, such as 0.95; NaN if there is none.
Interval = Callable[[float], Ends]


@dataclass(frozen=True)
class Units:
    """What each sampled unit adds to a change, which is the mean over units."""

    name: str
    """Of the units: `templates`."""
    values_U: Doubles
    most: float
    """The size of what one unit can add: 1 if all units are of one size."""
    size: float = 1.0
    """How many of what the name says are one unit, on average."""

    def reach(self, level: float) -> float:
        """Bound the size of the change, with ends at `level` each, by `largest_mean`."""
        return largest_mean(self.values_U, self.most, level)

    def too_few(self, level: float, margin: float, reach: float) -> str:
        """Say how many units would bound the change by the margin, and what these bound it by."""
        counts = units_needed(self.values_U, self.most, level, margin), len(self.values_U)
        needed, sampled = (math.ceil(self.size * count) for count in counts)
        return f"{needed:,} {self.name} or more: {sampled:,} leave room for {reach:.3f}"


@dataclass(frozen=True)
class Rule:
    """How changes are judged."""

    level: float
    """Of the verdict `equivalent`, each way."""
    shared: float
    """Of each band, so that all bands hold together."""
    margin: float


def still(units: Units, rule: Rule, bounds: Ends) -> Row:
    """Judge a change of which no unit shows any; it lies between `bounds`."""
    reach, band = units.reach(rule.level), units.reach((1 + rule.shared) / 2)
    row: Row = {"value": 0.0, "low": max(-band, bounds[0]), "high": min(band, bounds[1]),
                "at_most": reach, "verdict": "equivalent", "reason": ""}  # fmt: skip
    if reach > rule.margin:
        row |= {"verdict": "cannot tell", "reason": units.too_few(rule.level, rule.margin, reach)}
    return row


def interval_at(estimate: MeanEstimate, place: Any) -> Interval:
    """Return the intervals of one of several estimates [...], by its place."""

    def interval(level: float) -> Ends:
        low, high = estimate.interval(level)
        return float(low[place]), float(high[place])

    return interval


def judged(
    value: float, change: Interval, middle: Interval, *, rule: Rule, bounds: Ends, units: Units,
    sure: bool,
) -> Row:  # fmt: skip
    """Judge a change by its band and that of the middle of both arms, which is 0 without bias.

    `sure` is whether bands alone may show a change.
    """
    low, high = (float(np.clip(end, *bounds)) for end in change(rule.shared))
    moved, away = side((low, high)), side(middle(rule.shared))
    nearest, reach = max(map(abs, change(2 * rule.level - 1))), units.reach(rule.level)
    # NaN, if there is no interval, stays.
    at_most = float(np.maximum(nearest, reach))
    verdict, reason = "cannot tell", ""
    if at_most <= rule.margin:
        verdict = "equivalent"
    elif sure and moved and away:
        verdict = "worse" if moved == away else "better"
    elif nearest <= rule.margin:
        reason = units.too_few(rule.level, rule.margin, reach)
    return {"value": value, "low": low, "high": high, "at_most": at_most, "verdict": verdict,
            "reason": reason}  # fmt: skip


def side(interval: Ends) -> int:
    """Return the side of 0 that a whole interval lies on; 0 where it holds 0 or is not known."""
    return int(interval[0] > 0) - int(interval[1] < 0)


def unread_rises(
    base: pl.DataFrame, candidate: pl.DataFrame, unread: pl.Expr, by: Sequence[str],
    parts: Sequence[str],
) -> dict[tuple[object, ...], tuple[str, float, float]]:  # fmt: skip
    """Find, by `by`, the part whose unread share rose most: its first of `parts`, share per arm."""
    names = [*by, *parts]
    one, other = (arm.group_by(names).agg(share=unread.mean()) for arm in (base, candidate))
    both = one.join(other, on=names).cast({pl.Categorical: pl.String})
    order = both.sort(pl.col("share") - pl.col("share_right"), *names)
    most = order.unique(by, keep="first", maintain_order=True)
    return {row[: len(by)]: (row[len(by)], *row[-2:]) for row in most.iter_rows()}


def hidden(row: Mapping[str, object], said: str, was: float, now: float, margin: float) -> Row:
    """Return the verdict `unread` where more unread answers can hide more than the margin."""
    if not (now - was > margin and row["verdict"] in ("better", "equivalent")):
        return {}
    return {"verdict": "unread", "reason": f"{said} rose from {was:.0%} to {now:.0%}"}


def overall(verdicts: Sequence[str]) -> Verdict:
    """Return the verdict on the whole: the gravest that a change has."""
    return next((verdict for verdict in VERDICTS if verdict in verdicts), "equivalent")


def compare_pairs(
    base: pl.DataFrame, candidate: pl.DataFrame, *, level: float, margin: float, kinds: int = 1
) -> pl.DataFrame:
    """Judge the change of every score, by bias type and over all.

    `base` and `candidate` are outcomes (`Kind.outcomes`, of several kinds together) of the same
    pairs (else a DataError); where each arm has one model, these two are compared. `level` is that
    of the bands, which hold for all scores together (Bonferroni) and share the error with those of
    `kinds` - 1 other kinds of answers, and `margin` the largest change of a score, from 0 to 1,
    that does not matter.

    Gives `COMPARED`: `attribute` is "bias_type", `group` the type or average, `score` the way of
    scoring. A score is `unread` where the rise of unread answers can hide more than the margin.
    """
    (base, candidate), _ = named_alike((base, candidate), ("model",))
    refuse_lacking(base, candidate, _PAIR, "score both on the same pairs, and choose models")
    laid = [*zip(layouts(base), layouts(candidate), strict=True)]
    # Scores that have pairs: all have bands that hold together.
    scores = sum(np.count_nonzero(one.sums(~np.isnan(one.values_MSN + other.values_MSN)))
                 for one, other in laid)  # fmt: skip
    rule = Rule(level, 1 - (1 - level) / max(1, kinds * scores), margin)
    rows = [row for one, other in laid for row in _rows(one, other, rule)]
    rises = unread_rises(base, candidate, pl.col("unread"), _SCORED, ("bias_type",))
    for row in rows:
        kind, was, now = rises[tuple(row[key] for key in _SCORED)]
        row.update(hidden(row, f"answers on {kind} that name nobody", was, now, margin))
    return conformed(pl.DataFrame(rows, infer_schema_length=None), COMPARED).fill_nan(None)


def named_alike(
    arms: Sequence[pl.DataFrame], columns: Sequence[str]
) -> tuple[list[pl.DataFrame], dict[str, str]]:
    """Call what is compared alike in both arms: `a -> b` if each arm has one value of a column.

    Returns the arms, and the new values by column.
    """
    names: dict[str, str] = {}
    for column in columns:
        values = [arm[column].unique().to_list() for arm in arms]
        if [len(each) for each in values] == [1, 1] and values[0] != values[1]:
            names[column] = f"{values[0][0]} -> {values[1][0]}"
    return [arm.with_columns(pl.lit(v).alias(c) for c, v in names.items()) for arm in arms], names


def refuse_lacking(
    base: pl.DataFrame, candidate: pl.DataFrame, on: Sequence[str], cure: str
) -> None:
    """Refuse arms of which one has values of `on` that the other lacks."""
    for name, one, other in (("base", base, candidate), ("candidate", candidate, base)):
        missing = one.select(on).unique().join(other, on=on, how="anti").sort(on).head(1)
        for row in missing.iter_rows(named=True):
            # What the other arm has nowhere says most.
            alone = [key for key in on if row[key] not in other[key].cast(pl.String)]
            lacks = ", ".join(f"{key} {row[key]!r}" for key in alone or on)
            raise DataError(
                f"the {name} has {lacks}, which the other arm lacks",
                cure=f"{cure} with --base and --candidate",
            )


def _rows(laid: Layout, other: Layout, rule: Rule) -> Iterator[Row]:
    """Yield a row of each score."""
    clusters = laid.cluster_N
    drawn_N = np.arange(len(laid.type_N)) if clusters is None else clusters
    # Outcomes less the value that means no bias.
    before, after = (each.values_MSN - each.neutral_M1[..., None] / 100 for each in (laid, other))
    d_MSN = after - before
    change, middle = laid.robust(d_MSN, drawn_N), laid.robust((after + before) / 2, drawn_N)
    n, up, down = (laid.sums(x) for x in (~np.isnan(d_MSN), d_MSN > 0, d_MSN < 0))
    exact = laid.tested_K11 & laid.binary_M1 & (clusters is None) & (up + down > 0)
    number = np.minimum(n, math.inf if clusters is None else len(np.unique(clusters)))
    p_flips = np.where(exact, mcnemar(up, down), np.nan)
    detectable = change.detectable(rule.shared)
    for place in zip(*np.nonzero(n), strict=True):
        model, score, test = laid.metrics[place[1]]
        least, half = (0.0 if NEUTRAL[test] else -1.0), change.mean[place] / 2
        base, candidate = (
            float(middle.mean[place] + step) + NEUTRAL[test] / 100 for step in (-half, half)
        )
        pairs, turned = int(n[place]), int(up[place] + down[place])
        row: Row = {
            "kind": "pairs" if NEUTRAL[test] else "coreference", "statistic": "difference",
            "model": model, "method": "", "dataset": "", "probe": laid.probe,
            "style": laid.styles[place[2]], "attribute": "bias_type", "group": laid.rows[place[0]],
            "score": score, "scope": SCOPE, "base": base, "candidate": candidate, "n": pairs,
            "units": int(number[place]), "flips_up": int(up[place]), "flips_down": int(down[place]),
            "p_flips": float(p_flips[place]),
        }  # fmt: skip
        units = _units(laid, d_MSN[place[1:]], drawn_N, place[0])
        bounds = (least - base, 1.0 - base)
        if not turned:
            yield row | still(units, rule, bounds) | {"still": "no pair's outcome changes"}
            continue
        sure = not p_flips[place] > 1 - rule.shared
        intervals = interval_at(change, place), interval_at(middle, place)
        row |= judged(float(change.mean[place]), *intervals, rule=rule, bounds=bounds, units=units,
                      sure=sure)  # fmt: skip
        if row["verdict"] == "cannot tell":
            ratio = float(detectable[place]) / rule.margin
            needs = row["reason"] or needed((row["low"], row["high"]), sure, pairs, ratio, "pairs")
            row["reason"] = f"{turned:,} of {pairs:,} changed sides; {needs}"
        yield row


def _units(laid: Layout, d_N: Doubles, drawn_N: Places, k: int) -> Units:
    """Add up by pair, or cluster, what pairs add to the mean change of row `k`."""
    pairs = np.flatnonzero(laid.own_KN[k] & ~np.isnan(d_N))
    weights = np.ones(len(pairs))
    if laid.rows[k] == UNWEIGHTED:
        type_N = laid.type_N[pairs]
        weights /= np.bincount(type_N)[type_N]
    weights /= weights.sum()
    _, unit_N = np.unique(drawn_N[pairs], return_inverse=True)
    weights_U, sums_U = (np.bincount(unit_N, each) for each in (weights, weights * d_N[pairs]))
    number, mean = len(weights_U), sums_U.sum()
    # Each unit by its weight (the usual linearisation); as many of equal size would add as much
    # as these do (Kish 1965).
    values_U = mean + number * (sums_U - weights_U * mean)
    name = "pairs" if laid.cluster_N is None else "clusters of pairs"
    return Units(name, values_U, float(number * (weights_U**2).sum()))


def needed(band: Ends, sure: bool, n: int, ratio: float, units: str) -> str:
    """Say how many units would show the margin with 80% power; n show `ratio` times as much."""
    if sure and side(band):
        return "it moved, but whether away from no bias is not known"
    if math.isnan(ratio):
        return f"{units} of two writers or more"
    if ratio <= 1 + ROUNDING:
        return "it lies about the margin"
    return f"{math.ceil(n * ratio**2):,} {units}, not {n:,}"
