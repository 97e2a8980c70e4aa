"""Markedness: the effect on a rate of naming any group at all.

Source: raybias's own. Templates that also come without their group term (group `unmarked`) and
with a neutral word in its place (group `placeholder`) are compared within each run. Every
template has the same weight, so that groups with many terms, and forms with one, are comparable.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.schema import PLACEHOLDER, UNMARKED
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, judged
from raybias.stats.scopes import PLACE, GapTable, every_scope, members_of, one_scope


def markedness(
    cells: pl.DataFrame,
    members: pl.DataFrame,
    rules: Statistics,
    excluded: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Separate the effect of being marked at all from that of the group that is named.

    On the templates that have every form in every run:
    marking_effect is a group's rate minus the unmarked rate, neutral_effect the placeholder's
    rate minus the unmarked one (group `placeholder`), beyond_neutral a group's rate minus the
    placeholder's, so that marking_effect = neutral_effect + beyond_neutral; and gap, as ever.
    A group without some of these templates is left out. Words are not drawn here: the widest
    intervals, and those of wording, are those of sentences.

    Parameters
    ----------
    cells: schema.CELLS.
    members: probe, attribute, group, in_mean.
    excluded: as of `intervals.judged`.

    Returns
    -------
    Columns of schema.ESTIMATES, a row for each effect, which is the `condition`, under the rules'
    scope; also `in_mean`, `runs`, `templates`, and `sd` over runs. No rows where no probe has
    unmarked items.
    """
    unmarked = cells.filter(pl.col("group") == UNMARKED)
    pairs = unmarked.select("probe", "attribute").unique()
    concerned = cells.filter(pl.col("template_id").is_not_null()).join(
        pairs, on=["probe", "attribute"], how="semi", nulls_equal=True
    )
    effects = [
        table
        for counts in count_arrays(concerned, rules.metrics)
        for k in range(len(counts.scores))
        for table in _effects(counts, k, members_of(counts, members))
    ]
    found = every_scope(_over_runs(effects), effects, {}, rules)
    chosen = one_scope(found, "sentences" if rules.scope == "wording" else rules.scope)
    return (
        judged(chosen, rules, excluded)
        .sort("model", "attribute", "score", "condition", "group", *schema.KEYS[1:])
        .with_columns(statistic=pl.lit("difference"))
        .drop("mde", "equivalent")
    )


def _effects(counts: CountArrays, k: int, member: Mapping[str, bool]) -> Iterator[GapTable]:
    """Compare the forms by one metric on the templates that all of them have in every run."""
    there_GRT = counts.items_KGRT[k] > 0
    runs_R, there_G = there_GRT.any(axis=(0, 2)), there_GRT.any(axis=(1, 2))
    forms = [group for group, there in zip(counts.groups, there_G, strict=True) if there]
    inside = [group for group in forms if member.get(group, False)]
    needed_G = np.isin(counts.groups, [*inside, *schema.EXTRA_GROUPS]) & there_G
    whole_T = there_GRT[needed_G][:, runs_R].all(axis=(0, 1))
    if not (runs_R.any() and whole_T.any()):
        return
    kept = np.ix_(range(len(counts.groups)), runs_R, whole_T)
    items_GRT, hits_GRT = counts.items_KGRT[k][kept], counts.hits_KGRT[k][kept]
    rates: dict[str, Doubles] = {
        group: hits_GRT[g] / items_GRT[g]
        for g, group in enumerate(counts.groups)
        if (items_GRT[g] > 0).all()
    }
    named = [group for group in rates if group not in schema.EXTRA_GROUPS]
    templates = tuple(np.array(counts.templates)[whole_T].tolist())

    def compared(effect: str, groups: Sequence[str], base_RT: Doubles) -> GapTable:
        values_GRT = np.stack([rates[group] - base_RT for group in groups])
        values_GRT[np.abs(values_GRT) < ROUNDING] = 0.0
        in_mean_G = np.isin(groups, inside)
        return GapTable(counts.keys, counts.scores[k], tuple(groups), in_mean_G, values_GRT,
                        templates, effect)  # fmt: skip

    if UNMARKED in rates and named:
        yield compared("marking_effect", named, rates[UNMARKED])
    if UNMARKED in rates and PLACEHOLDER in rates:
        yield compared("neutral_effect", [PLACEHOLDER], rates[UNMARKED])
    if PLACEHOLDER in rates and named:
        yield compared("beyond_neutral", named, rates[PLACEHOLDER])
    if inside:
        yield compared("gap", named, np.mean([rates[group] for group in inside], axis=0))


def _over_runs(effects: Sequence[GapTable]) -> pl.DataFrame:
    """Average effects over templates and runs, as `intervals.over_runs` does."""
    rows: list[Mapping[str, Any]] = []
    for table in effects:
        runs_GR = table.values_GRT.mean(axis=2)
        _, runs, templates = table.values_GRT.shape
        sd_G = runs_GR.std(axis=1, ddof=1) if runs > 1 else np.full(len(runs_GR), np.nan)
        names = {**table.names, "units": runs, "runs": runs, "templates": templates}
        columns = zip(table.groups, table.in_mean_G, runs_GR.mean(axis=1), sd_G, strict=True)
        rows += [
            {
                **names,
                "group": group,
                "in_mean": bool(member),
                "value": float(mean),
                "sd": float(sd),
            }
            for group, member, mean, sd in columns
        ]
    types = {
        **dict.fromkeys(PLACE, pl.String), **dict.fromkeys(("value", "sd"), pl.Float64),
        **dict.fromkeys(("units", "runs", "templates"), pl.Int64), "in_mean": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, types).fill_nan(None)
