"""Scores of triples of sentences, with intervals over target terms."""

from __future__ import annotations

from itertools import product
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.registry import TermShares, ratio, triple_scores
from raybias.stats.components import Doubles
from raybias.stats.jackknife import unit_intervals, without_each

#: Stands for all domains, or all tasks, where there are several.
ALL: Final = "all"


def triple_measures(scores: pl.DataFrame, *, level: float = 0.95) -> pl.DataFrame:
    """Compute every registered score of every model, domain and task, and over all of them.

    An interval covers other target terms like these, read by the same model.

    Parameters
    ----------
    scores: schema.TRIPLE_SCORES, in any order.

    Returns
    -------
    schema.TRIPLE_MEASURES.
    """
    rows: list[tuple[object, ...]] = []
    for keys, part in _with_totals(scores).partition_by(
        "model", "probe", "domain", "task", as_dict=True
    ).items():  # fmt: skip
        model, probe, domain, task = map(str, keys)
        terms = _terms(part)
        counts_UK = terms.select(pl.exclude("term", "items")).to_numpy().astype(np.float64)
        found, without = _shares(counts_UK.sum(axis=0)), _shares(without_each(counts_UK))
        n = terms.height, int(terms["items"].sum())
        for score in triple_scores.values():
            value_M, without_MU = np.array(score.of(found)), np.array(score.of(without))
            low_M, high_M, reason = unit_intervals(
                value_M, without_MU, np.ones(terms.height), score.bounds, level
            )
            ends = value_M.min(), low_M.min(), np.minimum(high_M.min(), score.most)
            rows.append((model, domain, task, score.name, *ends, *n, reason, probe))
    table = pl.DataFrame(rows, pl.Schema(schema.TRIPLE_MEASURES), orient="row").fill_nan(None)
    last = [pl.col(name) == ALL for name in ("domain", "task")]
    order = ("model", "probe", last[0], "domain", last[1], "task")
    return table.sort(order, maintain_order=True)


def _with_totals(scores: pl.DataFrame) -> pl.DataFrame:
    """Add the same triples under the domain or task `all`, where a model has several."""
    over = ["model", "probe"]
    several = {name: pl.col(name).n_unique().over(over) > 1 for name in ("domain", "task")}
    pieces = []
    for chosen in product((False, True), repeat=2):
        names = [name for name, total in zip(several, chosen, strict=True) if total]
        piece = scores.filter(several[name] for name in names) if names else scores
        pieces.append(piece.with_columns(pl.lit(ALL).alias(name) for name in names))
    return pl.concat(pieces)


def _terms(triples: pl.DataFrame) -> pl.DataFrame:
    """Compute a row per target term: its shares, in the order of `TermShares`, and 1."""
    stereotype, anti, unrelated = map(pl.col, ("stereotype", "anti_stereotype", "unrelated"))
    return (
        triples.group_by("term")
        .agg(
            (stereotype > anti).mean().alias("over_anti"),
            (stereotype > unrelated).mean().alias("over_unrelated"),
            (anti > unrelated).mean().alias("anti_over_unrelated"),
            pl.lit(1).alias("one"),
            pl.len().alias("items"),
        )
        .sort("term")
    )


def _shares(sums_K: Doubles) -> TermShares:
    """Average over the terms of sums [..., K], the last of which counts them."""
    *shares, terms = np.moveaxis(sums_K, -1, 0)
    return TermShares(*(ratio(share, terms) for share in shares))
