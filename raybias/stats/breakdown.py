"""Which words and which templates drive a gap, and which one alone carries it.

A group's gap is the mean of its terms' gaps, weighted by their sentences, and on
templates alike. Counts in, counts out: it never sees a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.intervals import (
    Adjust,
    over_runs,
    parametric,
    unrounded,
    verdicts,
    without_verdict,
)
from raybias.stats.metric import DEFAULT, counted, shares
from raybias.stats.scopes import GapTable, members_of

_TERM_COUNTS: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "term"), pl.String()),
        **dict.fromkeys(("n_items", "hits"), pl.Int64()),
        "rate": pl.String(),
    }
)
_PLACE: Final = (*RUN_KEYS, "attribute", "rate")
_TERM: Final = (*schema.KEYS, "attribute", "rate", "group", "term")
_TABLE: Final = (*schema.KEYS, "attribute", "rate")
_TEMPLATE: Final = (*_TABLE, "group", "template_id")
_GAP: Final = (*_TABLE, "group")
#: A gap that loses this share of its size without one template or word is carried by it.
_HALF: Final = 0.5
_VALUES: Final = ("gap", "sd", "n_runs", "mean_rate", "n_items")


def by_term(
    terms: pl.DataFrame,
    rates: pl.DataFrame,
    members: pl.DataFrame,
    *,
    interval: str = "t",
    level: float = 0.95,
    adjust: Adjust = "benjamini_hochberg",
    excluded: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Compute each term's rate minus the mean over reference groups in the same run.

    Parameters
    ----------
    terms: schema.TERM_CELLS.
    rates: of `stats.rates` on the cells of the same predictions.
    members: of `stats.members`.
    interval: normal or t, over runs; anything else is taken as t.
    excluded: such as `stats.excluded`: rates of classifiers that have no verdict.

    Returns
    -------
    The keys, attribute, rate, group, term, gap, sd, n_runs, mean_rate, n_items (FP + TN
    sentences of a run; the fewest), scope (runs), low, high, p_value, no_verdict, q_value,
    significant, survives.
    """
    terms = without_extras(terms).filter(pl.col("term") != "").cast({pl.Categorical: pl.String})
    keys = ["probe", "attribute", "group"]
    inside = rates.join(members, on=keys, how="left", nulls_equal=True).filter("in_mean")
    mean = inside.group_by(_PLACE).agg(mean=pl.col("value").mean())
    by = [*RUN_KEYS, "attribute", "group", "term"]
    tables = [pl.DataFrame(schema=_TERM_COUNTS)] + [
        terms.filter(share.among).group_by(by).agg(*counted(share), rate=pl.lit(rate))
        for rate, share in shares(rates["rate"].unique().sort()).items()
    ]
    value = pl.col("hits") / pl.col("n_items")
    per_run = (
        pl.concat([table.select(_TERM_COUNTS.names()) for table in tables])
        .join(mean, on=_PLACE, nulls_equal=True)
        .with_columns(value=value, gap=unrounded(value - pl.col("mean")))
    )
    more = (pl.col("value").mean().alias("mean_rate"), pl.col("n_items").min())
    # Counts of terms do not know their templates, nor those of words their runs.
    table = over_runs(per_run, _TERM, *more, value="gap").with_columns(
        pl.col("n_runs").cast(pl.Int64), scope=pl.lit("runs")
    )
    rule = "normal" if interval == "normal" else "t"
    judged = parametric(table, value="gap", interval=rule, level=level)
    explained = without_verdict(judged, value="gap", excluded=excluded)
    return verdicts(explained, level=level, adjust=adjust)


def by_template(
    cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each group's rate on a template minus the template's mean over groups.

    The mean is over the reference groups that have the template, in the same run. There is
    no interval: a template has few sentences, and their rates often agree over runs.

    Returns
    -------
    The keys, attribute, rate, group, template_id, gap, sd, n_runs, mean_rate and n_items
    (FP + TN sentences of a run; the fewest).
    """
    known = without_extras(cells).filter(pl.col("template_id").is_not_null())
    types = pl.Schema(
        {
            **dict.fromkeys(_TEMPLATE, pl.String()),
            **dict.fromkeys(_VALUES, pl.Float64()),
            **dict.fromkeys(("n_runs", "n_items"), pl.Int64()),
        }
    )
    parts = [
        _template_gaps(counts, k, members_of(counts, members))
        for counts in count_arrays(known, metrics)
        for k in range(len(counts.rates))
    ]
    found = pl.concat([pl.DataFrame(schema=types), *(part.cast(types) for part in parts)])
    return found.sort(_TEMPLATE)


def _template_gaps(counts: CountArrays, k: int, member: Mapping[str, bool]) -> pl.DataFrame:
    """Average the gaps on each template over runs; a row for each group that has it."""
    items_GRT = counts.items_KGRT[k]
    there_GRT = items_GRT > 0
    rates_GRT = counts.hits_KGRT[k] / np.where(there_GRT, items_GRT, np.nan)
    inside_G11 = np.array([member.get(group, False) for group in counts.groups])[:, None, None]
    counted_RT = (inside_G11 & there_GRT).sum(axis=0)
    total_RT = np.where(inside_G11 & there_GRT, rates_GRT, 0).sum(axis=0)
    means_RT = total_RT / np.where(counted_RT > 0, counted_RT, np.nan)
    group, run, template = np.nonzero(there_GRT & (counted_RT > 0))
    long = pl.DataFrame(
        {
            "group": pl.Series(counts.groups)[group],
            "template_id": pl.Series(counts.templates)[template],
            "value": rates_GRT[group, run, template],
            "gap": rates_GRT[group, run, template] - means_RT[run, template],
            "n_items": items_GRT[group, run, template],
        }
    ).with_columns(gap=unrounded(pl.col("gap")))
    over = long.group_by("group", "template_id", maintain_order=True).agg(
        pl.col("gap").mean(),
        sd=pl.col("gap").std(ddof=1),
        n_runs=pl.len(),
        mean_rate=pl.col("value").mean(),
        n_items=pl.col("n_items").min(),
    )
    names = dict(zip(_TABLE, (*counts.keys, counts.rates[k]), strict=True))
    columns = (*_TEMPLATE, "gap", "sd", "n_runs", "mean_rate", "n_items")
    return over.with_columns(**{name: pl.lit(value) for name, value in names.items()}).select(
        columns
    )


def largest(table: pl.DataFrame, unit: str, *, k: int) -> pl.DataFrame:
    """Select the k terms or templates of each group that lie farthest from the mean.

    Over several classifiers of a probe their gaps are averaged.

    Parameters
    ----------
    table: of `by_term` or `by_template`.
    unit: its column `term` or `template_id`.

    Returns
    -------
    probe, attribute, rate, group, `unit`, gap, lowest and highest gap of a classifier,
    mean_rate and n_classifiers.
    """
    by = ["probe", "attribute", "rate", "group"]
    over = (
        # Sorted classifiers make the float sums the same for any order of the rows.
        table.sort(*by, unit, *schema.KEYS)
        .group_by(*by, unit, maintain_order=True)
        .agg(
            pl.col("gap").mean(),
            lowest=pl.col("gap").min(),
            highest=pl.col("gap").max(),
            mean_rate=pl.col("mean_rate").mean(),
            n_classifiers=pl.len(),
        )
        .filter(pl.col("gap") != 0)
    )
    farthest = over.sort(*by, pl.col("gap").abs(), unit, descending=[False] * 4 + [True, False])
    return farthest.group_by(by, maintain_order=True).head(k)


def leave_one_out(
    tables: Iterable[GapTable], words: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each gap without each of its templates, and without each of its group's words.

    A template's part in a gap is that of `gap_tables`: exact where every template has as many
    sentences of a group, and else to the first order.

    Parameters
    ----------
    tables: the gaps by run and template.
    words: schema.WORD_CELLS; groups with one word have no such row.

    Returns
    -------
    schema.LEAVE_ONE_OUT, sorted as the gaps are.
    """
    by_word = _word_rates(words, metrics)
    rows: list[dict[str, object]] = []
    for table in tables:
        names = {**dict(zip((*schema.KEYS, "attribute"), table.keys, strict=True)),
                 "rate": table.rate}  # fmt: skip
        means_GT = table.values_GRT.mean(axis=1)
        gap_G = means_GT.mean(axis=1)
        members = int(table.in_mean_G.sum())
        for g, group in enumerate(table.groups):
            place = {**names, "group": group, "gap": float(gap_G[g])}
            if len(table.templates) > 1:
                without_T = (len(table.templates) * gap_G[g] - means_GT[g]) / (
                    len(table.templates) - 1
                )
                rows.append({**place, "unit": "template",
                             **_range(gap_G[g], without_T, table.templates)})  # fmt: skip
            terms, change_W = by_word.get((*table.keys, table.rate, group), ((), np.empty(0)))
            if len(terms) > 1:
                # A group of the mean moves the mean too, by its share of it.
                share = 1 - 1 / members if table.in_mean_G[g] else 1.0
                rows.append({**place, "unit": "word",
                             **_range(gap_G[g], gap_G[g] + share * change_W, terms)})  # fmt: skip
    order = ["model", "attribute", "rate", "group", *schema.KEYS[1:], "unit"]
    return pl.DataFrame(rows, schema=pl.Schema(schema.LEAVE_ONE_OUT)).sort(order)


def _range(
    gap: float, without: npt.NDArray[np.float64], names: Sequence[str]
) -> dict[str, float | str | None]:
    low, high = int(without.argmin()), int(without.argmax())
    # Nearest to the other sign, or beyond it.
    least = low if gap > 0 else high
    carried = gap != 0 and without[least] / gap <= _HALF
    return {
        "lowest": float(without[low]),
        "lowest_without": names[low],
        "highest": float(without[high]),
        "highest_without": names[high],
        "carried_by": names[least] if carried else None,
    }


def _word_rates(
    words: pl.DataFrame, metrics: Sequence[str]
) -> dict[tuple[str, ...], tuple[tuple[str, ...], npt.NDArray[np.float64]]]:
    """Compute how a group's rate over all runs changes without each of its words."""
    found = {}
    texts = without_extras(words)
    for rate, share in shares(metrics).items():
        by = [name for name in _GAP if name != "rate"]
        sums = texts.group_by(*by, "term").agg(*counted(share)).sort(*by, "term")
        for keys, part in sums.filter(pl.col("n_items") > 0).group_by(by, maintain_order=True):
            items, hits = part["n_items"].to_numpy(), part["hits"].to_numpy()
            if len(items) > 1:
                rates = (hits.sum() - hits) / (items.sum() - items)
                change = rates - hits.sum() / items.sum()
                *place, group = map(str, keys)
                found[(*place, rate, group)] = (tuple(part["term"]), change)
    return found
