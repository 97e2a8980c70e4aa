"""Trends of an estimate with the number of parameters of the models that it is of.

Shapes: R models, D orders of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.schema import ALL
from raybias.seeding import generator
from raybias.stats.components import ROUNDING, Doubles
from raybias.stats.intervals import false_discovery, from_rows
from raybias.stats.over_models import ModelTables

#: Fewest models that have a trend.
FEWEST: Final = 4
_SIZE: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z])", re.IGNORECASE)
_UNITS: Final = {"M": 1e6, "B": 1e9}
#: Most models of which all orders are tried.
_EXACT_MODELS: Final = 8
#: End the names of a gap's trends.
SLOPE: Final = "_gap_slope"
RANK_CORRELATION: Final = "_gap_rank_correlation"


def sizes_in_names(models: pl.Series) -> dict[str, float]:
    """Return the parameters of models whose names tell them, as in OPT-2.7B or RoBERTa-355M."""
    matches = {str(model): _SIZE.findall(model) for model in models.unique().sort()}
    ends = {model: sizes[-1] for model, sizes in matches.items() if sizes}
    return {model: float(number) * _UNITS[unit.upper()] for model, (number, unit) in ends.items()}


def family_of(model: str) -> str:
    """Return the name before a model's size, such as opt of opt-1.3b; empty without a size."""
    sizes = [*_SIZE.finditer(model)]
    return model[: sizes[-1].start()].strip("-_. ").lower() if sizes else ""


def trend(sizes: Doubles, values: Doubles, level: float) -> dict[str, float] | None:
    """Fit a line of values [R] on the logarithm of sizes [R], and correlate their ranks.

    Returns `slope` with `low` and `high` (Student's interval of a least-squares slope, for each
    tenfold of parameters) and Spearman's `rank_correlation` with `p`, two-sided, over all orders of
    up to eight models, else over 9,999 drawn ones. None for fewer than four models, or if all sizes
    or all values are equal.
    """
    values = values.round(9)
    if len(values) < FEWEST or np.ptp(values) == 0 or np.ptp(sizes) == 0:
        return None
    fit = stats.linregress(np.log10(sizes), values)
    reach = stats.t.ppf((1 + level) / 2, len(sizes) - 2) * fit.stderr
    ranks = [stats.rankdata(each) for each in (sizes, values)]
    x, y = ((rank - rank.mean()) / np.linalg.norm(rank - rank.mean()) for rank in ranks)
    correlation = float(x @ y)
    as_far = np.abs(x[_orders(len(sizes))] @ y) >= abs(correlation) - ROUNDING
    return {
        "slope": float(fit.slope),
        "low": float(fit.slope - reach),
        "high": float(fit.slope + reach),
        "rank_correlation": correlation,
        "p": float(as_far.mean()),
    }


def trend_rows(
    columns: Mapping[str, Any],
    fit: Mapping[str, float],
    slope: str = "slope",
    rank_correlation: str = "rank_correlation",
) -> list[dict[str, Any]]:
    """Return the two rows of a `trend`, under these scores; `columns` are those of both."""
    ends = {"value": fit["slope"], "low": fit["low"], "high": fit["high"]}
    correlation = {"value": fit["rank_correlation"], "p": fit["p"]}
    return [
        {**columns, "score": slope, **ends},
        {**columns, "score": rank_correlation, **correlation},
    ]


@cache
def _orders(n: int) -> npt.NDArray[np.int64]:
    """List the orders [D, R] of n models, the given one first; of many, that and 9,999 drawn."""
    if n <= _EXACT_MODELS:
        return np.array(list(permutations(range(n))))
    first = np.arange(n)
    random_orders = generator("model_size", n).permuted(np.tile(first, (9_999, 1)), axis=1)
    return np.concatenate([first[None], random_orders])


def gap_trends(
    together: Sequence[ModelTables], sizes: Mapping[str, float], *, level: float = 0.95
) -> pl.DataFrame:
    """Estimate how each group's gap changes with the size of the models.

    together: gaps of several models that read the same sentences.
    sizes: numbers of parameters by model; those in the models' names count unless it has another.

    Gives rows of schema.ESTIMATES for the model `all`: the scores `NAME_gap_slope`, the change of
    the gap for each tenfold of parameters with its interval over models, and
    `NAME_gap_rank_correlation` with p, and q over all of them. `condition` names a family, such as
    opt, of which alone they are; it is empty for all models.
    """
    rows: list[dict[str, Any]] = []
    for models in together:
        names = [str(table.keys[0]) for table in models.tables]
        size_by_model = {**sizes_in_names(pl.Series(names, dtype=pl.String)), **sizes}
        gaps_GM = models.means_GMT.mean(axis=2)
        for family, indices in _families(names, size_by_model):
            size_R = np.array([size_by_model[names[index]] for index in indices])
            for group, gaps_M in zip(models.tables[0].groups, gaps_GM, strict=True):
                fit = trend(size_R, gaps_M[indices], level)
                if fit is not None:
                    count = len(indices)
                    columns = {**models.names, "group": group, "condition": family, "n": count}
                    columns["units"] = count
                    score = models.tables[0].score
                    rows += trend_rows(
                        columns, fit, f"{score}{SLOPE}", f"{score}{RANK_CORRELATION}"
                    )
    table = from_rows(rows)
    return table.with_columns(
        q=false_discovery(table["p"]),
        model=pl.lit(ALL),
        statistic=pl.lit("score"),
        scope=pl.lit("models"),
    )


def _families(
    names: Sequence[str], size_by_model: Mapping[str, float]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the indices of all models of known size, and of each family with enough of them."""
    sized = [index for index, name in enumerate(names) if name in size_by_model]
    yield "", sized
    families = {family for index in sized if (family := family_of(names[index]))}
    for family in sorted(families):
        members = [index for index in sized if family_of(names[index]) == family]
        if FEWEST <= len(members) < len(sized):
            yield family, members
