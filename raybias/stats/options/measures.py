"""Scores of answers to questions with options, with intervals over question templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import polars as pl

from raybias import schema
from raybias.registry import Tally, option_scores
from raybias.stats.components import Doubles
from raybias.stats.jackknife import unit_intervals, without_each

_KEYS = ("model", "probe", "category")


def option_measures(answers: pl.DataFrame, *, level: float = 0.95) -> pl.DataFrame:
    """Compute every registered score of every model, category and context.

    An interval covers other question templates like these, answered by the same model.

    Parameters
    ----------
    answers: schema.OPTION_ANSWERS, in any order; those to items without a target do not count.

    Returns
    -------
    schema.OPTION_MEASURES.
    """
    rows: list[tuple[object, ...]] = []
    counts = _counts(answers.filter(pl.col("target").is_not_null()))
    for keys, part in counts.partition_by(_KEYS, as_dict=True).items():
        model, probe, category = map(str, keys)
        for context, score, *numbers in _measured(_by_template(part), level):
            rows.append((model, category, context, score, *numbers, probe))
    table = pl.DataFrame(rows, pl.Schema(schema.OPTION_MEASURES), orient="row").fill_nan(None)
    return table.sort("model", "probe", "category", maintain_order=True)


def _counts(answers: pl.DataFrame) -> pl.DataFrame:
    """Count a `Tally` for each of the keys, template and context."""

    def follows(option: str) -> pl.Expr:
        names_target = pl.col(option) == pl.col("target")
        return names_target == (pl.col("polarity") == "neg")

    def known(option: str) -> pl.Expr:
        return pl.col(option) != pl.col("unknown")

    answered, right = pl.col("pred").is_not_null(), pl.col("pred") == pl.col("label")
    gold_follows = answered & known("label") & follows("label")
    gold_counters = answered & known("label") & ~follows("label")
    flags = answers.select(
        *_KEYS,
        "template_id",
        "context",
        items=pl.lit(True),
        answered=answered,
        right=right,
        following=known("pred") & follows("pred"),
        countering=known("pred") & ~follows("pred"),
        gold_following=gold_follows,
        gold_countering=gold_counters,
        right_following=right & gold_follows,
        right_countering=right & gold_counters,
    )
    return flags.group_by(*_KEYS, "template_id", "context").agg(pl.all().sum())


def _by_template(counts: pl.DataFrame) -> Doubles:
    """Lay out the counts of one model and category: [templates by name, contexts, counts]."""
    names = [field.name for field in fields(Tally)]
    templates = counts["template_id"].unique().sort()
    placed = np.zeros((len(templates), len(schema.CONTEXTS), len(names)))
    units = counts["template_id"].cast(pl.Enum(templates)).to_physical().to_numpy()
    contexts = counts["context"].cast(pl.Enum(schema.CONTEXTS)).to_physical().to_numpy()
    placed[units, contexts] = counts.select(names).to_numpy()
    return placed


def _tallies(sums_CK: Doubles) -> list[Tally]:
    """Name the sums [..., C, K] of each context."""
    return [Tally(*np.moveaxis(sums_CK[..., c, :], -1, 0)) for c in range(len(schema.CONTEXTS))]


def _measured(counts_UCK: Doubles, level: float) -> Iterator[tuple[object, ...]]:
    """Yield context, score, value, low, high, n, units, unparsed and why there is no interval."""
    of_units, found = _tallies(counts_UCK), _tallies(counts_UCK.sum(axis=0))
    without = _tallies(without_each(counts_UCK))
    for c, context in enumerate(schema.CONTEXTS):
        if not found[c].items:
            continue
        unparsed = int(found[c].items - found[c].answered)
        for score in option_scores.values():
            sizes_U = of_units[c].answered if score.unparsed == "dropped" else of_units[c].items
            value, without_U = float(score.of(*found)[c]), score.of(*without)[c]
            (low,), (high,), reason = unit_intervals(
                np.array([value]), without_U[None], sizes_U, score.bounds, level
            )
            n, units = int(sizes_U.sum()), int(np.count_nonzero(sizes_U))
            yield context, score.name, value, low, high, n, units, unparsed, reason
