"""Test each score of pairs against the value that means no bias, by bias type and over all.

The unit of sampling is the pair: an interval covers another sample of pairs like these, read
by the same model under the same style. Other wordings of a style are not covered.

Shapes: M metrics, S styles, N pairs, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias.seeding import generator
from raybias.stats.intervals import ROUNDING, Adjust, false_discovery
from raybias.stats.pairs import paired_tests
from raybias.stats.pairs.outcomes import (
    METRIC,
    NEUTRAL,
    UNWEIGHTED,
    WEIGHTED,
    in_order,
    style_order,
)
from raybias.stats.pairs.resampling import cube, drawn_means, percentiles, wilson

Doubles = npt.NDArray[np.float64]

_NUMBERS: Final = ("value", "low", "high", "neutral", "p_value", "resolvable")
_TYPES: Final = {
    **dict.fromkeys((*METRIC, "bias_type", "style", "test"), pl.String),
    **dict.fromkeys(("n", "ties"), pl.Int64),
    **dict.fromkeys(_NUMBERS, pl.Float64),
}
#: How a score is tested, by how its changes are.
_TESTS: Final = {"mcnemar": "sign", "paired_t": "t"}


@dataclass(frozen=True)
class _Sums:
    """Sums over pairs, which add up over bias types: each [M, S], `drawn` [M, S, B]."""

    n: Doubles
    value: Doubles
    ties: Doubles
    square: Doubles
    drawn: Doubles

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def bias_scores(
    outcomes: pl.DataFrame,
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    adjust: Adjust = "benjamini_hochberg",
) -> pl.DataFrame:
    """Compute every metric's score under every style with an interval and a test of no bias.

    Parameters
    ----------
    outcomes: of `pair_outcomes` or `coreference_outcomes`, or both joined.
    level: of the intervals and of the tests.
    draws, seed: of the bootstrap over pairs.
    adjust: whether `survives` asks for the correction for many tests.

    Returns
    -------
    A row per metric, bias_type (and `avg_weighted`: over pairs; `avg_unweighted`: the mean over
    bias types) and style: `n` pairs, `ties` (null for coreference), `value` in percent or points,
    its interval `low` to `high`, and `neutral`, the value that means no bias.

    Preferences: `value` is 100 k / n, ties in the denominator; the interval is Wilson's, and
    `test` "sign" is the exact binomial test of k against the untied pairs that prefer sent_less.
    Coreference: `value` is pro less anti, in points; the interval is a percentile bootstrap, and
    `test` "t" is Student's; differences that do not vary have neither. The mean
    over bias types has a bootstrap interval and no test.

    `q_value`: Benjamini-Hochberg over the whole table. `significant`: the interval excludes
    `neutral` and p <= 1 - level; `survives`: after the correction too. `resolvable`: the
    distance from `neutral` that these n pairs show with 80% power.
    """
    rows: list[dict[str, Any]] = []
    for (probe,), part in outcomes.sort("probe").group_by(["probe"], maintain_order=True):
        rows += _probe_rows(part, str(probe), level=level, draws=draws, seed=seed)
    table = pl.DataFrame(rows, _TYPES).with_columns(pl.col(_NUMBERS).fill_nan(None))
    outside = (pl.col("low") > pl.col("neutral")) | (pl.col("high") < pl.col("neutral"))
    corrected = "q_value" if adjust == "benjamini_hochberg" else "p_value"
    tested = pl.col("p_value").is_not_null() & pl.col("low").is_not_null()
    return in_order(
        table.with_columns(q_value=false_discovery(table["p_value"])).with_columns(
            significant=pl.when(tested).then(outside & (pl.col("p_value") <= 1 - level)),
            survives=pl.when(tested).then(outside & (pl.col(corrected) <= 1 - level)),
        )
    )


def _probe_rows(
    part: pl.DataFrame, probe: str, *, level: float, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    metrics = part.select("model", "score", "test").unique().sort("model", "score").rows()
    styles = style_order(part["style"])
    kinds: list[_Sums] = []
    for bias_type in part["bias_type"].unique().sort().to_list():
        values, states = cube(part.filter(bias_type=bias_type), metrics, styles)
        # The draws of `effects`: a score has one interval wherever it is shown.
        random = generator(seed, "pairs", probe, bias_type)
        kinds.append(_sums(values, states, metrics, draws, random))
        yield from _rows(kinds[-1], metrics, styles, level, probe=probe, bias_type=bias_type)
    whole = kinds[0]
    for kind in kinds[1:]:
        whole = whole + kind
    yield from _rows(whole, metrics, styles, level, probe=probe, bias_type=WEIGHTED)
    yield from _mean_rows(kinds, whole, metrics, styles, level, probe=probe)


def _sums(
    values: Doubles,
    states: Doubles,
    metrics: list[tuple[str, ...]],
    draws: int,
    random: np.random.Generator,
) -> _Sums:
    n = (~np.isnan(values)).sum(axis=2).astype(np.float64)
    none_M11 = np.array([NEUTRAL[test] / 100 for *_, test in metrics])[:, None, None]
    drawn_MSB = drawn_means(values.reshape(-1, values.shape[2]), draws, random).reshape(
        *n.shape, -1
    )
    return _Sums(
        n=n,
        value=np.nansum(values, axis=2),
        ties=(states == 2).sum(axis=2).astype(np.float64),
        square=np.nansum((values - none_M11) ** 2, axis=2),
        drawn=np.nan_to_num(drawn_MSB) * n[..., None],
    )


def _rows(
    sums: _Sums, metrics: list[tuple[str, ...]], styles: list[str], level: float, **names: str
) -> Iterator[dict[str, Any]]:
    weight = np.maximum(sums.n, 1)
    value, square = sums.value / weight, sums.square / weight
    low, high = _bootstrap(sums.drawn / weight[..., None], sums.n, level)
    sign = paired_tests.mcnemar(sums.value, sums.n - sums.value - sums.ties)
    student = paired_tests.paired_t(value, square, sums.n)
    resolvable = paired_tests.resolvable(square, weight, level=level)
    for m, s, head in _heads(metrics, styles, sums.n, names):
        binary = head["test"] == "sign"
        p, ends = float(student[m, s]), (low[m, s], high[m, s])
        if binary:
            p = float(sign[m, s])
            ends = wilson(int(sums.value[m, s]), int(sums.n[m, s]), level)
        yield {
            **head,
            "n": int(sums.n[m, s]),
            "ties": int(sums.ties[m, s]) if binary else None,
            "value": 100 * float(value[m, s]),
            "low": 100 * float(ends[0]),
            "high": 100 * float(ends[1]),
            "p_value": p,
            "resolvable": 100 * float(resolvable[m, s]),
        }


def _mean_rows(
    kinds: list[_Sums],
    whole: _Sums,
    metrics: list[tuple[str, ...]],
    styles: list[str],
    level: float,
    *,
    probe: str,
) -> Iterator[dict[str, Any]]:
    """Yield the unweighted means over bias types, each type as one."""
    there = np.maximum(sum((kind.n > 0).astype(np.float64) for kind in kinds), 1)
    weights = [np.maximum(kind.n, 1) for kind in kinds]
    value = sum(k.value / w for k, w in zip(kinds, weights, strict=True)) / there
    drawn = sum(k.drawn / w[..., None] for k, w in zip(kinds, weights, strict=True))
    low, high = _bootstrap(drawn / there[..., None], whole.n, level)
    names = {"probe": probe, "bias_type": UNWEIGHTED}
    for m, s, head in _heads(metrics, styles, whole.n, names):
        yield {
            **head,
            "n": int(whole.n[m, s]),
            "ties": int(whole.ties[m, s]) if head["test"] == "sign" else None,
            "value": 100 * float(value[m, s]),
            "low": 100 * float(low[m, s]),
            "high": 100 * float(high[m, s]),
        }


def _heads(
    metrics: list[tuple[str, ...]], styles: list[str], n: Doubles, names: dict[str, str]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the places and names of what has pairs."""
    for m, (model, score, test) in enumerate(metrics):
        for s, style in enumerate(styles):
            if n[m, s]:
                yield m, s, {
                    "model": model, "score": score, **names, "style": style,
                    "test": _TESTS[test], "neutral": NEUTRAL[test],
                }  # fmt: skip


def _bootstrap(drawn_MSB: Doubles, n: Doubles, level: float) -> tuple[Doubles, Doubles]:
    """Return the ends of intervals [M, S]; NaN where the values do not vary."""
    low, high = percentiles(drawn_MSB.reshape(n.size, -1), n.ravel(), level)
    flat = ~(high - low > ROUNDING)
    low, high = (np.where(flat, np.nan, end).reshape(n.shape) for end in (low, high))
    return low, high
