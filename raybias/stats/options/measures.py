"""Scores of answers to questions with options, with intervals over question templates."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.registry import Tally, option_scores
from raybias.stats.components import Doubles
from raybias.stats.conclusive import of_options
from raybias.stats.jackknife import crossed_intervals, unit_intervals, without_each

_KEYS: Final = ("model", "probe", "method", "category")
#: Stands for all prompts, where there are several.
ALL: Final = "all"
#: What is drawn anew.
TEMPLATES: Final = "templates"
PROMPTS: Final = "templates, prompts"


def option_measures(
    answers: pl.DataFrame, *, level: float = 0.95, letters: Collection[str] = ()
) -> pl.DataFrame:
    """Compute every registered score of every model, method, category, context and prompt.

    An interval covers other question templates like these, answered by the same model. Where there
    are several prompts, their average `all` has another that covers other prompts too. There is
    none where the model cannot do the task (`conclusive.of_options`).

    Parameters
    ----------
    answers: schema.OPTION_ANSWERS, in any order; those to items without a target do not count.
    letters: methods that compare the likelihoods of letters.

    Returns
    -------
    schema.OPTION_MEASURES.
    """
    rows: list[tuple[object, ...]] = []
    unable = of_options(answers, level=level, letters=letters)
    counts = _counts(answers.filter(pl.col("target").is_not_null()))
    for keys, part in counts.partition_by(_KEYS, as_dict=True).items():
        model, probe, method, category = map(str, keys)
        reason = unable.get((model, probe, method))
        for prompt, scope, context, score, *numbers in _of_prompts(part, level):
            if reason is not None:
                numbers[1:3], numbers[-1] = (None, None), reason
            rows.append((model, category, context, score, *numbers, probe, method, prompt, scope))
    table = pl.DataFrame(rows, pl.Schema(schema.OPTION_MEASURES), orient="row").fill_nan(None)
    return table.sort(_KEYS, maintain_order=True)


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
        "prompt",
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
    return flags.group_by(*_KEYS, "prompt", "template_id", "context").agg(pl.all().sum())


def _of_prompts(counts: pl.DataFrame, level: float) -> Iterator[tuple[object, ...]]:
    """Yield prompt, scope and what `_measured` does, of each prompt and of all together."""
    counts_UPCK, prompts = _laid_out(counts)
    for p, prompt in enumerate(prompts):
        for row in _measured(counts_UPCK[:, p : p + 1], TEMPLATES, level):
            yield prompt, TEMPLATES, *row
    if len(prompts) > 1:
        for scope in (TEMPLATES, PROMPTS):
            for row in _measured(counts_UPCK, scope, level):
                yield ALL, scope, *row


def _laid_out(counts: pl.DataFrame) -> tuple[Doubles, list[str]]:
    """Lay out the counts of one model and category: [templates, prompts, contexts, counts]."""
    names = [field.name for field in fields(Tally)]
    levels = {name: counts[name].unique().sort().to_list() for name in ("template_id", "prompt")}
    levels["context"] = list(schema.CONTEXTS)
    placed = np.zeros((*map(len, levels.values()), len(names)))
    at = [counts[name].cast(pl.Enum(each)).to_physical() for name, each in levels.items()]
    placed[tuple(place.to_numpy() for place in at)] = counts.select(names).to_numpy()
    return placed, levels["prompt"]


def _tallies(sums_CK: Doubles) -> list[Tally]:
    """Name the sums [..., C, K] of each context."""
    return [Tally(*np.moveaxis(sums_CK[..., c, :], -1, 0)) for c in range(len(schema.CONTEXTS))]


def _measured(counts_UPCK: Doubles, scope: str, level: float) -> Iterator[tuple[object, ...]]:
    """Yield context, score, value, low, high, n, units, unparsed and why there is no interval."""
    counts_UCK = counts_UPCK.sum(axis=1)
    facets = [counts_UCK]
    if scope == PROMPTS:
        cells = counts_UPCK.reshape(-1, *counts_UCK.shape[1:])
        facets += [counts_UPCK.sum(axis=0), cells]
    of_units = [_tallies(each) for each in facets]
    without = [_tallies(without_each(each)) for each in facets]
    found = _tallies(counts_UCK.sum(axis=0))
    for c, context in enumerate(schema.CONTEXTS):
        if not found[c].items:
            continue
        unparsed = int(found[c].items - found[c].answered)
        for score in option_scores.values():
            dropped = score.unparsed == "dropped"
            sizes = [each[c].answered if dropped else each[c].items for each in of_units]
            value_M = score.of(*found)[c].reshape(1)
            left_out = [score.of(*each)[c][None] for each in without]
            if scope == TEMPLATES:
                judged = unit_intervals(value_M, left_out[0], sizes[0], score.bounds, level)
            else:
                both = list(zip(left_out, sizes, strict=True))
                judged = crossed_intervals(value_M, both, score.bounds, level)
            (low,), (high,), reason = judged
            n, units = int(sizes[0].sum()), int(np.count_nonzero(sizes[0]))
            yield context, score.name, float(value_M[0]), low, high, n, units, unparsed, reason
