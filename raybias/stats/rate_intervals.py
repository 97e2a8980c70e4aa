"""Intervals of groups' rates, which are shares: Wilson's, of as many outcomes as the rate is worth.

Student's interval of a rate of .98 reaches beyond 1, and a rate of 0 has none. Wilson's interval
has neither fault. Its `n` is the number of independent outcomes that would vary as much as the rate
does between seeds, sentences and words (Dean and Pagano 2015); of few events it is no more than
there are sentences.

Shapes: G groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from raybias.stats.components import ROUNDING, Doubles, MeanEstimate
from raybias.stats.few_events import Events
from raybias.stats.scopes import PLACE, GapTable, Scope, by_group
from raybias.stats.share_intervals import wilson
from raybias.stats.word_variance import WordVariance


def share_ends(
    tables: Iterable[GapTable], words: Mapping[tuple[str, ...], WordVariance], level: float
) -> pl.DataFrame:
    """Compute `low` and `high` of rates under every scope: with scopes.PLACE and `scope`."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        if table.events is None:
            continue
        for scope, found in replace(table, events=None).estimates(words.get(table.place)).items():
            low, high = _wilson(found, table.events, scope, level)
            names = {**table.names, "scope": scope}
            rows += by_group(names, table.groups, {"low": low, "high": high})
    texts = dict.fromkeys((*PLACE, "scope"), pl.String)
    return pl.DataFrame(rows, {**texts, "low": pl.Float64, "high": pl.Float64}).fill_nan(None)


def _wilson(
    found: MeanEstimate, events: Events, scope: Scope, level: float
) -> tuple[Doubles, Doubles]:
    """Compute the ends [G] of rates; NaN of a rate that does not vary under `runs`."""
    rate_G = found.mean.clip(0.0, 1.0)
    # A rate of 0 or 1 is worth as many outcomes as it has units, whatever words would vary.
    vary_G = (found.variance > ROUNDING**2) & (rate_G > 0) & (rate_G < 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        worth_G = np.where(vary_G, rate_G * (1 - rate_G) / found.variance, np.nan)
    if scope != "runs":
        limited_G = np.fmin(worth_G, events.units_G)
        worth_G = np.where(events.few_G | ~vary_G, limited_G, worth_G)
    quantile_G = np.where(
        vary_G, stdtrit(found.freedom, (1 + level) / 2), stdtrit(np.inf, (1 + level) / 2)
    )
    return wilson(rate_G, worth_G, quantile_G)
