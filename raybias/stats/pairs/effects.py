"""Style as an intervention: a pair's content is held fixed, so effects are paired differences.

The effect of a style is the mean over pairs of the outcome under it less the outcome
under `original`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from raybias.stats.intervals import Adjust, verdicts
from raybias.stats.pairs import paired_tests
from raybias.stats.pairs.means import lay_out, means
from raybias.stats.pairs.outcomes import METRIC, NEUTRAL, ORIGINAL, UNWEIGHTED, in_order
from raybias.stats.pairs.scores import CLUSTERED

_ORDER: Final = (*METRIC, "bias_type", "style")
_NUMBERS: Final = (
    "value", "original", "effect", "low", "high", "value_low", "value_high", "original_low",
    "original_high", "neutral", "flip_share", "z", "z_p", "p_value", "pairs_needed", "resolvable",
)  # fmt: skip
_COUNTS: Final = ("n", "clusters", "flips", "up", "down")


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
    Wilson's, as in `bias_scores`); `neutral`: the value that means no bias. The pairs are in
    `clusters`, null where pairs are drawn alone. `flips`: pairs whose
    preference is another (a tie is one of its own); `up` and `down`: pairs whose outcome
    rises and falls. `z` and `z_p`: the paper's two-proportion test, `paper` whether
    |z| > 1.96. `p_value`: exact McNemar test for preferences, Student's paired test for
    coreference, cluster-robust t where pairs come in clusters; none for the mean of types.
    `q_value`: Benjamini-Hochberg over the whole table. `survives`: the interval excludes 0
    and, where adjusted, q <= 1 - level. `pairs_needed`: to resolve the effect
    seen with 80% power; `resolvable`: the effect that these n pairs resolve so.
    """
    rows: list[dict[str, Any]] = []
    for _, part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        if part["style"].n_unique() > 1:
            rows += _probe_rows(part, level=level, draws=draws, seed=seed)
    texts = dict.fromkeys((*_ORDER, "test"), pl.String)
    counts = dict.fromkeys(_COUNTS, pl.Int64)
    table = pl.DataFrame(rows, {**texts, **counts, **dict.fromkeys(_NUMBERS, pl.Float64)})
    judged = table.with_columns(pl.col(_NUMBERS).fill_nan(None)).pipe(
        verdicts, level=level, adjust=adjust
    )
    return in_order(judged.with_columns(paper=pl.col("z").abs() > 1.96))


def _probe_rows(
    part: pl.DataFrame, *, level: float, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    laid = lay_out(part)
    base = laid.styles.index(ORIGINAL)
    others = [place for place in range(len(laid.styles)) if place != base]
    after, before = laid.values_MSN[:, others], laid.values_MSN[:, [base]]
    d = after - before
    both = ~np.isnan(d)
    stacked = np.stack([d, *(np.where(both, side, np.nan) for side in (after, before))])
    binary = laid.binary_M11 & np.array([False, True, True])[:, None, None, None]
    found = means(stacked, laid, binary, level=level, draws=draws, seed=seed)
    n = np.maximum(found.n[:, 0], 1)
    square, alike = found.square[:, 0], found.design_effect[:, 0]
    # Means over prompts are sixths: what is left of two equal ones is no effect.
    effect = np.round(found.mean[:, 1] - found.mean[:, 2], 12)
    flips = laid.sums(np.abs(laid.states_MSN[:, others] - laid.states_MSN[:, [base]]) > 0)
    up, down = laid.sums(d > 0), laid.sums(d < 0)
    z, z_p = paired_tests.two_proportions(found.mean[:, 2], found.mean[:, 1], n)
    if laid.cluster_N is None:
        exact, student = paired_tests.mcnemar(up, down), paired_tests.paired_t(effect, square, n)
        p_value = np.where(laid.binary_M11[..., 0], exact, student)
    else:
        p_value = laid.p_values(d)
    numbers = {
        "value": 100 * found.mean[:, 1], "original": 100 * found.mean[:, 2], "effect": 100 * effect,
        "pairs_needed": np.ceil(alike * paired_tests.pairs_needed(effect, square, level=level)),
        "resolvable": 100 * paired_tests.resolvable(square * alike, n, level=level),
        **{f"{name}{end}": 100 * getattr(found, end)[:, place]
           for place, name in enumerate(("", "value_", "original_")) for end in ("low", "high")},
    }  # fmt: skip
    for k, m, s in zip(*np.nonzero(found.n[:, 0]), strict=True):
        model, score, test = laid.metrics[m]
        tested = {"p_value": float(p_value[k, m, s])} if laid.rows[k] != UNWEIGHTED else {}
        if test == "mcnemar":
            tested |= {
                "z": float(z[k, m, s]),
                "z_p": float(z_p[k, m, s]),
                "flips": int(flips[k, m, s]),
                "flip_share": flips[k, m, s] / n[k, m, s],
            }
        yield {
            "model": model, "score": score, "probe": laid.probe, "bias_type": laid.rows[k],
            "style": laid.styles[others[s]], "neutral": NEUTRAL[test], "n": int(n[k, m, s]),
            "test": test if laid.cluster_N is None else CLUSTERED,
            "clusters": None if laid.cluster_N is None else int(found.clusters[k, 0, m, s]),
            "up": int(up[k, m, s]), "down": int(down[k, m, s]), **tested,
            **{name: float(cells[k, m, s]) for name, cells in numbers.items()},
        }  # fmt: skip
