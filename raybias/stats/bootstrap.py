"""Cluster bootstrap over templates, on counts.

Drawing T templates with replacement and counting their rows again is a
product of draw counts [B, T] with per-template counts [T, G], so no row is
ever copied. One draw serves all runs, groups and classifiers of an attribute.

Shapes: B draws, T templates, G groups, K rates, R runs, C classifiers, P
patterns (runs of a classifier that share their FP + TN counts; nearly always one).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.intervals import ROUNDING
from raybias.stats.metric import DEFAULT, shares

Counts = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32] | Doubles

_BLOCK: Final = (*schema.KEYS, "attribute")
#: Draw counts or gaps held at once by one of the threads; 32 MiB in float64.
_CHUNK_ENTRIES: Final = 1 << 22
#: Numbers worked on at once; 512 KiB, so that they stay in a core's cache.
_CACHE_ENTRIES: Final = 1 << 16


@dataclass(frozen=True)
class Block:
    """Counts of one classifier on one attribute, runs of equal FP + TN counts summed."""

    keys: tuple[object, ...]
    groups: tuple[str, ...]
    false_PKTG: Counts
    negatives_PKTG: Counts
    runs_P: Counts


def bootstrap_intervals(
    cells: pl.DataFrame,
    inside: pl.DataFrame,
    *,
    metrics: Sequence[str],
    level: float,
    draws: int,
    seed: int,
) -> pl.DataFrame:
    """Percentile intervals of mean gaps when templates are drawn anew.

    Parameters
    ----------
    cells: schema.CELLS with template ids.
    inside: probe, attribute, group, in_mean.
    metrics: their names; those of predictions are passed over.

    Returns
    -------
    The keys, attribute, group, rate with low, high and p_value: twice the smaller share of
    draws on one side of 0, the estimate itself counted as one draw.

    Raises
    ------
    DataError: predictions without template ids.
    """
    if cells["template_id"].null_count():
        missing = cells.filter(pl.col("template_id").is_null())
        first = missing.row(0, named=True)
        raise DataError(
            f"{missing['n'].sum()} predictions have no template_id, which the bootstrap draws",
            where=f"{first['model']}, {first['attribute']}",
            cure="choose the normal or t interval",
        )
    members: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for probe, attribute, group, in_mean in inside.sort("group").iter_rows():
        members[probe, attribute][group] = in_mean

    names = list(shares(metrics))

    def rows(place: tuple[str, str], part: pl.DataFrame) -> list[tuple[object, ...]]:
        in_mean_G = np.array(list(members[place].values()))
        return [
            row
            for alike in _alike(blocks(part, tuple(members[place]), metrics), draws)
            for row in _judged(
                names,
                alike,
                drawn_gaps(alike, in_mean_G, draws, generator(seed, "bootstrap", *place)),
                level,
            )
        ]

    parts = cells.partition_by("probe", "attribute", as_dict=True)
    with ThreadPoolExecutor() as pool:
        found = pool.map(rows, parts.keys(), parts.values())
        table = [row for part in found for row in part]
    types = {
        **dict.fromkeys((*_BLOCK, "group", "rate"), pl.String()),
        **dict.fromkeys(("low", "high", "p_value"), pl.Float64()),
    }
    return pl.DataFrame(table, schema=types, orient="row")


def blocks(
    part: pl.DataFrame, groups: tuple[str, ...], metrics: Sequence[str] = DEFAULT
) -> Iterator[Block]:
    """Yield the cells of each classifier on one attribute as arrays."""
    chosen = shares(metrics).values()
    for keys, frame in part.partition_by(_BLOCK, as_dict=True).items():
        among_KN, holds_KN = (
            frame.select(getattr(share, kind).fill_null(False).alias(f"{place}")
                         for place, share in enumerate(chosen)).to_numpy().T
            for kind in ("among", "holds")
        )  # fmt: skip
        yield _block(keys, groups, frame, among_KN, among_KN & holds_KN)


def _block(
    keys: tuple[object, ...],
    groups: tuple[str, ...],
    frame: pl.DataFrame,
    among_KN: npt.NDArray[np.bool_],
    hits_KN: npt.NDArray[np.bool_],
) -> Block:
    # Numbered by name, so that the draws are the same for any order of the rows.
    columns = (("run_id", None), ("template_id", None), ("group", groups))
    numbers, sizes = [], []
    for column, given in columns:
        names = given or frame[column].unique().cast(pl.String).sort()
        numbers.append(frame[column].cast(pl.Enum(names)).to_physical().to_numpy())
        sizes.append(len(names))
    cell, n = np.ravel_multi_index(numbers, sizes), frame["n"].to_numpy()

    def count(mask_N: npt.NDArray[np.bool_]) -> Counts:
        counts = np.bincount(cell[mask_N], n[mask_N], minlength=math.prod(sizes))
        return counts.reshape(sizes).astype(np.int64)

    among_RKTG, hits_RKTG = (
        np.stack([count(mask_N) for mask_N in masks_KN], axis=1) for masks_KN in (among_KN, hits_KN)
    )
    # Runs of equal counts are summed: their mean rate is one quotient.
    patterns = [row.tobytes() for row in among_RKTG]
    _, first, pattern = np.unique(patterns, return_index=True, return_inverse=True)
    hits_PKTG = np.zeros((len(first), *hits_RKTG.shape[1:]), dtype=np.int64)
    np.add.at(hits_PKTG, pattern, hits_RKTG)
    return Block(keys, groups, hits_PKTG, among_RKTG[first], np.bincount(pattern))


def _alike(blocks: Iterator[Block], draws: int) -> Iterator[list[Block]]:
    """Classifiers that read the same sentences have the same FP + TN counts: drawn together."""
    alike: dict[tuple[object, ...], list[Block]] = defaultdict(list)
    for block in blocks:
        negatives = block.negatives_PKTG
        alike[negatives.shape, negatives.tobytes(), block.runs_P.tobytes()].append(block)
    for same in alike.values():
        step = max(
            1, _CHUNK_ENTRIES // (same[0].negatives_PKTG.shape[1] * len(same[0].groups) * draws)
        )
        yield from (same[start : start + step] for start in range(0, len(same), step))


def drawn_gaps(
    alike: Sequence[Block],
    in_mean_G: npt.NDArray[np.bool_],
    draws: int,
    random: np.random.Generator,
) -> Doubles:
    """Mean gaps over runs [C, K, G, B] of classifiers with equal FP + TN counts."""
    false_CPKGT = np.stack([block.false_PKTG for block in alike]).swapaxes(-1, -2)
    negatives_PKGT = alike[0].negatives_PKTG.swapaxes(-1, -2)
    classifiers, _, rates, groups, templates = false_CPKGT.shape
    gaps_CKGB = np.empty((classifiers, rates, groups, draws))
    step = max(1, _CHUNK_ENTRIES // templates)
    cached = max(1, _CACHE_ENTRIES // (false_CPKGT.size // templates))
    for start in range(0, draws, step):
        weights_BT = draw_counts(random, min(step, draws - start), templates)
        false_CPKGB = weighted(false_CPKGT, weights_BT)
        negatives_PKGB = weighted(negatives_PKGT, weights_BT)
        chunk_CKGB = gaps_CKGB[..., start : start + step]
        for first in range(0, len(weights_BT), cached):
            some = slice(first, first + cached)
            chunk_CKGB[..., some] = mean_gaps(
                false_CPKGB[..., some], negatives_PKGB[..., some], alike[0].runs_P, in_mean_G
            )
    gaps_CKGB[np.abs(gaps_CKGB) < ROUNDING] = 0
    return gaps_CKGB


def draw_counts(random: np.random.Generator, draws: int, templates: int) -> Floats:
    """How often each template is drawn, [B, T]; every row adds to T."""
    drawn_BT = random.integers(0, templates, (draws, templates))
    drawn_BT += np.arange(draws)[:, None] * templates
    counts = np.bincount(drawn_BT.ravel(), minlength=draws * templates)
    return counts.reshape(draws, templates).astype(np.float32)


def weighted(counts_XT: Counts, weights_BT: Floats) -> Floats:
    """Weighted counts [..., B]; exact, since float32 holds integers below 2**24."""
    templates = weights_BT.shape[1]
    exact = np.float32 if templates * counts_XT.max(initial=0) < 1 << 24 else np.float64
    left = counts_XT.reshape(-1, templates).astype(exact)
    product: Floats = left @ weights_BT.T.astype(exact, copy=False)
    return product.reshape(*counts_XT.shape[:-1], -1)


def mean_gaps(
    false_CPKGB: Floats,
    negatives_PKGB: Floats,
    runs_P: Counts,
    in_mean_G: npt.NDArray[np.bool_],
) -> Doubles:
    """Mean gaps over runs [C, K, G, B] from drawn counts; NaN where no run of a draw has one."""
    runs_P111 = runs_P[:, None, None, None].astype(float)
    valid_PKGB = negatives_PKGB > 0
    entered_PK1B = valid_PKGB[:, :, in_mean_G].sum(axis=2, keepdims=True)
    share_PKGB = np.where(valid_PKGB & (entered_PK1B > 0), runs_P111, 0)
    with np.errstate(invalid="ignore"):
        share_PKGB /= share_PKGB.sum(axis=0)
    rates_CPKGB = false_CPKGB / (np.where(valid_PKGB, negatives_PKGB, 1) * runs_P111)
    # Added one by one, in the same order whatever the number of draws.
    members = (rates_CPKGB[:, :, :, g] for g in np.flatnonzero(in_mean_G))
    rates_CPKGB -= (reduce(np.add, members) / np.maximum(entered_PK1B, 1)[:, :, 0])[:, :, :, None]
    rates_CPKGB *= share_PKGB
    gaps_CKGB: Doubles = reduce(np.add, rates_CPKGB.swapaxes(0, 1))
    return gaps_CKGB


def _judged(
    rates: Sequence[str], blocks: Sequence[Block], gaps_CKGB: Doubles, level: float
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table; sorts the gaps in place."""
    gaps_CKGB.sort(axis=-1)  # NaN last
    known = np.count_nonzero(~np.isnan(gaps_CKGB), axis=-1)
    low, high = (quantile(gaps_CKGB, known, (1 + sign * level) / 2) for sign in (-1, 1))
    one_side = [np.count_nonzero(side, axis=-1) for side in (gaps_CKGB <= 0, gaps_CKGB >= 0)]
    p_value = np.minimum(1.0, 2 * (np.minimum(*one_side) + 1) / (known + 1))
    for c, k, g in np.argwhere(known):
        numbers = (low[c, k, g], high[c, k, g], p_value[c, k, g])
        yield (*blocks[c].keys, blocks[c].groups[g], rates[k], *map(float, numbers))


def quantile(sorted_XB: Doubles, known_X: Counts, q: npt.ArrayLike) -> Doubles:
    """Compute the quantile of the first `known` of each row's values, as `np.quantile` does.

    Parameters
    ----------
    q: one share for all rows, or one for each [X].
    """
    place = (np.maximum(known_X - 1, 0) * q)[..., None]
    below = np.floor(place).astype(np.int64)
    above = np.ceil(place).astype(np.int64)
    low, high = (np.take_along_axis(sorted_XB, at, axis=-1) for at in (below, above))
    return (low + (high - low) * (place - below))[..., 0]
