"""How much more favourable decisions about a group are, with intervals over decisions.

The outcome is logit p(favourable) of the two answers (Tamkin et al. 2023). Within a decision it is
averaged over the persons of a group and set against the background's; decisions are what another
test of the kind would have others of. Where every decision is asked about the same persons, the
estimate is the fixed effect of the paper's mixed model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from scipy import stats

from raybias import schema
from raybias.stats.components import Doubles
from raybias.stats.conclusive import of_decisions
from raybias.stats.decisions.reading import groups_of
from raybias.stats.intervals import ROUNDING
from raybias.stats.jackknife import ALIKE, ONE_UNIT

_MEAN: Final = "mean_of_groups"


def decision_measures(answers: pl.DataFrame, *, level: float = 0.95) -> pl.DataFrame:
    """Compute each group's contrast with its background, of every model, probe and attribute.

    The background is the group that `reference` names, else the unweighted mean of the groups.
    Prompts are averaged over. There is no interval where the two answers hold too little of the
    probability (`conclusive.of_decisions`).

    Parameters
    ----------
    answers: schema.DECISION_ANSWERS, in any order.

    Returns
    -------
    schema.DECISION_MEASURES.
    """
    rows: list[tuple[object, ...]] = []
    unable = of_decisions(answers)
    # Sums of floats depend on their order in the last bits.
    logits = answers.with_columns(y=pl.col("favourable") - pl.col("unfavourable"))
    keys = ("model", "probe", "decision_id", "item_id", "person", "reference")
    ordered = logits.sort(*keys, "prompt").group_by(keys, maintain_order=True)
    items = ordered.agg(pl.col("y").mean())
    for (model, probe), part in items.partition_by("model", "probe", as_dict=True).items():
        people = pl.DataFrame([groups_of(each) for each in part["person"]])
        named = part["reference"].drop_nulls().first()
        reference = groups_of(str(named)) if named is not None else {}
        for attribute in people.columns:
            told = part.with_columns(people[attribute].alias("group")).drop_nulls("group")
            refused = unable.get((str(model), str(probe)))
            for row in _contrasts(told, reference.get(attribute), level):
                if refused:
                    row[2:5], row[-1] = [None] * 3, refused
                rows.append((model, attribute, *row, probe))
    table = pl.DataFrame(rows, pl.Schema(schema.DECISION_MEASURES), orient="row").fill_nan(None)
    return table.sort("model", "probe", maintain_order=True)


def _contrasts(items: pl.DataFrame, reference: str | None, level: float) -> Iterator[list[object]]:
    """Yield the columns of each group from `group` to `no_interval`."""
    groups = items["group"].unique().sort().to_list()
    counts = dict(items.group_by("group").len().iter_rows())
    means = items.pivot("group", index="decision_id", values="y", aggregate_function="mean")
    mean_DG = means.select(groups).to_numpy().astype(np.float64)
    if reference in groups:
        background, against_D = f"reference:{reference}", mean_DG[:, groups.index(reference)]
    else:
        # A decision that lacks a group would shift the mean of those that it has.
        background, against_D = _MEAN, mean_DG.mean(axis=1)
    for g, group in enumerate(groups):
        if group == reference:
            continue
        difference_D = mean_DG[:, g] - against_D
        there_D = difference_D[~np.isnan(difference_D)]
        value, ends, p_value, reason = _judged(there_D, level)
        yield [group, value, *ends, p_value, background, len(there_D), counts[group], reason]


def _judged(
    difference_D: Doubles, level: float
) -> tuple[float, tuple[float, float], float, str | None]:
    """Return the mean, Student's interval and p of differences, and why there are none."""
    nothing = float("nan")
    if not len(difference_D):
        return nothing, (nothing, nothing), nothing, "no decision about both"
    value = float(difference_D.mean())
    if len(difference_D) < 2:
        return value, (nothing, nothing), nothing, ONE_UNIT
    error = float(difference_D.std(ddof=1) / np.sqrt(len(difference_D)))
    if error < ROUNDING:
        return value, (nothing, nothing), nothing, ALIKE
    freedom = len(difference_D) - 1
    reach = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    p_value = float(2 * stats.t.sf(abs(value) / error, freedom))
    return value, (value - reach, value + reach), p_value, None
