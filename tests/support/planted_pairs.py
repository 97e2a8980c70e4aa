"""A check of the statistics on pairs whose style effects are known.

Studies of the size of CrowS-Pairs are simulated: one original and one style per known
effect, each pair flipping with fixed chances. Intervals should hold the truth as often
as they say, and the correction should keep false alarms down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from benchmarks.printed_tables import CROWS_PAIRS
from raybias.errors import ConfigError
from raybias.measures.pair_means import WEIGHTED, drawn_means, mcnemar, percentiles
from raybias.seeding import generator

Doubles = npt.NDArray[np.float64]

_PREFERRED: Final = 0.6
_FLIPS: Final = 0.12


@dataclass(frozen=True)
class Studies:
    """R simulated studies of E styles over N pairs: outcomes of 0 and 1."""

    original_RN: Doubles
    styled_REN: Doubles


def simulate(
    pairs: int, effects: Sequence[float], studies: int, random: np.random.Generator
) -> Studies:
    """Draw studies in which 60% of pairs prefer sent_more and 12% flip under a style.

    Parameters
    ----------
    effects: of the styles, in points.

    Raises
    ------
    ConfigError: an effect larger than the 12 points that flips can make.
    """
    shift = np.asarray(effects, dtype=np.float64)[:, None] / 100
    if (np.abs(shift) > _FLIPS).any():
        raise ConfigError(f"effects of more than {100 * _FLIPS:g} points cannot be planted")
    up, down = (_FLIPS + shift) / 2, (_FLIPS - shift) / 2
    original_RN = (random.random((studies, pairs)) < _PREFERRED).astype(np.float64)
    preferred_R1N = original_RN[:, None].astype(bool)
    chance_REN = random.random((studies, len(effects), pairs))
    stays = chance_REN >= down / _PREFERRED
    rises = chance_REN < up / (1 - _PREFERRED)
    return Studies(original_RN, np.where(preferred_R1N, stays, rises).astype(np.float64))


def planted_check(
    effects: Sequence[float] = (0.0, 2.0, 8.0),
    *,
    studies: int = 500,
    types: Mapping[str, int] = CROWS_PAIRS,
    level: float = 0.95,
    draws: int = 2_000,
    seed: int = 0,
) -> pl.DataFrame:
    """How often intervals hold the planted effects, and how often tests see one.

    Parameters
    ----------
    effects: of the styles of every study, in points, in every bias type alike.
    studies: simulated studies.
    types: pairs by bias type.
    draws: of the bootstrap.

    Returns
    -------
    A row per effect and bias type, with `avg_weighted`: effect, bias_type, n, `coverage`
    (share of studies whose interval holds it), `coverage_low` and `_high` (95% interval of
    that share, Clopper and Pearson), `mean_estimate`, `detected` (McNemar below 1 - level)
    and `survived` (after Benjamini-Hochberg over the study's family: all its styles and bias
    types, averages included, and excluded from 0 by the interval). Where the effect is 0,
    those two are false alarms. `false_share`, the same in all rows: the mean over studies of
    the share of false alarms among what survived, which the correction promises to keep
    below 1 - level.
    """
    n = sum(types.values())
    judged = _judged(effects, studies, types, level=level, draws=draws, seed=seed)
    estimate_TRE, low_TRE, high_TRE, p_TRE = judged
    family_RF = p_TRE.transpose(1, 0, 2).reshape(studies, -1)
    q_RTE = stats.false_discovery_control(family_RF, axis=1, method="bh").reshape(
        studies, -1, len(effects)
    )
    excludes = (low_TRE > 0) | (high_TRE < 0)
    survived = excludes & (q_RTE.transpose(1, 0, 2) <= 1 - level)
    truth_E = np.asarray(effects) / 100
    false_R = (survived & (truth_E == 0)).sum(axis=(0, 2))
    false_share = float((false_R / np.maximum(survived.sum(axis=(0, 2)), 1)).mean())
    return _table(
        [*types, WEIGHTED], [*types.values(), n], effects, estimate_TRE,
        held=(low_TRE <= truth_E) & (truth_E <= high_TRE),
        detected=p_TRE <= 1 - level, survived=survived,
    ).with_columns(false_share=pl.lit(false_share))  # fmt: skip


def _judged(
    effects: Sequence[float], studies: int, types: Mapping[str, int], *,
    level: float, draws: int, seed: int,
) -> tuple[Doubles, Doubles, Doubles, Doubles]:  # fmt: skip
    """Estimates, ends of intervals and p values [T + 1, R, E], the last row over all pairs."""
    random = generator(seed, "planted", studies)
    shape = (studies, len(effects))
    drawn_total = np.zeros((studies * len(effects), draws))
    moves_total = np.zeros((2, *shape))
    rows = []
    for name, pairs in types.items():
        drawn = simulate(pairs, effects, studies, random)
        d_REN = drawn.styled_REN - drawn.original_RN[:, None]
        moves = np.stack([(d_REN > 0).sum(axis=2), (d_REN < 0).sum(axis=2)]).astype(np.float64)
        draw = generator(seed, "planted", "bootstrap", name)
        means_XB = drawn_means(d_REN.reshape(-1, pairs), draws, draw)
        rows.append(_tested(moves, means_XB, pairs, level))
        drawn_total += means_XB * pairs
        moves_total += moves
    n = sum(types.values())
    rows.append(_tested(moves_total, drawn_total / n, n, level))
    estimate, low, high, p = (np.stack(parts) for parts in zip(*rows, strict=True))
    return estimate, low, high, p


def _tested(
    moves_2RE: Doubles, means_XB: Doubles, n: int, level: float
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    low, high = (end.reshape(moves_2RE.shape[1:]) for end in percentiles(means_XB, n, level))
    return (moves_2RE[0] - moves_2RE[1]) / n, low, high, mcnemar(*moves_2RE)


def _table(
    names: Sequence[str], sizes: Sequence[int], effects: Sequence[float], estimate_TRE: Doubles,
    **seen: npt.NDArray[np.bool_],
) -> pl.DataFrame:  # fmt: skip
    rows = []
    for t, name in enumerate(names):
        for e, effect in enumerate(effects):
            held = seen["held"][t, :, e]
            sure = stats.binomtest(int(held.sum()), held.size).proportion_ci(0.95)
            rows.append({
                "effect": float(effect), "bias_type": name, "n": sizes[t],
                "coverage": float(held.mean()), "coverage_low": float(sure.low),
                "coverage_high": float(sure.high),
                "mean_estimate": 100 * float(estimate_TRE[t, :, e].mean()),
                "detected": float(seen["detected"][t, :, e].mean()),
                "survived": float(seen["survived"][t, :, e].mean()),
            })  # fmt: skip
    return pl.DataFrame(rows)
