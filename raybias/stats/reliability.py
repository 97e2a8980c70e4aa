"""Estimate how far a ranking of groups, or of models, would come out again.

The generalizability coefficient is the share of the variance between what is ranked that is not
error: v / (v + error variance), where v is estimated without bias, by the variance of the estimates
less the error (Brennan 2001, *Generalizability Theory*, chapter 2). It is about the correlation
that two studies like this one would have with one another.

Shapes: G groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.stats.components import Doubles
from raybias.stats.over_models import ModelTables
from raybias.stats.scopes import GapTable, Scope, WordVariance

_TABLE: Final = (*schema.KEYS, "attribute", "rate")


def reliability(
    tables: Sequence[GapTable],
    words: Mapping[tuple[str, ...], WordVariance],
    together: Sequence[ModelTables],
) -> pl.DataFrame:
    """Estimate the reliability of each ranking under every scope that its design allows.

    Ranked are the groups of the mean by a classifier's gaps, and the models by a group's gap. For
    models, sentences are drawn alike for all, and words are not drawn.

    Parameters
    ----------
    words: of `word_variances`.
    together: of `model_tables`.

    Returns
    -------
    schema.RELIABILITY.
    """
    rows: list[dict[str, Any]] = []
    for table in tables:
        names: dict[str, Any] = {"ranking": "groups", "n_ranked": int(table.in_mean_G.sum())}
        names |= dict(zip(_TABLE, (*table.keys, table.rate), strict=True))
        for scope, found in _of_groups(table, words.get((*table.keys, table.rate))):
            rows.append({**names, "scope": scope, **found})
    for models in together:
        first = models.tables[0]
        names = {"ranking": "models", "n_ranked": len(models.tables)}
        names |= dict(zip(_TABLE, (*models.keys, first.rate), strict=True))
        for scope, found_G in _of_models(models):
            rows += [
                {**names, "group": group, "scope": scope, **found}
                for group, found in zip(first.groups, found_G, strict=True)
            ]
    types = pl.Schema(schema.RELIABILITY)
    table_of = pl.DataFrame(rows, schema=types).fill_nan(None)
    return table_of.sort("ranking", "model", "attribute", "rate", "group", maintain_order=True)


def _of_groups(
    table: GapTable, words: WordVariance | None
) -> Iterator[tuple[Scope, dict[str, float | None]]]:
    """Compare the variance between groups with the error of a group's gap, by scope."""
    inside_G = table.in_mean_G
    freedom = int(inside_G.sum()) - 1
    for scope, found in table.estimates(words).items() if freedom else ():
        # The gaps of the groups in the mean add to 0, so their errors have one degree less.
        error = float(found.variance[inside_G].sum()) / freedom
        between = float((found.mean[inside_G] ** 2).sum()) / freedom
        yield scope, _compared(between, error)


def _of_models(models: ModelTables) -> Iterator[tuple[Scope, list[dict[str, float | None]]]]:
    """Compare the variance between models with the error of one, for each gap [G], by scope.

    Models whose runs are not repeated are taken to vary over runs as the others do.
    """
    of_runs = models.run_squares
    if not of_runs:
        return
    crossed = models.crossed
    templates = crossed.levels["template"]
    between = crossed.squares["model",] / templates
    given = np.mean([runs / (n * t) for n, t, runs, _ in of_runs], axis=0)
    cells = np.mean([cells / (n * t) for n, t, _, cells in of_runs], axis=0)
    anew = np.maximum(given, given - cells + crossed.squares["model", "template"] / templates)
    errors: dict[Scope, Doubles] = {"runs": given, "sentences": anew}
    for scope, error in errors.items():
        pairs = zip(between.tolist(), error.tolist(), strict=True)
        yield scope, [_compared(*pair) for pair in pairs]


def _compared(observed: float, error: float) -> dict[str, float | None]:
    """Compute `reliability`, `spread` and `error` from the variance of estimates and its part."""
    true = max(0.0, observed - error)
    share = true / (true + error) if true + error > 0 else None
    return {"reliability": share, "spread": math.sqrt(true), "error": math.sqrt(error)}
