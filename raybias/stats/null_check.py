"""Check a rule on meaningless group labels: how often does it call gaps of nothing significant?

In every template the groups' parts (`metric.linearised`) change places at random, alike in all runs
and classifiers, so that no group effect is left while templates, runs and their noise stay. A rule
at level .95 should then flag 5% of gaps, and find a survivor of its correction in at most 5% of
studies. Groups outside the mean stay out; under `wording` the variance of words is added as the
study has it (`benchmarks/calibrate.py` shuffles words).

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
from raybias.stats.components import Doubles, Facets, MeanEstimate, MeanSquares
from raybias.stats.intervals import from_rows
from raybias.stats.scopes import SCOPES, GapTable, Scope, WordVariance

#: Shuffles; the share of studies with a survivor is then known to 2 in 100.
SHUFFLES: Final = 200

#: Entries of a matrix of shuffles; 32 MiB in float64.
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
    for table, squares in _shuffled(tables):
        found = _estimates(table, squares, words.get(table.place), rules.interval)
        for scope, estimate in found.items():
            p_values[scope].append(estimate.p_value())
        if found:
            p_values[_WIDEST].append(p_values[[*found][-1]][-1])
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


def _estimates(
    table: GapTable, squares: MeanSquares, words: WordVariance | None, interval: str
) -> dict[Scope, MeanEstimate]:
    found: dict[Scope, MeanEstimate] = {}
    for scope in table.estimates(None):
        estimate = squares.estimate(("run",) if scope == "runs" else None)
        if interval == "bootstrap":
            cells = np.prod([*squares.levels.values()])
            drawn = [
                v for names, v in squares.squares.items() if scope != "runs" or names == ("run",)
            ]
            estimate = replace(estimate, variance=np.sum(drawn, axis=0) / cells)
        elif interval == "normal":
            estimate = replace(estimate, freedom=np.full_like(estimate.freedom, np.inf))
        found[scope] = estimate
    if words is not None and "sentences" in found:
        found["wording"] = words.added_to(found["sentences"], table)
    return found


def _shuffled(tables: Sequence[GapTable]) -> Iterator[tuple[GapTable, MeanSquares]]:
    """Yield tables without groups outside the mean, and mean squares [S, G] of their shuffles."""
    alike: dict[tuple[str, str, int, int], list[GapTable]] = defaultdict(list)
    for table in tables:
        inside = table.in_mean_G
        names = tuple(table.groups[g] for g in np.flatnonzero(inside))
        if len(names) > 1 and table.values_GRT.shape[2] > 1:
            part = replace(
                table, groups=names, in_mean_G=inside[inside], values_GRT=table.values_GRT[inside]
            )
            probe, attribute = table.keys[schema.KEYS.index("probe")], table.keys[-1]
            alike[probe, attribute, len(names), table.values_GRT.shape[2]].append(part)
    for (probe, attribute, groups, templates), same in alike.items():
        random = generator(0, "null check", probe, attribute)
        sums: list[list[Doubles]] = [[] for _ in same]
        for moves in shuffle_matrices(random, SHUFFLES, groups, templates):
            for found, table in zip(sums, same, strict=True):
                found.append(_sums(table.values_GRT, moves))
        for table, found in zip(same, sums, strict=True):
            yield table, _mean_squares(table.values_GRT, np.concatenate(found))


def shuffle_matrices(
    random: np.random.Generator, shuffles: int, groups: int, templates: int
) -> Iterator[Doubles]:
    """Yield 0/1 matrices [S, G, GT]: which group's part each group has on each template."""
    step = max(1, _ENTRIES // (groups * groups * templates))
    for start in range(0, shuffles, step):
        some = min(step, shuffles - start)
        order_STG = random.random((some, templates, groups)).argsort(axis=2)
        moves_SGGT = order_STG.transpose(0, 2, 1)[:, :, None] == np.arange(groups)[:, None]
        yield moves_SGGT.reshape(some, groups, -1).astype(float)


def _sums(values_GRT: Doubles, moves: Doubles) -> Doubles:
    """Sum each run's values, squared values and squared means over templates [S, G, R + 2]."""
    squares_GT = (values_GRT**2).sum(axis=1), values_GRT.mean(axis=1) ** 2
    columns_GTX = np.stack([*values_GRT.swapaxes(0, 1), *squares_GT], axis=2)
    return np.asarray(moves @ columns_GTX.reshape(moves.shape[2], -1))


def _mean_squares(values_GRT: Doubles, sums: Doubles) -> MeanSquares:
    _, runs, templates = values_GRT.shape
    means_SGR = sums[..., :runs] / templates
    mean_SG = means_SGR.mean(axis=2)
    of_runs = templates * ((means_SGR - mean_SG[..., None]) ** 2).sum(axis=2)
    of_templates = runs * (sums[..., -1] - templates * mean_SG**2)
    of_cells = sums[..., -2] - runs * templates * mean_SG**2 - of_runs - of_templates
    squares: dict[Facets, Doubles] = {("template",): of_templates / (templates - 1)}
    if runs == 1:
        return MeanSquares(mean_SG, squares, {"template": templates})
    squares["run",] = of_runs / (runs - 1)
    squares["run", "template"] = np.maximum(of_cells, 0) / ((runs - 1) * (templates - 1))
    return MeanSquares(mean_SG, squares, {"run": runs, "template": templates})
