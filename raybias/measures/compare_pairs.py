"""Judge how preference and coreference scores change from one arm to another, over equal pairs.

The change of a score is the mean paired difference of its outcomes, so what a pair has in both
arms cancels. Verdicts are those of gaps (`stats.compare_gaps`), with the score's distance from its
neutral value in the place of a gap: 50% of preferences, no difference of coreference.

Shapes: M metrics, S styles, N pairs; K = T bias types and two averages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import DataError
from raybias.measures.pair_means import NEUTRAL, UNWEIGHTED, Layout, layouts, mcnemar
from raybias.stats.compare import CHANGES, typed
from raybias.stats.compare_gaps import FEWEST_UNITS, sign, verdict_of
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.intervals import ROUNDING

#: What intervals cover: other pairs like these, of other writers where writers are known.
SCOPE: Final = "pairs"
_SCORED: Final = ("model", "probe", "style", "rate")
_PAIR: Final = ("model", "score", "probe", "style", "bias_type", "pair_id")


def score_changes(
    base: pl.DataFrame, candidate: pl.DataFrame, *, level: float, margin: float
) -> pl.DataFrame:
    """Judge the change of every score, by bias type and over all.

    Parameters
    ----------
    base, candidate: outcomes (`pair_outcomes`, `coreference_outcomes`, or both) of the same pairs.
        Where each arm has one model, these two are what is compared.
    level: of the bands, which hold for all scores of the comparison together (Bonferroni).
    margin: the largest change of a score, from 0 to 1, that does not matter.

    Returns
    -------
    `stats.compare.CHANGES`: `attribute` is "bias_type", `group` the type or
    average, `rate` the score, and `scope` "pairs". Where pairs stand alone, a change for better or
    worse must hold by McNemar's exact test too. A score is `unread`, and neither better nor
    equivalent, where so many more answers of the candidate name nobody (or more pairs tie) that
    they can hide more than the margin.

    Raises
    ------
    DataError: a model, score, style or pair that one arm lacks.
    """
    one, other = _named_alike(base, candidate)
    _check_same_pairs(one, other)
    found = [_Change.of(*both) for both in zip(layouts(one), layouts(other), strict=True)]
    shared = 1 - (1 - level) / max(1, sum(each.judged for each in found))
    rows = [row for each in found for row in each.rows(level, shared, margin)]
    rises = _rises(one, other)
    for row in rows:
        kind, was, now = rises[tuple(row[key] for key in _SCORED)]
        if now - was > margin and row["verdict"] in ("better", "equivalent"):
            needs = f"answers on {kind} that name nobody rose from {was:.0%} to {now:.0%}"
            row |= {"verdict": "unread", "needs": needs}
    return typed(pl.DataFrame(rows, infer_schema_length=None), CHANGES)


def _rises(
    base: pl.DataFrame, candidate: pl.DataFrame
) -> dict[tuple[object, ...], tuple[str, float, float]]:
    """Find, for each score and style, the bias type whose unread answers rose most: shares."""
    by = [*_SCORED, "bias_type"]
    one, other = (
        arm.rename({"score": "rate"}).group_by(by).agg(pl.col("unread").mean())
        for arm in (base, candidate)
    )
    rise = pl.col("unread_right") - pl.col("unread")
    both = one.join(other, on=by).sort(rise, *by, descending=[True] + [False] * len(by))
    most = both.unique(_SCORED, keep="first", maintain_order=True)
    return {tuple(row[: len(_SCORED)]): row[len(_SCORED) :] for row in most.iter_rows()}


def _named_alike(base: pl.DataFrame, candidate: pl.DataFrame) -> list[pl.DataFrame]:
    names = [arm["model"].unique().to_list() for arm in (base, candidate)]
    if any(len(each) > 1 for each in names) or names[0] == names[1]:
        return [base, candidate]
    both = pl.lit(f"{names[0][0]} -> {names[1][0]}")
    return [arm.with_columns(model=both) for arm in (base, candidate)]


def _check_same_pairs(base: pl.DataFrame, candidate: pl.DataFrame) -> None:
    for name, one, other in (("base", base, candidate), ("candidate", candidate, base)):
        missing = one.join(other, on=_PAIR, how="anti").sort(_PAIR).head(1)
        for row in missing.iter_rows(named=True):
            # The widest of what lacks says most: a whole model before one of its pairs.
            lacking = (key for key in _PAIR if row[key] not in other[key])
            key = next(lacking, "pair_id")
            raise DataError(
                f"the {name} has {key} {row[key]!r} (pair {row['pair_id']!r} of {row['probe']!r} "
                f"in style {row['style']!r}), which the other arm lacks",
                cure="score both on the same pairs, and choose models with --base and --candidate",
            )


@dataclass(frozen=True)
class _Change:
    """The outcomes of one probe in both arms, less the value that means no bias [M, S, N]."""

    laid: Layout
    base_MSN: Doubles
    candidate_MSN: Doubles

    @classmethod
    def of(cls, base: Layout, candidate: Layout) -> _Change:
        neutral_M11 = base.neutral_M1[..., None] / 100
        arms = (each.values_MSN - neutral_M11 for each in (base, candidate))
        return cls(base, *arms)

    @property
    def difference_MSN(self) -> Doubles:
        """Paired differences; NaN where a metric lacks the pair."""
        return self.candidate_MSN - self.base_MSN

    @property
    def judged(self) -> int:
        """Number of scores that have pairs."""
        return int(np.count_nonzero(self.laid.sums(~np.isnan(self.difference_MSN))))

    def _estimates(self, values_MSN: Doubles) -> MeanEstimate:
        """Means [K, M, S] when pairs are drawn, or their clusters."""
        clusters = self.laid.cluster_N
        alone = np.arange(len(self.laid.type_N))
        return self.laid.robust(values_MSN, alone if clusters is None else clusters)

    def rows(self, level: float, shared: float, margin: float) -> Iterator[dict[str, object]]:
        """Yield a row of each score; `shared` is the level at which all bands hold together."""
        laid, d_MSN = self.laid, self.difference_MSN
        change = self._estimates(d_MSN)
        middle = self._estimates((self.candidate_MSN + self.base_MSN) / 2)
        n, up, down = (laid.sums(x) for x in (~np.isnan(d_MSN), d_MSN > 0, d_MSN < 0))
        exact = np.broadcast_to(
            laid.binary_M1 & (laid.cluster_N is None), n.shape
        ) & (np.array(laid.rows) != UNWEIGHTED)[:, None, None]  # fmt: skip
        p_flips = np.where(exact & (up + down > 0), mcnemar(up, down), np.nan)
        bands, sides = change.interval(shared), middle.interval(shared)
        nearest = np.abs(change.interval(2 * level - 1)).max(axis=0)
        ideal = change.detectable(shared)
        clusters = math.inf if laid.cluster_N is None else len(np.unique(laid.cluster_N))
        for place in zip(*np.nonzero(n), strict=True):
            k, m, s = place
            model, score, test = laid.metrics[m]
            row = {
                "model": model, "method": "", "dataset": "", "probe": laid.probe,
                "style": laid.styles[s], "attribute": "bias_type", "group": laid.rows[k],
                "rate": score, "scope": SCOPE,
                "base": float(middle.mean[place] - change.mean[place] / 2) + NEUTRAL[test] / 100,
                "candidate": float(middle.mean[place] + change.mean[place] / 2)
                + NEUTRAL[test] / 100,
                "flips_up": int(up[place]), "flips_down": int(down[place]),
                "p_flips": float(p_flips[place]),
            }  # fmt: skip
            units = int(min(n[place], clusters))
            few = f"{FEWEST_UNITS} pairs or clusters or more, not {units}"
            enough = units >= FEWEST_UNITS
            if not up[place] + down[place]:
                yield {
                    **row,
                    **_SAME,
                    **({} if enough else {"verdict": "cannot tell", "needs": few}),
                }
                continue
            base = float(middle.mean[place] - change.mean[place] / 2) + NEUTRAL[test] / 100
            low, high = (
                float(np.clip(end[place], (0.0 if NEUTRAL[test] else -1.0) - base, 1.0 - base))
                for end in bands
            )
            band = (low, high)
            side = (float(sides[0][place]), float(sides[1][place]))
            sure = not p_flips[place] > 1 - shared
            within = bool(nearest[place] <= margin)
            verdict = verdict_of(band, side, within=within and enough, sure=sure)
            numbers = {
                "change": float(change.mean[place]), "low": band[0], "high": band[1],
                "at_most": float(nearest[place]), "verdict": verdict, "needs": "",
            }  # fmt: skip
            if verdict == "cannot tell":
                needs = _needs(band, sure, int(n[place]), float(ideal[place]) / margin)
                moved = f"{int(up[place] + down[place]):,} of {int(n[place]):,} changed sides"
                numbers["needs"] = f"{moved}; {few if within else needs}"
            yield {**row, **numbers}


_SAME: Final[Mapping[str, object]] = {
    "change": 0.0, "low": 0.0, "high": 0.0, "at_most": 0.0, "verdict": "equivalent", "needs": "",
}  # fmt: skip


def _needs(band: tuple[float, float], sure: bool, n: int, ratio: float) -> str:
    """Say how many pairs would show a change of the margin, 4 times of 5.

    Parameters
    ----------
    ratio: of the change that is found 4 times of 5 to the margin.
    """
    if sure and sign(band):
        return "it moved, but whether away from no bias is not known"
    if math.isnan(ratio):
        return "pairs of two writers or more"
    if ratio <= 1 + ROUNDING:
        return "it lies about the margin"
    return f"{math.ceil(n * ratio**2):,} pairs, not {n:,}"
