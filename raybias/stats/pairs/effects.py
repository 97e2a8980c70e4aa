"""Style as an intervention: a pair's content is held fixed, so effects are paired differences.

The effect of a style is the mean over pairs of the outcome under it less the outcome
under `original`. Intervals draw pairs anew within their bias type; one draw serves all
models, scores and styles of a probe.

Shapes: M metrics, S styles without `original`, N pairs, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.seeding import generator
from raybias.stats.intervals import Adjust, verdicts
from raybias.stats.pairs import paired_tests
from raybias.stats.pairs.outcomes import (
    METRIC,
    NEUTRAL,
    ORIGINAL,
    UNWEIGHTED,
    WEIGHTED,
    in_order,
    style_order,
)
from raybias.stats.pairs.resampling import cube, drawn_means, percentiles, wilson

Doubles = npt.NDArray[np.float64]

_ORDER: Final = (*METRIC, "bias_type", "style")
_NUMBERS: Final = (
    "value", "original", "effect", "low", "high", "value_low", "value_high", "original_low",
    "original_high", "flip_share", "z", "z_p", "p_value", "pairs_needed", "resolvable",
)  # fmt: skip
_COUNTS: Final = ("n", "flips", "up", "down")


@dataclass
class _Sums:
    """What adds up over bias types, each [M, S]; the three means are [3, M, S, B]."""

    n: Doubles
    value: Doubles
    original: Doubles
    square: Doubles
    up: Doubles
    down: Doubles
    flips: Doubles
    drawn: Doubles

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(mine + theirs for mine, theirs in zip(
            vars(self).values(), vars(other).values(), strict=True)))  # fmt: skip


def effects(
    outcomes: pl.DataFrame,
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    adjust: Adjust = "benjamini_hochberg",
) -> pl.DataFrame:
    """Average effect of every style on every metric, by bias type and over all.

    Parameters
    ----------
    outcomes: of `pair_outcomes` or `coreference_outcomes`, or both joined.
    level: of the intervals and of the correction.
    draws, seed: of the bootstrap.
    adjust: whether `survives` asks for the correction for many tests.

    Returns
    -------
    A row per metric, bias_type (the two averages too) and style except `original`, over
    the n pairs that both have. In points: `original`, `value` and their difference
    `effect`, each with an interval (`low` and `high` are the effect's; a preference's own is
    Wilson's, as in `bias_scores`). `flips`: pairs whose
    preference is another (a tie is one of its own); `up` and `down`: pairs whose outcome
    rises and falls. `z` and `z_p`: the paper's two-proportion test, `paper` whether
    |z| > 1.96. `p_value`: exact McNemar test for preferences, Student's paired test for
    coreference; none for the mean of types. `q_value`: Benjamini-Hochberg over the whole
    table. `survives`: the interval excludes 0 and, where adjusted, q <= 1 - level.
    `pairs_needed`: to resolve the effect seen with 80% power; `resolvable`: the effect that
    these n pairs resolve so.
    """
    rows: list[dict[str, Any]] = []
    for (probe,), part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        styles = [style for style in style_order(part["style"]) if style != ORIGINAL]
        if styles:
            rows += _probe_rows(part, str(probe), styles, level=level, draws=draws, seed=seed)
    texts = dict.fromkeys((*_ORDER, "test"), pl.String)
    counts = dict.fromkeys(_COUNTS, pl.Int64)
    table = pl.DataFrame(rows, {**texts, **counts, **dict.fromkeys(_NUMBERS, pl.Float64)})
    judged = table.with_columns(pl.col(_NUMBERS).fill_nan(None)).pipe(
        verdicts, level=level, adjust=adjust
    )
    return in_order(judged.with_columns(paper=pl.col("z").abs() > 1.96))


def _probe_rows(
    part: pl.DataFrame, probe: str, styles: list[str], *, level: float, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    metrics = part.select("model", "score", "test").unique().sort("model", "score").rows()
    types = part["bias_type"].unique().sort().to_list()
    whole: _Sums | None = None
    kinds: list[_Sums] = []
    for bias_type in types:
        both = cube(part.filter(bias_type=bias_type), metrics, [ORIGINAL, *styles])
        sums = _sums(*both, draws, generator(seed, "pairs", probe, bias_type))
        yield from _rows(sums, metrics, styles, level, probe=probe, bias_type=bias_type)
        whole = sums if whole is None else whole + sums
        kinds.append(_means(sums))
    if whole is not None:
        yield from _rows(whole, metrics, styles, level, probe=probe, bias_type=WEIGHTED)
        # Of equal weight: each type as one, with its counts kept for the reader.
        mean = kinds[0]
        for kind in kinds[1:]:
            mean = mean + kind
        yield from _rows(mean, metrics, styles, level, probe=probe, bias_type=UNWEIGHTED,
                         counts=whole)  # fmt: skip


def _sums(values: Doubles, states: Doubles, draws: int, random: np.random.Generator) -> _Sums:
    d_MSN = values[:, 1:] - values[:, :1]
    both_MSN = ~np.isnan(d_MSN)
    before_MSN = np.where(both_MSN, values[:, :1], np.nan)
    after_MSN = np.where(both_MSN, values[:, 1:], np.nan)
    n = both_MSN.sum(axis=2).astype(np.float64)
    stacked = np.stack([d_MSN, after_MSN, before_MSN])
    drawn = drawn_means(stacked.reshape(-1, stacked.shape[-1]), draws, random)
    drawn_3MSB = drawn.reshape(*stacked.shape[:3], draws)
    known = ~np.isnan(states[:, 1:]) & ~np.isnan(states[:, :1])
    return _Sums(
        n=n,
        value=np.nansum(after_MSN, axis=2),
        original=np.nansum(before_MSN, axis=2),
        square=np.nansum(d_MSN**2, axis=2),
        up=(d_MSN > 0).sum(axis=2).astype(np.float64),
        down=(d_MSN < 0).sum(axis=2).astype(np.float64),
        flips=(known & (states[:, 1:] != states[:, :1])).sum(axis=2).astype(np.float64),
        drawn=np.nan_to_num(drawn_3MSB) * n[..., None],
    )


def _means(sums: _Sums) -> _Sums:
    """One bias type with the weight of one pair, or of none where it has no pair."""
    weight = np.maximum(sums.n, 1)
    value, original, square = (total / weight for total in (sums.value, sums.original, sums.square))
    there = (sums.n > 0).astype(np.float64)
    drawn = sums.drawn / weight[..., None]
    return _Sums(there, value, original, square, sums.up, sums.down, sums.flips, drawn)


def _rows(
    sums: _Sums,
    metrics: list[tuple[str, ...]],
    styles: list[str],
    level: float,
    counts: _Sums | None = None,
    **names: str,
) -> Iterator[dict[str, Any]]:
    weight = np.maximum(sums.n, 1)
    pairs = sums if counts is None else counts
    drawn_3MSB = sums.drawn / weight[..., None]
    n = np.broadcast_to(pairs.n, drawn_3MSB.shape[:3]).ravel()
    ends = percentiles(drawn_3MSB.reshape(n.size, -1), n, level)
    low, high = (100 * end.reshape(drawn_3MSB.shape[:3]) for end in ends)
    if counts is None:
        for place, total in ((1, sums.value), (2, sums.original)):
            for m, s in zip(*np.nonzero(sums.n), strict=True):
                if metrics[m][-1] == "mcnemar":
                    own = wilson(int(total[m, s]), int(sums.n[m, s]), level)
                    low[place, m, s], high[place, m, s] = (100 * end for end in own)
    before, after, square = sums.original / weight, sums.value / weight, sums.square / weight
    # Means over prompts are sixths: what is left of two equal ones is no effect.
    effect = np.round(after - before, 12)
    z, z_p = paired_tests.two_proportions(before, after, np.maximum(pairs.n, 1))
    exact, student = (
        paired_tests.mcnemar(sums.up, sums.down),
        paired_tests.paired_t(effect, square, sums.n),
    )
    unit = {
        "value": 100 * after, "original": 100 * before, "effect": 100 * effect,
        "low": low[0], "high": high[0], "value_low": low[1], "value_high": high[1],
        "original_low": low[2], "original_high": high[2],
        "pairs_needed": paired_tests.pairs_needed(effect, square, level=level),
        "resolvable": 100 * paired_tests.resolvable(square, np.maximum(pairs.n, 1), level=level),
    }  # fmt: skip
    for m, (model, score, test) in enumerate(metrics):
        binary = test == "mcnemar"
        for s, style in enumerate(styles):
            n_pairs = int(pairs.n[m, s])
            if not n_pairs:
                continue
            p = exact[m, s] if binary else student[m, s]
            yield {
                "model": model, "score": score, **names, "style": style, "test": test,
                "n": n_pairs,
                **{name: float(cells[m, s]) for name, cells in unit.items()},
                **{name: int(getattr(pairs, name)[m, s]) for name in ("up", "down")},
                "flips": int(pairs.flips[m, s]) if binary else None,
                "flip_share": pairs.flips[m, s] / n_pairs if binary else None,
                "z": float(z[m, s]) if binary else None,
                "z_p": float(z_p[m, s]) if binary else None,
                "p_value": float(p) if counts is None else None,
            }  # fmt: skip


def centred(effects: pl.DataFrame) -> pl.DataFrame:
    """Effects with `neutral`, the value of a metric that means no bias (50 or 0 points)."""
    return effects.with_columns(neutral=pl.col("test").replace_strict(NEUTRAL))
