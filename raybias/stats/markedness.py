"""Markedness measured: what naming any group does to a rate, apart from which group it is.

Source: raybias's own; Kohankhaki2024 conjectures it. Templates that also come without their group
term (group `unmarked`) and with a neutral word in its place (group `placeholder`) are
compared within each run. Every template has the same weight, so that groups with
many terms, and forms with one, are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.registry import Share
from raybias.schema import PLACEHOLDER, UNMARKED
from raybias.stats.cells import RUN_KEYS
from raybias.stats.intervals import (
    Adjust,
    over_runs,
    parametric,
    unrounded,
    verdicts,
    without_verdict,
)
from raybias.stats.metric import DEFAULT, counted, shares

_EFFECT: Final = (*schema.KEYS, "attribute", "group", "rate", "effect")
_PLACE: Final = ("run", "attribute")


def members(gaps: pl.DataFrame) -> pl.DataFrame:
    """Say which groups are in the mean of each probe's attribute: columns to `in_mean`."""
    return gaps.select("probe", "attribute", "group", "in_mean").unique(maintain_order=True)


def named_runs(cells: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """Give the runs numbers in the order of their names: grouping by six texts is slow.

    Returns
    -------
    The number of each row's run, and the names: the run keys and `run`.
    """
    names = cells.select(RUN_KEYS).unique()
    texts = pl.col(RUN_KEYS).cast(pl.String)
    names = names.sort(texts, nulls_last=True).with_row_index("run")
    numbers = cells.select(RUN_KEYS).join(
        names, on=RUN_KEYS, how="left", nulls_equal=True, maintain_order="left"
    )["run"]
    return numbers.cast(pl.Int64), names.cast({pl.Categorical: pl.String, pl.UInt32: pl.Int64})


def template_rates(cells: pl.DataFrame, members: pl.DataFrame, share: Share) -> pl.DataFrame:
    """Compute a metric of each group on each template in each run.

    Parameters
    ----------
    cells: schema.CELLS with categorical texts and a column `run`.
    members: of `members`.
    share: the metric; templates without a sentence that counts are not there.

    Returns
    -------
    probe, run, attribute, group, template_id, n_items (FP + TN sentences), value and in_mean;
    in_mean is null for the extra groups.
    """
    by = ["probe", "run", "attribute", "group", "template_id"]
    known = cells.filter(pl.col("template_id").is_not_null() & share.among)
    rates = known.group_by(by).agg(*counted(share))
    rates = rates.with_columns(value=pl.col("hits") / pl.col("n_items")).drop("hits")
    keys = ["probe", "attribute", "group"]
    inside = members.cast(dict.fromkeys(keys, pl.Categorical))
    return rates.join(inside, on=keys, how="left", nulls_equal=True)


def markedness(
    cells: pl.DataFrame,
    members: pl.DataFrame,
    *,
    interval: str = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    excluded: Sequence[pl.DataFrame] = (),
    metrics: Sequence[str] = DEFAULT,
) -> pl.DataFrame:
    """Separate the effect of being marked at all from that of the group that is named.

    On the templates that have an unmarked form, in each run and then over runs:
    marking_effect is a group's rate minus the unmarked rate, neutral_effect the placeholder's
    rate minus the unmarked one (group `placeholder`), beyond_neutral a group's rate minus the
    placeholder's, so that marking_effect = neutral_effect + beyond_neutral; and gap, as ever.
    A group without some of these templates is left out.

    Parameters
    ----------
    cells: schema.CELLS.
    members: of `members`.
    interval: normal or t, over runs; anything else is taken as t.
    excluded: such as `stats.excluded`: rates of classifiers that have no verdict.
    metrics: names; those of predictions are passed over.

    Returns
    -------
    schema.MARKEDNESS; no rows where no probe has unmarked items.
    """
    types = pl.Schema(schema.MARKEDNESS)
    cells = cells.cast({pl.String: pl.Categorical})
    pairs = cells.filter(pl.col("group") == UNMARKED).select("probe", "attribute").unique()
    if pairs.is_empty() or not shares(metrics):
        return pl.DataFrame(schema=types)
    concerned = cells.join(pairs, on=["probe", "attribute"], how="semi", nulls_equal=True)
    table = over_runs(
        _per_run(concerned, members, metrics),
        _EFFECT,
        pl.col("n_templates").min(),
        pl.col("in_mean").first(),
        value="estimate",
    )
    rule = "normal" if interval == "normal" else "t"
    judged = parametric(table, value="estimate", interval=rule, level=level)
    explained = without_verdict(judged, value="estimate", excluded=excluded)
    return (
        verdicts(explained, level=level, adjust=adjust)
        .sort("model", "attribute", "rate", "effect", "group", *schema.KEYS[1:])
        .select(pl.col(name).cast(dtype) for name, dtype in types.items())
    )


def _per_run(cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    run, names = named_runs(cells)
    cells = cells.with_columns(run=run)
    effects = [
        _effects(_comparable(template_rates(cells, members, share))).with_columns(rate=pl.lit(rate))
        for rate, share in shares(metrics).items()
    ]
    return pl.concat(effects).join(names, on="run").cast({pl.Categorical: pl.String})


def _comparable(rates: pl.DataFrame) -> pl.DataFrame:
    """Average each form's rate over the templates that all forms have, per run."""
    rates = rates.with_columns(pl.col("in_mean").fill_null(False))
    extra = pl.col("group").is_in(schema.EXTRA_GROUPS)
    needed = rates.filter(extra | pl.col("in_mean"))
    forms = needed.group_by(_PLACE).agg(forms=pl.col("group").n_unique())
    # A template has one row per form.
    found = needed.group_by(*_PLACE, "template_id").agg(found=pl.len())
    whole = (
        found.join(forms, on=_PLACE)
        .filter(pl.col("found") == pl.col("forms"))
        .select(*_PLACE, "template_id", n_templates=pl.len().over(_PLACE).cast(pl.Int64))
    )
    return (
        rates.join(whole, on=[*_PLACE, "template_id"])
        # Sorted templates make the float sums the same for any order of the rows.
        .sort(*_PLACE, "group", "template_id")
        .group_by(*_PLACE, "group", maintain_order=True)
        .agg(
            pl.col("value").mean(),
            pl.col("n_templates").first(),
            pl.col("in_mean").first(),
            found=pl.len(),
        )
        .filter(pl.col("found") == pl.col("n_templates"))
        .drop("found")
    )


def _effects(values: pl.DataFrame) -> pl.DataFrame:
    """Compute the four differences in each run, a row each, without undefined ones."""
    base = {
        name: pl.col("value").filter(pl.col("group") == name).first().over(_PLACE)
        for name in schema.EXTRA_GROUPS
    }
    mean = pl.col("value").filter("in_mean").mean().over(_PLACE)
    columns = [*_PLACE, "group", "n_templates", "in_mean"]
    wide = values.with_columns(
        marking_effect=pl.col("value") - base[UNMARKED],
        beyond_neutral=pl.col("value") - base[PLACEHOLDER],
        gap=pl.col("value") - mean,
    ).filter(pl.col("group") != UNMARKED)
    neutral = pl.col("group") == PLACEHOLDER
    long = wide.unpivot(
        on=["marking_effect", "beyond_neutral", "gap"],
        index=columns,
        variable_name="effect",
        value_name="estimate",
    ).filter(~neutral | (pl.col("effect") == "marking_effect"))
    name = pl.when(neutral).then(pl.lit("neutral_effect")).otherwise("effect")
    return long.with_columns(effect=name, estimate=unrounded(pl.col("estimate"))).drop_nulls(
        "estimate"
    )
