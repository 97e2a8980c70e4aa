"""Product-weight (pigeonhole) bootstrap over runs and templates, on counts (Owen 2007).

A prediction counts as often as its run was drawn times its template, so hits of all draws are one
product of weights [B, RT] with counts [RT, G]. A draw has one level fewer than there are, which
makes the variance between levels unbiased (Rao and Wu 1988); the noise of single cells counts
twice, so that intervals are rather too wide. It serves spans and extremes, which are no means.

Shapes: B draws, K metrics, G groups, R runs, T templates, C classifiers, P patterns (runs of a
classifier that share their items; nearly always one).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias import schema
from raybias.config import Statistics
from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate
from raybias.stats.count_arrays import CountArrays, count_arrays
from raybias.stats.scopes import GapTable, rate_table

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32] | Doubles
DrawnScope = Literal["runs", "sentences"]

#: Gap rows, a span's row, and by group whether it is an extreme in each draw.
Judged = tuple[list[tuple[object, ...]], tuple[object, ...], dict[str, npt.NDArray[np.bool_]]]
#: Weights held at once by one of the threads; 16 MiB in float32.
_CHUNK_ENTRIES: Final = 1 << 22
#: Draws of gaps of one rate that are held at once, 32 MiB: of more groups than 419, fewer draws
#: than 10,000 are made for spans and extremes, and no fewer than `_LEAST_DRAWS`.
_MOST_DRAWN: Final = 1 << 22
_LEAST_DRAWS: Final = 1_000
#: Doubles that `drawn_gaps` holds for each gap of a draw.
_HELD: Final = 6


@dataclass(frozen=True)
class Resampled:
    """What is found where runs and templates are drawn anew."""

    gaps: pl.DataFrame
    """The keys, attribute, group, score, low, high and p."""
    spans: pl.DataFrame
    """The keys, attribute, score, low, high and `corrected`: a span is a maximum of noisy values
    and so too large on average; this one is less by what draws are larger than the estimate."""
    extremes: pl.DataFrame
    """attribute, group, score, and low and high of the share of classifiers and probes in which the
    group is an extreme."""
    scope: DrawnScope


def resampled(
    cells: pl.DataFrame,
    inside: pl.DataFrame,
    rules: Statistics,
    *,
    scope: DrawnScope,
    engines: Collection[str] = (),
) -> Resampled:
    """Resample runs, or runs and templates: intervals of gaps, spans and shares of extremes.

    Models that are other `engines` of one do not count among the extremes.

    The percentiles of gaps are those at which a normal sample has a Student interval of the
    linearised gap's degrees of freedom (Hesterberg 2015); an interval of a span is its draws'
    turned over at the estimate, and not below 0. Predictions without template ids are a DataError.
    """
    if cells["template_id"].null_count():
        missing = cells.filter(pl.col("template_id").is_null())
        first = missing.row(0, named=True)
        raise DataError(
            f"{missing['n'].sum()} predictions have no template_id, which the bootstrap draws",
            where=f"{first['model']}, {first['attribute']}",
            cure="choose the normal or t interval",
        )
    level = rules.level

    def found(place: tuple[str, str], part: pl.DataFrame) -> list[tuple[GapTable, Judged]]:
        of_place = inside.filter(probe=place[0], attribute=place[1]).sort("group")
        member, rows = dict(of_place.select("group", "in_mean").iter_rows()), []
        draws = _draws(rules, len(member))
        for alike in _alike(count_arrays(part, rules.metrics, groups=tuple(member)), draws):
            levels = alike[0].items_KGRT.shape[2:]
            weights = Weights(levels, draws, (rules.bootstrap_seed, *place), scope)
            gaps_CKGB = drawn_gaps(alike, np.array(list(member.values())), weights)
            for counts, gaps_KGB in zip(alike, gaps_CKGB, strict=True):
                for k, gaps_GB in enumerate(gaps_KGB):
                    rates = rate_table(counts, k, member)
                    if rates is None:
                        continue
                    table = rates.less_mean()
                    estimate = table.estimates(None).get(scope)
                    if estimate is not None:
                        places = [counts.groups.index(group) for group in table.groups]
                        rows.append((table, _judged(table, estimate, gaps_GB[places], level)))
        return rows

    parts = cells.partition_by("probe", "attribute", as_dict=True)
    with ThreadPoolExecutor() as pool:
        judged = [one for each in pool.map(found, parts.keys(), parts.values()) for one in each]
    texts = dict.fromkeys((*schema.KEYS, "attribute"), pl.String)
    ends = {"low": pl.Float64, "high": pl.Float64}
    rated = {"group": pl.String, "score": pl.String, **ends}
    extreme_B: dict[tuple[str, ...], list[npt.NDArray[np.bool_]]] = defaultdict(list)
    for table, (_, _, extremes) in judged:
        for group, each_B in extremes.items() if table.keys[0] not in engines else ():
            extreme_B[table.keys[-1], group, table.score].append(each_B)
    shares = [
        (*key, *percentile_interval(np.mean(drawn, axis=0), level))
        for key, drawn in sorted(extreme_B.items())
    ]
    gaps = [row for _, (rows, _, _) in judged for row in rows]
    spans = [row for _, (_, row, _) in judged]
    of_spans = {**texts, "score": pl.String, **ends, "corrected": pl.Float64}
    return Resampled(
        pl.DataFrame(gaps, {**texts, **rated, "p": pl.Float64}, orient="row"),
        pl.DataFrame(spans, of_spans, orient="row"),
        pl.DataFrame(shares, {"attribute": pl.String, **rated}, orient="row"),
        scope,
    )


def _judged(table: GapTable, estimate: MeanEstimate, gaps_GB: Doubles, level: float) -> Judged:
    """Judge the gaps of a table and their span; sorts the draws in place."""
    drawn_MB = gaps_GB[table.in_mean_G]
    ends_MB = drawn_MB == drawn_MB.max(axis=0), drawn_MB == drawn_MB.min(axis=0)
    apart_B = ~(ends_MB[0] & ends_MB[1]).any(axis=0)
    extreme_MB = (ends_MB[0] | ends_MB[1]) & apart_B
    members = [table.groups[g] for g in np.flatnonzero(table.in_mean_G)]
    span = span_interval(drawn_MB, estimate.mean[table.in_mean_G], level)
    columns = np.stack(gap_intervals(gaps_GB, estimate.freedom, level), axis=1)
    gaps = [
        (*table.keys, group, table.score, *numbers)
        for group, numbers in zip(table.groups, columns.tolist(), strict=True)
    ]
    extremes = dict(zip(members, extreme_MB, strict=True))
    return gaps, (*table.place, *span.tolist()), extremes


def _draws(rules: Statistics, groups: int) -> int:
    """Return how many draws to make: as many as asked for, but for spans fewer of many groups."""
    if rules.interval == "bootstrap":
        return rules.bootstrap_draws
    return min(rules.bootstrap_draws, max(_LEAST_DRAWS, _MOST_DRAWN // max(1, groups)))


@dataclass(frozen=True)
class Weights:
    """How often runs [B, R] and templates [B, T] are drawn; the same for equal keys."""

    levels: tuple[int, ...]
    """R and T."""
    draws: int
    key: tuple[str | int, ...]
    """The seed and the place."""
    scope: DrawnScope

    def chunks(self, values: int = 1) -> Iterator[tuple[slice, Floats, Floats]]:
        """Yield some draws at a time; the size of a chunk does not change them.

        values: how many doubles are held for each draw, if these are more than its weights.
        """
        seed, *place = self.key
        facets = ("runs", "templates") if self.scope == "sentences" else ("runs",)
        random = {name: generator(seed, "bootstrap", *place, name) for name in facets}
        step = max(1, _CHUNK_ENTRIES // max(values, math.prod(self.levels)))
        for start in range(0, self.draws, step):
            some = slice(start, min(self.draws, start + step))
            drawn = [
                draw_counts(random[name], some.stop - start, levels, levels - 1)
                if name in random and levels > 1
                else np.ones((some.stop - start, levels), np.float32)
                for name, levels in zip(("runs", "templates"), self.levels, strict=True)
            ]
            yield some, drawn[0], drawn[1]


def _alike(arrays: Iterator[CountArrays], draws: int) -> Iterator[list[CountArrays]]:
    """Yield classifiers that read the same sentences, and so have the same items: drawn together.

    They are some classifiers, or one with some of its metrics, whose draws can be held.
    """
    alike: dict[tuple[object, ...], list[CountArrays]] = defaultdict(list)
    for each in arrays:
        if each.scores:  # Metrics of predictions have no counts to draw.
            alike[each.items_KGRT.shape, each.items_KGRT.tobytes()].append(each)
    for same in alike.values():
        of_a_score = len(same[0].groups) * draws
        classifiers = max(1, _CHUNK_ENTRIES // (len(same[0].scores) * of_a_score))
        scores = max(1, _MOST_DRAWN // of_a_score)
        for start in range(0, len(same), classifiers):
            held = same[start : start + classifiers]
            for first in range(0, len(same[0].scores), scores):
                yield [each.of_scores(slice(first, first + scores)) for each in held]


def drawn_gaps(
    alike: Sequence[CountArrays], in_mean_G: npt.NDArray[np.bool_], weights: Weights
) -> Doubles:
    """Compute mean gaps [C, K, G, B] over runs; NaN where no run of a draw has one."""
    hits_CKGRT = np.stack([each.hits_KGRT for each in alike])
    items_KGRT = alike[0].items_KGRT
    whole = hits_CKGRT.shape[:3]
    # Runs of equal items have one denominator.
    runs_by_items: dict[bytes, list[int]] = defaultdict(list)
    for run in range(weights.levels[0]):
        runs_by_items[items_KGRT[:, :, run].tobytes()].append(run)
    patterns = [np.array(runs) for runs in runs_by_items.values()]
    # Products of float32 are exact as long as they are integers below 2**24.
    most = items_KGRT.max(initial=0) * math.prod(weights.levels)
    exact = np.float32 if most < 1 << 24 else np.float64
    left = [
        (hits_CKGRT[..., runs, :].reshape(-1, len(runs) * weights.levels[1]).astype(exact),
         items_KGRT[..., runs[0], :].astype(exact), runs) for runs in patterns
    ]  # fmt: skip
    gaps_CKGB = np.empty((*whole, weights.draws))
    for some, runs_BR, templates_BT in weights.chunks(_HELD * math.prod(whole)):
        total_CKGB = np.zeros((*whole, len(runs_BR)))
        entered_KGB = np.zeros((*whole[1:], len(runs_BR)))
        for hits_XP, items_KGT, runs in left:
            weights_BP = (runs_BR[:, runs, None] * templates_BT[:, None]).reshape(len(runs_BR), -1)
            hits_CKGB = (hits_XP @ weights_BP.T.astype(exact, copy=False)).reshape(*whole, -1)
            items_KGB = items_KGT @ templates_BT.T.astype(exact, copy=False)
            share_KGB = _shares(runs_BR[:, runs].sum(axis=1), items_KGB, in_mean_G)
            rates_CKGB = np.divide(hits_CKGB, np.where(items_KGB > 0, items_KGB, 1), dtype=float)
            members = np.maximum((items_KGB[:, in_mean_G] > 0).sum(axis=1, keepdims=True), 1)
            rates_CKGB -= rates_CKGB[:, :, in_mean_G].sum(axis=2, keepdims=True) / members
            total_CKGB += np.where(share_KGB > 0, rates_CKGB, 0)
            entered_KGB += share_KGB
        with np.errstate(invalid="ignore"):
            gaps_CKGB[..., some] = total_CKGB / entered_KGB
    gaps_CKGB[np.abs(gaps_CKGB) < ROUNDING] = 0
    return gaps_CKGB


def _shares(runs_B: Floats, items_KGB: Floats, in_mean_G: npt.NDArray[np.bool_]) -> Floats:
    """Count the drawn runs [K, G, B] that have a gap: items of the group and of one in the mean."""
    known = (items_KGB > 0) & (items_KGB[:, in_mean_G] > 0).any(axis=1, keepdims=True)
    return np.asarray(np.where(known, runs_B, 0))


def draw_counts(
    random: np.random.Generator, draws: int, levels: int, taken: int | None = None
) -> Floats:
    """How often each level is drawn, [B, levels]; every row adds to `taken`, by default all."""
    drawn = random.integers(0, levels, (draws, levels if taken is None else taken))
    drawn += np.arange(draws)[:, None] * levels
    counts = np.bincount(drawn.ravel(), minlength=draws * levels)
    return counts.reshape(draws, levels).astype(np.float32)


def percentile_interval(drawn_B: Doubles, level: float) -> tuple[float, float]:
    """Return the ends of the middle `level` of draws."""
    low, high = np.quantile(drawn_B, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def gap_intervals(
    gaps_XB: Doubles, freedom_X: Doubles, level: float
) -> tuple[Doubles, Doubles, Doubles]:
    """Compute low, high and the two-sided p [X] from drawn gaps; sorts these in place."""
    low_X, high_X, known_X = student_percentiles(gaps_XB, freedom_X, level)
    one_side = [np.count_nonzero(side, axis=-1) for side in (gaps_XB <= 0, gaps_XB >= 0)]
    share_X = np.minimum(0.5, (np.minimum(*one_side) + 1) / (known_X + 1))
    return low_X, high_X, np.asarray(2 * stats.t.cdf(stats.norm.ppf(share_X), freedom_X))


def student_percentiles(
    drawn_XB: Doubles, freedom_X: Doubles, level: float, wider: Doubles | float = 1.0
) -> tuple[Doubles, Doubles, Counts]:
    """Compute low and high [X], at which normal draws have a Student interval (Hesterberg 2015).

    Sorts the draws in place, NaN last, and also counts those that are known.
    """
    drawn_XB.sort(axis=-1)
    known_X = np.count_nonzero(~np.isnan(drawn_XB), axis=-1)
    tail_X = stats.norm.cdf(stats.t.ppf((1 - level) / 2, freedom_X) * wider)
    low_X, high_X = (_quantile(drawn_XB, known_X, share) for share in (tail_X, 1 - tail_X))
    return low_X, high_X, known_X


def span_interval(gaps_GB: Doubles, gaps_G: Doubles, level: float) -> Doubles:
    """Compute low, high and the bias-corrected span from drawn gaps and the estimated ones.

    NaN if no draw has a gap of every group; of draws that are all the same there are no ends.
    """
    spans_B = gaps_GB.max(axis=0) - gaps_GB.min(axis=0)
    if np.isnan(spans_B).all():
        return np.full(3, np.nan)
    if np.nanmax(spans_B) - np.nanmin(spans_B) <= ROUNDING:
        return np.array([np.nan, np.nan, np.ptp(gaps_G)])
    drawn = np.nanquantile(spans_B, [(1 + level) / 2, (1 - level) / 2])
    turned = 2 * np.ptp(gaps_G) - np.array([*drawn, np.nanmean(spans_B)])
    return np.asarray(np.maximum(0.0, turned))


def _quantile(sorted_XB: Doubles, known_X: Counts, q_X: Doubles | float) -> Doubles:
    """Compute a quantile of the first `known` values of each row [X]."""
    place = (np.maximum(known_X - 1, 0) * q_X)[..., None]
    below = np.floor(place).astype(np.int64)
    above = np.ceil(place).astype(np.int64)
    low, high = (np.take_along_axis(sorted_XB, at, axis=-1) for at in (below, above))
    return (low + (high - low) * (place - below))[..., 0]
