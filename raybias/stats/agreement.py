"""Find which metrics rank groups, or models, alike: Kendall's W (Kendall and Babington Smith 1939).

W is 1 where metrics rank alike and 0 where their ranks cancel out, which for two metrics is the
reverse order (W = (1 + Spearman's rho) / 2). Before they are ranked, values are turned so that a
higher one is worse; to be called the class of metrics of one class counts as good. Intervals are
percentiles over the draws that all metrics share.

Shapes: B draws, M metrics, K groups or models that are ranked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
from scipy import stats

from raybias import schema
from raybias.stats.components import Doubles
from raybias.stats.metric_table import ALL, Measured
from raybias.stats.metric_types import metrics

#: Fewer can hardly be ranked otherwise.
_LEAST: Final = 3
_DIGITS: Final = 12


def kendalls_w(values_BMK: Doubles) -> Doubles:
    """Compute Kendall's W [B], corrected for ties; NaN where a metric has no order."""
    # What is equal but for rounding has one rank.
    ranks = stats.rankdata(values_BMK.round(_DIGITS), axis=-1)
    many, ranked = ranks.shape[-2:]
    spread = ranks.sum(axis=-2).var(axis=-1) * ranked
    # The sum of squared deviations of a metric's ranks is (K^3 - K - ties) / 12.
    most = ranks.var(axis=-1).sum(axis=-1) * ranked * many
    undecided = (ranks.std(axis=-1) == 0).any(axis=-1) | np.isnan(values_BMK).any(axis=(-1, -2))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(undecided, np.nan, spread / most)


def agreement(measured: Sequence[Measured], *, level: float) -> list[dict[str, Any]]:
    """Compare how metrics rank the groups of each classifier, and classifiers.

    Returns
    -------
    Rows of schema.ESTIMATES: `condition` is what is ranked, `group` a pair of metrics or `all` of
    them, `n` how many groups or models are ranked, by how many metrics (`units`). Groups are ranked
    by metrics that have a value for each, classifiers by those that have one for all groups; where
    there are fewer than three, or two metrics, there is no row.
    """
    of_groups: dict[tuple[str, ...], list[Measured]] = defaultdict(list)
    of_models: dict[tuple[str, ...], dict[str, list[Measured]]] = defaultdict(dict)
    for each in measured:
        _, _, _, probe, style, attribute = each.keys
        of_groups[each.keys].append(each)
        of_models[probe, style, attribute].setdefault(each.name, []).append(each)
    rows: list[dict[str, Any]] = []
    for keys, found in of_groups.items():
        names: dict[str, Any] = {"condition": "groups", "n": len(found[0].groups)}
        names |= dict(zip((*schema.KEYS, "attribute"), keys, strict=True))
        known = [each for each in found if not np.isnan(each.each_G).any()]
        values = {each.name: _turned(each, each.each_G, each.each_BG) for each in known}
        rows += [{**names, "scope": known[0].scope, **row} for row in _rows(values, level)]
    for (probe, style, attribute), by_name in of_models.items():
        values = {}
        for name, found in by_name.items():
            point = np.array([each.all_1[0] for each in found])
            if not np.isnan(point).any():
                draws = min(len(each.all_B) for each in found)
                drawn = np.stack([each.all_B[:draws] for each in found], axis=-1)
                values[name] = _turned(found[0], point, drawn)
        names = {"condition": "models", "model": ALL, "probe": probe, "style": style,
                 "attribute": attribute}  # fmt: skip
        some = next(iter(by_name.values()))
        more = {"n": len(some), "scope": some[0].scope}
        rows += [{**names, **more, **row} for row in _rows(values, level)]
    return rows


def _turned(each: Measured, point_K: Doubles, drawn_BK: Doubles) -> Doubles:
    """Put the estimate before the draws [1 + B, K], higher ones worse."""
    values = np.concatenate([point_K[None], drawn_BK])
    return -values if metrics[each.name].above == "benefit" else values


def _rows(values: dict[str, Doubles], level: float) -> Iterator[dict[str, Any]]:
    if len(values) < 2 or next(iter(values.values())).shape[1] < _LEAST:
        return
    pairs = [pair for pair in combinations(values, 2) if len(values) > 2]
    # Metrics of many scores have fewer draws: the first of those that counts have.
    shared = min(map(len, values.values()))
    for names in [tuple(values), *pairs]:
        w = kendalls_w(np.stack([values[name][:shared] for name in names], axis=-2))
        drawn = w[1:][~np.isnan(w[1:])]
        ends = (
            np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]) if len(drawn) else [np.nan] * 2
        )
        together = len(names) == len(values)
        yield {
            "score": "agreement", "statistic": "score",
            "group": ALL if together else ", ".join(names),
            "value": float(w[0]), "low": float(ends[0]), "high": float(ends[1]),
            "units": len(names),
        }  # fmt: skip
