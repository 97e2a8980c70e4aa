"""Check a rule on meaningless group labels: how often does it call gaps of nothing significant?

In every template the groups' parts (`metric.linearised`) change places at random, alike in all runs
and classifiers, so that no group effect is left while templates, runs and their noise stay. A rule
at level .95 should then flag 5% of gaps, and find a survivor of its correction in at most 5% of
studies. Groups outside the mean stay out; under `wording` the variance of words is added as the
study has it.

Shapes: S shuffles, G groups, R runs, T templates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias import schema
from raybias.config import Statistics
from raybias.schema import ALL
from raybias.seeding import generator
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.intervals import from_rows
from raybias.stats.scopes import SCOPES, GapTable, Scope, WordVariance

#: Shuffles; the share of studies with a survivor is then known to 2 in 100.
SHUFFLES: Final = 200

#: Values that are shuffled at once; 32 MiB.
_ENTRIES: Final = 1 << 22
_WIDEST: Final = "widest"


def null_check(
    tables: Sequence[GapTable], words: Mapping[tuple[str, ...], WordVariance], rules: Statistics
) -> pl.DataFrame:
    """Judge studies whose group labels were shuffled within templates.

    Gives columns of schema.ESTIMATES for each scope, and for `widest` (each table under the widest
    of its scopes): the scores `meaningless_flagged`, the share of gaps that are called significant,
    and `meaningless_with_survivor`, the share of studies in which one survives the correction; of
    how many gaps (n) and shuffles (units).
    """
    p_values: dict[str, list[Doubles]] = defaultdict(list)
    for table in tables:
        between = words.get(table.place)
        some = [_p_values(each, between, rules.interval) for each in _shuffled(table)]
        for scope in some[0] if some else ():
            p_values[scope].append(np.concatenate([each[scope] for each in some]))
            widest = p_values[scope][-1]
        if some:
            p_values[_WIDEST].append(widest)
    rows: list[dict[str, Any]] = []
    expected = 1 - rules.level
    for rule in (each for each in (*SCOPES, _WIDEST) if each in p_values):
        p_SN = np.nan_to_num(np.concatenate(p_values[rule], axis=1), nan=1.0)
        tests = stats.false_discovery_control(p_SN, axis=1) if rules.adjust != "none" else p_SN
        survivor_S = (tests <= expected).any(axis=1)
        rows += [
            {"model": ALL, "group": ALL, "score": f"meaningless_{name}", "statistic": "rate",
             "scope": rule, "value": float(found.mean()), "n": p_SN.shape[1], "units": SHUFFLES,
             "reason": f"{round(expected, 3)} expected, by {rules.interval}"}
            for name, found in (("flagged", p_SN < expected), ("with_survivor", survivor_S))
        ]  # fmt: skip
    return from_rows(rows)


def _shuffled(table: GapTable) -> Iterator[GapTable]:
    """Yield some shuffles [S, G, R, T] at a time of the groups in the mean; none of a lone one."""
    inside = table.in_mean_G
    values_GRT = table.values_GRT[inside]
    n_groups, _, n_templates = values_GRT.shape
    if n_groups < 2 or n_templates < 2:
        return
    groups = tuple(table.groups[g] for g in np.flatnonzero(inside))
    probe, attribute = table.keys[schema.KEYS.index("probe")], table.keys[-1]
    random = generator(0, "null check", probe, attribute)
    apart = table.apart and MeanEstimate(
        *(each[inside] for each in (table.apart.mean, table.apart.variance, table.apart.freedom))
    )
    step = max(1, _ENTRIES // values_GRT.size)
    for start in range(0, SHUFFLES, step):
        draws = min(step, SHUFFLES - start)
        order_STG = random.random((draws, n_templates, n_groups)).argsort(axis=2)
        order_SG1T = order_STG.swapaxes(1, 2)[:, :, None]
        shuffled = np.take_along_axis(values_GRT[None], order_SG1T, axis=1)
        yield replace(
            table, groups=groups, in_mean_G=inside[inside], values_GRT=shuffled, apart=apart
        )


def _p_values(table: GapTable, words: WordVariance | None, interval: str) -> dict[Scope, Doubles]:
    """Compute p [S, G] of shuffled gaps under every scope, by the rule of an interval."""
    found = table.estimates(None)
    for scope, estimate in found.items():
        if interval == "bootstrap":
            squares = table.squares.squares
            drawn = [squares["run",]] if scope == "runs" else [*squares.values()]
            cells = np.prod([*table.squares.levels.values()])
            found[scope] = replace(estimate, variance=np.sum(drawn, axis=0) / cells)
        elif interval == "normal":
            found[scope] = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf))
    if words is not None:
        found["wording"] = words.added_to(found["sentences"], table)
    return {scope: estimate.p_value() for scope, estimate in found.items()}
