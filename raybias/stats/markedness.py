"""Markedness measured: what naming any group does to a rate, apart from which group it is.

Source: raybias's own; Kohankhaki2024 conjectures it. Templates that also come without their group
term (group `unmarked`) and with a neutral word in its place (group `placeholder`) are
compared within each run. Every template has the same weight, so that groups with
many terms, and forms with one, are comparable.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Scope
from raybias.schema import PLACEHOLDER, UNMARKED
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, Adjust, parametric, verdicts, without_verdict
from raybias.stats.metric import DEFAULT
from raybias.stats.scopes import GapTable, members_of, scope_rows, under_scope

_TABLE: Final = (*schema.KEYS, "attribute")
_EFFECT: Final = (*_TABLE, "group", "rate", "effect")


def members(gaps: pl.DataFrame) -> pl.DataFrame:
    """Say which groups are in the mean of each probe's attribute: columns to `in_mean`."""
    return gaps.select("probe", "attribute", "group", "in_mean").unique(maintain_order=True)


def markedness(
    cells: pl.DataFrame,
    members: pl.DataFrame,
    *,
    scope: Scope = "widest",
    interval: str = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    excluded: Sequence[pl.DataFrame] = (),
    metrics: Sequence[str] = DEFAULT,
) -> pl.DataFrame:
    """Separate the effect of being marked at all from that of the group that is named.

    On the templates that have every form in every run:
    marking_effect is a group's rate minus the unmarked rate, neutral_effect the placeholder's
    rate minus the unmarked one (group `placeholder`), beyond_neutral a group's rate minus the
    placeholder's, so that marking_effect = neutral_effect + beyond_neutral; and gap, as ever.
    A group without some of these templates is left out.

    Parameters
    ----------
    cells: schema.CELLS.
    members: of `members`.
    scope: what intervals cover. Words are not drawn here: wording and widest are sentences.
    interval: normal or t; anything else is taken as t.
    excluded: such as `GapAnalysis.excluded`: rates of classifiers that have no verdict.
    metrics: names; those of predictions are passed over.

    Returns
    -------
    schema.MARKEDNESS; no rows where no probe has unmarked items.
    """
    types = pl.Schema(schema.MARKEDNESS)
    unmarked = cells.filter(pl.col("group") == UNMARKED)
    pairs = unmarked.select("probe", "attribute").unique()
    concerned = cells.filter(pl.col("template_id").is_not_null()).join(
        pairs, on=["probe", "attribute"], how="semi", nulls_equal=True
    )
    effects = [
        (name, table)
        for counts in count_arrays(concerned, metrics)
        for k in range(len(counts.rates))
        for name, table in _effects(counts, k, members_of(counts, members))
    ]
    if not effects:
        return pl.DataFrame(schema=types)
    rule = "normal" if interval == "normal" else "t"
    under_runs = parametric(_over_runs(effects), value="estimate", interval=rule, level=level)
    wide = [
        scope_rows([table], {}, level=level, normal=rule == "normal").with_columns(
            effect=pl.lit(name)
        )
        for name, table in effects
    ]
    ends = [*_EFFECT, "scope", "low", "high", "p_value"]
    intervals = under_scope(
        under_runs.select(ends), pl.concat(wide).filter(scope="sentences").select(ends),
        "sentences" if scope == "wording" else scope, _EFFECT,
    )  # fmt: skip
    table = under_runs.drop(ends[len(_EFFECT) :]).join(
        intervals, on=_EFFECT, how="left", nulls_equal=True
    )
    explained = without_verdict(table, value="estimate", excluded=excluded)
    return (
        verdicts(explained, level=level, adjust=adjust)
        .sort("model", "attribute", "rate", "effect", "group", *schema.KEYS[1:])
        .select(pl.col(name).cast(dtype) for name, dtype in types.items())
    )


def _effects(
    counts: CountArrays, k: int, member: Mapping[str, bool]
) -> Iterator[tuple[str, GapTable]]:
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

    def compared(groups: Sequence[str], base_RT: Doubles) -> GapTable:
        values_GRT = np.stack([rates[group] - base_RT for group in groups])
        values_GRT[np.abs(values_GRT) < ROUNDING] = 0.0
        in_mean_G = np.isin(groups, inside)
        return GapTable(
            counts.keys, counts.rates[k], tuple(groups), in_mean_G, values_GRT, templates
        )

    if UNMARKED in rates and named:
        yield "marking_effect", compared(named, rates[UNMARKED])
    if UNMARKED in rates and PLACEHOLDER in rates:
        yield "neutral_effect", compared([PLACEHOLDER], rates[UNMARKED])
    if PLACEHOLDER in rates and named:
        yield "beyond_neutral", compared(named, rates[PLACEHOLDER])
    if inside:
        yield "gap", compared(named, np.mean([rates[group] for group in inside], axis=0))


def _over_runs(effects: Sequence[tuple[str, GapTable]]) -> pl.DataFrame:
    """Average effects over templates and runs: `estimate`, `sd` of runs, and what they rest on."""
    rows: list[Mapping[str, object]] = []
    for name, table in effects:
        runs_GR = table.values_GRT.mean(axis=2)
        _, runs, templates = table.values_GRT.shape
        sd_G = runs_GR.std(axis=1, ddof=1) if runs > 1 else np.full(len(runs_GR), np.nan)
        names = {
            **dict(zip(_TABLE, table.keys, strict=True)), "rate": table.rate, "effect": name,
            "scope": "runs", "n_runs": runs, "n_templates": templates,
        }  # fmt: skip
        columns = zip(table.groups, table.in_mean_G, runs_GR.mean(axis=1), sd_G, strict=True)
        rows += [
            {**names, "group": group, "in_mean": bool(member), "estimate": mean, "sd": sd}
            for group, member, mean, sd in columns
        ]
    texts = dict.fromkeys((*_EFFECT, "scope"), pl.String)
    return pl.DataFrame(rows, schema_overrides=texts).fill_nan(None)
