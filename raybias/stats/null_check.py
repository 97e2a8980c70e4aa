"""Check a rule on meaningless group labels: how often does it call gaps of nothing significant?

Of the scopes that draw seeds, and sentences too: in every template the groups' parts
(`count_arrays.linearised`) change places at random, alike in all runs and classifiers, so that no
group effect is left while templates, runs and their noise stay. Of `wording`: words are dealt, with
all their sentences, to groups at random, and how much words vary is estimated anew from each deal.
That says nothing of a rule where a group's words are not known, or each group has one; nor does it
show if words of the groups that have one vary more than other groups' words do, which no data tell
from an effect of the group.

A rule at level .95 should then flag 5% of gaps, and find a survivor of its correction in at most 5%
of studies. Groups outside the mean stay out.

Shapes: S shuffles or deals, G groups, R runs, T templates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias.config import Statistics
from raybias.schema import ALL
from raybias.seeding import generator
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate
from raybias.stats.intervals import from_rows
from raybias.stats.scopes import SCOPES, GapTable, Scope
from raybias.stats.word_deals import WordCounts, steps, word_counts

#: Shuffles; the share of studies with a survivor is then known to 2 in 100.
SHUFFLES: Final = 200


def null_check(tables: Sequence[GapTable], words: pl.DataFrame, rules: Statistics) -> pl.DataFrame:
    """Judge studies whose group labels mean nothing, under each scope that it can be known of.

    `words` are schema.WORD_CELLS. Gives columns of schema.ESTIMATES for each scope: the scores
    `meaningless_flagged`, the share of gaps that are called significant, and
    `meaningless_with_survivor`, the share of studies in which one survives the correction; of how
    many gaps (n) and shuffles (units). Each table is a family of the correction, as in `verdicts`.
    """
    p_values: dict[str, list[Doubles]] = defaultdict(list)
    # What is drawn in place of the other intervals draws no words.
    counts = word_counts(words, tables) if rules.interval != "bootstrap" else {}
    for table in tables:
        parts = [_p_values(each.estimates(None), each, rules) for each in _shuffled(table)]
        for scope in parts[0] if parts else ():
            p_values[scope].append(np.concatenate([each[scope] for each in parts]))
        known = counts.get(table.place)
        if known is not None:
            p_values["wording"].append(np.concatenate([*_dealt(table, known, rules)]))
    rows: list[dict[str, Any]] = []
    expected = 1 - rules.level
    for rule in (scope for scope in SCOPES if scope in p_values):
        families = [np.nan_to_num(p_SG, nan=1.0) for p_SG in p_values[rule]]
        p_SN = np.concatenate(families, axis=1)
        if rules.adjust != "none":
            families = [stats.false_discovery_control(p_SG, axis=1) for p_SG in families]
        survivor_S = np.any([(q_SG <= expected).any(axis=1) for q_SG in families], axis=0)
        rows += [
            {"model": ALL, "group": ALL, "score": f"meaningless_{name}", "statistic": "rate",
             "scope": rule, "value": float(found.mean()), "n": p_SN.shape[1], "units": SHUFFLES,
             "reason": f"{round(expected, 3)} expected, by {rules.interval}"}
            for name, found in (("flagged", p_SN < expected), ("with_survivor", survivor_S))
        ]  # fmt: skip
    return from_rows(rows)


def _shuffled(table: GapTable) -> Iterator[GapTable]:
    """Yield some shuffles [S, G, R, T] at a time of the groups in the mean; none of a lone one."""
    inside = _of_mean(table)
    n_groups, _, n_templates = inside.values_GRT.shape
    if n_groups < 2 or n_templates < 2:
        return
    random = _random(table, "null check")
    for draws in steps(SHUFFLES, inside.values_GRT.size):
        order_STG = random.random((draws, n_templates, n_groups)).argsort(axis=2)
        order_SG1T = order_STG.swapaxes(1, 2)[:, :, None]
        shuffled = np.take_along_axis(inside.values_GRT[None], order_SG1T, axis=1)
        yield replace(inside, values_GRT=shuffled)


def _dealt(table: GapTable, words: WordCounts, rules: Statistics) -> Iterator[Doubles]:
    """Yield p [S, G] under `wording` of some deals of words at a time to the groups in the mean.

    A group keeps what its runs vary around their mean, which words do not know.
    """
    inside = _of_mean(table)
    around_GRT = inside.values_GRT - inside.values_GRT.mean(axis=1, keepdims=True)
    random = _random(table, "null check of words")
    for draws in steps(SHUFFLES, inside.values_GRT.size):
        dealt_SGW = words.deal(random, draws)
        rates_SGT = words.rates(dealt_SGW)
        gaps_SGT = rates_SGT - rates_SGT.mean(axis=1, keepdims=True)
        gaps_SGT[np.abs(gaps_SGT) < ROUNDING] = 0.0
        drawn = replace(inside, values_GRT=gaps_SGT[:, :, None] + around_GRT)
        found: dict[Scope, MeanEstimate] = drawn.estimates(None)
        found["wording"] = words.added_to(found["sentences"], dealt_SGW)
        yield _p_values(found, drawn, rules)["wording"]


def _of_mean(table: GapTable) -> GapTable:
    """Leave out the groups that are not in the mean."""
    inside_G = table.in_mean_G
    groups = tuple(table.groups[g] for g in np.flatnonzero(inside_G))
    apart = table.apart and MeanEstimate(
        *(each[inside_G] for each in (table.apart.mean, table.apart.variance, table.apart.freedom))
    )
    values_GRT = table.values_GRT[inside_G]
    return replace(
        table,
        groups=groups,
        in_mean_G=inside_G[inside_G],
        values_GRT=values_GRT,
        apart=apart,
        events=table.events and table.events.exchanged(inside_G),
        items_G=None,
    )


def _random(table: GapTable, name: str) -> np.random.Generator:
    """Return the random state of a probe and attribute, the same for every classifier."""
    return generator(0, name, table.probe, table.keys[-1])


def _p_values(
    found: dict[Scope, MeanEstimate], table: GapTable, rules: Statistics
) -> dict[Scope, Doubles]:
    """Compute p [S, G] of meaningless gaps under every scope, by the rule of an interval."""
    for scope, estimate in found.items():
        if rules.interval == "bootstrap":
            squares = table.squares.squares
            drawn = [squares["run",]] if scope == "runs" else [*squares.values()]
            cells = np.prod([*table.squares.levels.values()])
            found[scope] = replace(estimate, variance=np.sum(drawn, axis=0) / cells)
        elif rules.interval == "normal":
            found[scope] = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf))
    return {scope: estimate.p_value() for scope, estimate in found.items()}
