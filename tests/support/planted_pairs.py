"""A check of the statistics on pairs whose style effects are known.

Studies of the size of CrowS-Pairs are simulated: one original and one style per known
effect, each pair flipping with fixed chances. Intervals should hold the truth as often
as they say, and the correction should keep false alarms down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from benchmarks.printed_tables import CROWS_PAIRS
from raybias.measures.pair_means import WEIGHTED, drawn_means, mcnemar, percentiles
from raybias.seeding import generator

Doubles = npt.NDArray[np.float64]

_PREFERRED: Final = 0.6
_FLIPS: Final = 0.12
_LEVEL: Final = 0.95
_DRAWS: Final = 2_000


def simulate(
    pairs: int, effects: Sequence[float], studies: int, random: np.random.Generator
) -> Doubles:
    """Draw by how much styles change outcomes of 0 and 1 [R studies, E styles, N pairs].

    60% of pairs prefer sent_more and 12% flip under a style; effects are in points, of 12 at most.
    """
    shift = np.asarray(effects, dtype=np.float64)[:, None] / 100
    up, down = (_FLIPS + shift) / 2, (_FLIPS - shift) / 2
    original_RN = random.random((studies, pairs)) < _PREFERRED
    chance_REN = random.random((studies, len(effects), pairs))
    stays = chance_REN >= down / _PREFERRED
    rises = chance_REN < up / (1 - _PREFERRED)
    styled_REN = np.where(original_RN[:, None], stays, rises)
    return styled_REN.astype(np.float64) - original_RN[:, None]


def planted_check(
    effects: Sequence[float] = (0.0, 2.0, 8.0), *, studies: int, seed: int = 0
) -> pl.DataFrame:
    """How often intervals hold the planted effects, and how often tests see one.

    A row per effect and bias type, with `avg_weighted`. `coverage`: share of studies whose interval
    holds the effect. `survived`: share after Benjamini-Hochberg over the study's styles and types,
    if 0 is outside of the interval. `false_share`: mean share of false alarms among what survived.
    """
    random, n = generator(seed, "planted", studies), sum(CROWS_PAIRS.values())
    drawn_total = np.zeros((studies * len(effects), _DRAWS))
    moves_total = np.zeros((2, studies, len(effects)))
    rows = []

    def tested(moves_2RE: Doubles, means_XB: Doubles, pairs: int) -> None:
        """Add the estimates, ends of intervals and p values [R, E] of a type."""
        ends = percentiles(means_XB, pairs, _LEVEL)
        low, high = (end.reshape(moves_2RE.shape[1:]) for end in ends)
        rows.append(((moves_2RE[0] - moves_2RE[1]) / pairs, low, high, mcnemar(*moves_2RE)))

    for name, pairs in CROWS_PAIRS.items():
        d_REN = simulate(pairs, effects, studies, random)
        moves = np.stack([(d_REN > 0).sum(axis=2), (d_REN < 0).sum(axis=2)]).astype(np.float64)
        draw = generator(seed, "planted", "bootstrap", name)
        means_XB = drawn_means(d_REN.reshape(-1, pairs), _DRAWS, draw)
        tested(moves, means_XB, pairs)
        drawn_total += means_XB * pairs
        moves_total += moves
    tested(moves_total, drawn_total / n, n)
    estimate_TRE, low_TRE, high_TRE, p_TRE = (np.stack(parts) for parts in zip(*rows, strict=True))
    family_RF = p_TRE.transpose(1, 0, 2).reshape(studies, -1)
    q_RTE = stats.false_discovery_control(family_RF, axis=1).reshape(studies, -1, len(effects))
    excludes = (low_TRE > 0) | (high_TRE < 0)
    survived = excludes & (q_RTE.transpose(1, 0, 2) <= 1 - _LEVEL)
    truth_E = np.asarray(effects) / 100
    held = (low_TRE <= truth_E) & (truth_E <= high_TRE)
    false_R = (survived & (truth_E == 0)).sum(axis=(0, 2))
    share = float((false_R / np.maximum(survived.sum(axis=(0, 2)), 1)).mean())
    sizes = {**CROWS_PAIRS, WEIGHTED: n}
    return pl.DataFrame(
        {"effect": float(effect), "bias_type": name, "n": size, "false_share": share,
         "coverage": held[t, :, e].mean(), "survived": survived[t, :, e].mean(),
         "mean_estimate": 100 * estimate_TRE[t, :, e].mean()}
        for t, (name, size) in enumerate(sizes.items())
        for e, effect in enumerate(effects)
    )  # fmt: skip
