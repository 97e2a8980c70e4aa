"""How preferences and effects of styles go with the size of a model, over the models of a study.

A model is one observation. Its interval speaks of other models like these; with the few
models that a study has it is wide, and fewer than four have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.seeding import generator
from raybias.stats.intervals import ROUNDING, false_discovery
from raybias.stats.pairs.outcomes import in_order

Doubles = npt.NDArray[np.float64]

#: Fewer models than this have no trend worth the name.
FEWEST_MODELS: Final = 4

_SIZE: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z])", re.IGNORECASE)
_UNITS: Final = {"M": 1e6, "B": 1e9}
_EXACT_MODELS: Final = 8
_BY: Final = ("score", "probe", "bias_type", "style")
_NUMBERS: Final = ("smallest", "largest", "slope", "low", "high", "spearman", "p_value")


def sizes_in_names(models: pl.Series) -> dict[str, float]:
    """Parameters of the models whose names tell them, as in OPT-2.7B or RoBERTa-355M."""
    found = {}
    for model in models.unique().sort():
        known = _SIZE.findall(model)
        if known:
            number, unit = known[-1]
            found[str(model)] = float(number) * _UNITS[unit.upper()]
    return found


def model_size(
    scores: pl.DataFrame, sizes: Mapping[str, float], *, level: float = 0.95
) -> pl.DataFrame:
    """Trend over models of a score, and of a style's effect, with the number of parameters.

    Parameters
    ----------
    scores: score, probe, bias_type, style, model, value and effect (null for `original`).
    sizes: parameters by model; models without are left out.
    level: of the intervals.

    Returns
    -------
    score, probe, bias_type, style, quantity ("value" under the style, "effect" of it, or its
    size "absolute_effect"), n_models, their `smallest` and `largest` number of parameters,
    `slope` (points for each tenfold of parameters, by least squares) with its interval (`low`
    and `high`, Student's t with n - 2 degrees of freedom), `spearman` with its two-sided
    permutation p_value (all orders up to eight models, else 9,999 seeded ones) and q_value
    (Benjamini-Hochberg over the table). Fewer than four models, or equal values, have no row.
    """
    sized = scores.filter(pl.col("model").is_in(list(sizes))).with_columns(
        size=pl.col("model").replace_strict(dict(sizes), return_dtype=pl.Float64),
        absolute_effect=pl.col("effect").abs(),
    )
    rows = []
    orders: dict[int, npt.NDArray[np.int64]] = {}
    for names, part in sized.sort(*_BY, "model").group_by(_BY, maintain_order=True):
        for quantity in ("value", "effect", "absolute_effect"):
            known = part.select("size", quantity).drop_nulls()
            if known.height < FEWEST_MODELS or 1 in known.select(pl.all().n_unique()).row(0):
                continue
            size, values = known["size"].to_numpy(), known[quantity].round(9).to_numpy()
            n = known.height
            if n not in orders:
                orders[n] = _orders(n)
            ends = (float(size.min()), float(size.max()))
            found = (*_slope(size, values, level), *_rank_correlation(size, values, orders[n]))
            rows.append((*names, quantity, n, *ends, *found))
    texts = dict.fromkeys((*_BY, "quantity"), pl.String)
    types = {**texts, "n_models": pl.Int64, **dict.fromkeys(_NUMBERS, pl.Float64)}
    table = pl.DataFrame(rows, types, orient="row")
    return in_order(table.with_columns(q_value=false_discovery(table["p_value"])))


def _slope(size: Doubles, values: Doubles, level: float) -> tuple[float, float, float]:
    fit = stats.linregress(np.log10(size), values)
    reach = float(stats.t.ppf((1 + level) / 2, len(size) - 2) * fit.stderr)
    slope = float(fit.slope)
    return slope, slope - reach, slope + reach


def _rank_correlation(
    size: Doubles, values: Doubles, orders: npt.NDArray[np.int64]
) -> tuple[float, float]:
    x, y = (stats.rankdata(each) for each in (size, values))
    x, y = ((ranks - ranks.mean()) / np.linalg.norm(ranks - ranks.mean()) for ranks in (x, y))
    found = float(x @ y)
    as_far = np.abs(x[orders] @ y) >= abs(found) - ROUNDING
    return found, float(as_far.mean())


def _orders(n: int) -> npt.NDArray[np.int64]:
    """All orders of n models, the given one first; of many models, that and 9,999 drawn ones."""
    if n <= _EXACT_MODELS:
        return np.array(list(permutations(range(n))))
    given = np.arange(n)
    drawn = generator("model_size", n).permuted(np.tile(given, (9_999, 1)), axis=1)
    return np.concatenate([given[None], drawn])
