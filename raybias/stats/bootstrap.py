"""Cluster bootstrap over templates, on counts.

Drawing T templates with replacement and counting their rows again is a
product of draw counts [B, T] with per-template counts [T, G], so no row is
ever copied. One draw serves all runs and groups of an attribute.

Shapes: B draws, T templates, G groups, K rates, R runs, P patterns (runs of a
classifier that share their FP + TN counts; nearly always one).
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.errors import DataError
from raybias.seeding import generator
from raybias.stats.cells import codes, dense
from raybias.stats.rates import RATES, ROUNDING

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_BLOCK: Final = (*schema.KEYS, "attribute")
_PROBE: Final = _BLOCK.index("probe")
_ATTRIBUTE: Final = _BLOCK.index("attribute")
#: Entries of one chunk's draw counts; 16 MiB in float32.
_CHUNK_ENTRIES: Final = 1 << 22


@dataclass(frozen=True)
class Block:
    """Counts of one classifier on one attribute, runs of equal FP + TN counts summed."""

    keys: tuple[str, ...]
    groups: tuple[str, ...]
    false_PKTG: npt.NDArray[np.int64]
    negatives_PKTG: npt.NDArray[np.int64]
    runs_P: npt.NDArray[np.int64]

    @property
    def place(self) -> tuple[str, str]:
        """Probe and attribute."""
        return self.keys[_PROBE], self.keys[_ATTRIBUTE]

    @property
    def templates(self) -> int:
        """Number T of templates to draw from."""
        return int(self.negatives_PKTG.shape[2])


def bootstrap_intervals(
    cells: pl.DataFrame, inside: pl.DataFrame, *, level: float, draws: int, seed: int
) -> pl.DataFrame:
    """Percentile intervals of mean gaps when templates are drawn anew.

    Parameters
    ----------
    cells: schema.CELLS with template ids.
    inside: probe, attribute, group, in_mean.

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
    alike: dict[tuple[str, str, int], list[Block]] = defaultdict(list)
    for block in _blocks(cells, members):
        alike[(*block.place, block.templates)].append(block)
    rows: list[tuple[object, ...]] = []
    for place, blocks in alike.items():
        in_mean_G = np.array(list(members[place[:2]].values()))
        random = generator(seed, "bootstrap", *place)
        for block, gaps_KGB in _drawn(blocks, in_mean_G, draws, random):
            rows += _judged(block, gaps_KGB, level)
    names = [*_BLOCK, "group", "rate", "low", "high", "p_value"]
    types = [pl.String] * (len(_BLOCK) + 2) + [pl.Float64] * 3
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")


def _blocks(
    cells: pl.DataFrame, members: Mapping[tuple[str, str], Mapping[str, bool]]
) -> Iterator[Block]:
    classifier = codes(cells, _BLOCK)
    order = np.argsort(classifier, kind="stable")
    starts = np.flatnonzero(np.diff(classifier[order])) + 1
    counted = cells.select("run_id", "template_id", "group", "label", "pred", "n")
    for rows in np.split(order, starts):
        keys = cells.select(_BLOCK).row(int(rows[0]))
        groups = tuple(members[keys[_PROBE], keys[_ATTRIBUTE]])
        yield _block(keys, groups, counted[rows])


def _block(keys: tuple[str, ...], groups: tuple[str, ...], part: pl.DataFrame) -> Block:
    run, runs = dense(part["run_id"])
    # Numbered by name, so that the draws are the same for any order of the rows.
    names = part["template_id"].unique().cast(pl.String).sort()
    template = part["template_id"].cast(pl.Enum(names)).to_physical().to_numpy()
    group = part["group"].cast(pl.Enum(groups)).to_physical().to_numpy()
    shape = (runs, len(names), len(groups))
    cell = np.ravel_multi_index((run, template, group), shape)
    label, pred = part["label"].to_numpy(), part["pred"].fill_null(-1).to_numpy()
    n = part["n"].to_numpy()

    def count(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        counts = np.bincount(cell[mask], n[mask], minlength=math.prod(shape))
        return counts.reshape(shape).astype(np.int64)

    classes = [int(label) for label in RATES.values()]
    negatives_RKTG = np.stack([count(label != k) for k in classes], axis=1)
    false_RKTG = np.stack([count((label != k) & (pred == k)) for k in classes], axis=1)
    # Runs of equal FP + TN counts are summed: their mean rate is one quotient.
    patterns = [row.tobytes() for row in negatives_RKTG]
    _, first, pattern = np.unique(patterns, return_index=True, return_inverse=True)
    false_PKTG = np.zeros((len(first), *false_RKTG.shape[1:]), dtype=np.int64)
    np.add.at(false_PKTG, pattern, false_RKTG)
    return Block(keys, groups, false_PKTG, negatives_RKTG[first], np.bincount(pattern))


def _drawn(
    blocks: Sequence[Block],
    in_mean_G: npt.NDArray[np.bool_],
    draws: int,
    random: np.random.Generator,
) -> Iterator[tuple[Block, npt.NDArray[np.float64]]]:
    """Mean gaps [K, G, B] of classifiers on one probe's attribute, under the same draws."""
    templates = blocks[0].templates
    drawn = [np.empty((len(RATES), len(in_mean_G), draws)) for _ in blocks]
    step = max(1, _CHUNK_ENTRIES // templates)
    for start in range(0, draws, step):
        weights_BT = draw_counts(random, min(step, draws - start), templates)
        # Classifiers read the same sentences, so that their FP + TN counts are the same too.
        negatives: dict[bytes, Floats] = {}
        for block, gaps_KGB in zip(blocks, drawn, strict=True):
            same = block.negatives_PKTG.tobytes()
            if same not in negatives:
                negatives[same] = weighted(weights_BT, block.negatives_PKTG)
            false_PKGB = weighted(weights_BT, block.false_PKTG)
            gaps_KGB[:, :, start : start + step] = mean_gaps(
                false_PKGB, negatives[same], block.runs_P, in_mean_G
            )
    yield from zip(blocks, drawn, strict=True)


def draw_counts(random: np.random.Generator, draws: int, templates: int) -> Floats:
    """How often each template is drawn, [B, T]; every row adds to T."""
    drawn_BT = random.integers(0, templates, (draws, templates))
    drawn_BT += np.arange(draws)[:, None] * templates
    counts = np.bincount(drawn_BT.ravel(), minlength=draws * templates)
    return counts.reshape(draws, templates).astype(np.float32)


def mean_gaps(
    false_PKGB: Floats,
    negatives_PKGB: Floats,
    runs_P: npt.NDArray[np.int64],
    in_mean_G: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    """Mean gaps over runs [K, G, B] from drawn counts; NaN where no run of a draw has one."""
    valid = negatives_PKGB > 0
    runs = runs_P[:, None, None, None].astype(float)
    rates_PKGB = false_PKGB / (np.where(valid, negatives_PKGB, 1) * runs)
    entering = in_mean_G.astype(float)
    entered = (entering @ valid)[:, :, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps_PKGB = rates_PKGB - (entering @ rates_PKGB)[:, :, None] / entered
        counted = np.where(valid & (entered > 0), runs, 0)
        total_KGB = np.where(counted > 0, gaps_PKGB * runs, 0).sum(axis=0)
        return np.asarray(total_KGB / counted.sum(axis=0))


def weighted(weights_BT: Floats, counts_PKTG: npt.NDArray[np.int64]) -> Floats:
    """Weighted counts [P, K, G, B]; exact, since float32 holds integers below 2**24."""
    templates = weights_BT.shape[1]
    exact = np.float32 if templates * counts_PKTG.max(initial=0) < 1 << 24 else np.float64
    left_PKGT = counts_PKTG.swapaxes(2, 3).astype(exact)
    product = left_PKGT.reshape(-1, templates) @ weights_BT.T.astype(exact, copy=False)
    shaped: Floats = product.reshape(*left_PKGT.shape[:3], -1).astype(np.float64)
    return shaped


def _judged(
    block: Block, gaps_KGB: npt.NDArray[np.float64], level: float
) -> Iterator[tuple[object, ...]]:
    gaps_KGB[np.abs(gaps_KGB) < ROUNDING] = 0
    known_KG = (~np.isnan(gaps_KGB)).sum(axis=2)
    partly = bool((known_KG < gaps_KGB.shape[2]).any())
    ends = ((1 - level) / 2, (1 + level) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a group that is NaN in every draw
        low_KG, high_KG = (np.nanquantile if partly else np.quantile)(gaps_KGB, ends, axis=2)
    smaller_KG = np.minimum((gaps_KGB <= 0).sum(axis=2), (gaps_KGB >= 0).sum(axis=2))
    p_KG = np.minimum(1.0, 2 * (smaller_KG + 1) / (known_KG + 1))
    for k, rate in enumerate(RATES):
        for g, group in enumerate(block.groups):
            if known_KG[k, g]:
                numbers = (low_KG[k, g], high_KG[k, g], p_KG[k, g])
                yield (*block.keys, group, rate, *map(float, numbers))
