"""Which words and which templates drive a gap, and which one alone carries it.

A group's gap is the mean of its terms' gaps, weighted by their sentences, and on
templates alike. Counts in, counts out: it never sees a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.components import Doubles
from raybias.stats.intervals import from_rows, judged, over_runs, parametric, unrounded
from raybias.stats.metric import DEFAULT, counted, shares
from raybias.stats.scopes import GapTable, members_of

#: Begins the condition of the gap of a word, and of a gap without a template or a word.
WORD: Final = "word: "
WITHOUT: Final = "without "
#: Begins the reason of a gap without one of them that carries it.
CARRIED: Final = "carried by "
_COUNTS: Final = pl.Schema(
    {
        **dict.fromkeys((*RUN_KEYS, "attribute", "group", "term"), pl.String()),
        **dict.fromkeys(("n_items", "hits"), pl.Int64()),
        "score": pl.String(),
    }
)
_RUN: Final = (*RUN_KEYS, "attribute", "score")
_TABLE: Final = (*schema.KEYS, "attribute", "score")
_TEMPLATE: Final = (*_TABLE, "group", "template_id")
#: A gap that loses this share of its size without one template or word is carried by it.
_HALF: Final = 0.5


def by_term(
    terms: pl.DataFrame,
    rates: pl.DataFrame,
    members: pl.DataFrame,
    rules: Statistics,
    excluded: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Compute each term's rate minus the mean over reference groups in the same run.

    Parameters
    ----------
    terms: schema.TERM_CELLS.
    rates: of `arrays.rates` on the cells of the same predictions.
    members: probe, attribute, group, in_mean.
    excluded: as of `intervals.judged`.

    Returns
    -------
    Columns of schema.ESTIMATES under the scope `runs`, and `term`, `rate` (its own) and `sd`; `n`
    are the FP + TN sentences of a run (the fewest).
    """
    terms = without_extras(terms).filter(pl.col("term") != "").cast({pl.Categorical: pl.String})
    keys = ["probe", "attribute", "group"]
    inside = rates.join(members, on=keys, how="left", nulls_equal=True).filter("in_mean")
    mean = inside.group_by(_RUN).agg(mean=pl.col("value").mean())
    by = [*RUN_KEYS, "attribute", "group", "term"]
    tables = [pl.DataFrame(schema=_COUNTS)] + [
        terms.filter(share.among).group_by(by).agg(*counted(share), score=pl.lit(score))
        for score, share in shares(rates["score"].unique().sort()).items()
    ]
    rate = pl.col("hits") / pl.col("n_items")
    per_run = (
        pl.concat([table.select(_COUNTS.names()) for table in tables])
        .join(mean, on=_RUN, nulls_equal=True)
        .with_columns(rate=rate, value=unrounded(rate - pl.col("mean")))
    )
    over = over_runs(
        per_run, (*_TABLE, "group", "term"), pl.col("rate").mean(), n=pl.col("n_items").min()
    )
    found = parametric(over, interval=rules.interval, level=rules.level)
    # Counts of terms do not know their templates, nor those of words their runs.
    return judged(found, rules, excluded).with_columns(
        statistic=pl.lit("gap"), scope=pl.lit("runs"), condition=pl.format(f"{WORD}{{}}", "term")
    )


def by_template(
    cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each group's rate on a template minus the template's mean over groups.

    The mean is over the reference groups that have the template, in the same run. There is
    no interval: a template has few sentences, and their rates often agree over runs.

    Returns
    -------
    The keys, attribute, score, group, template_id, value, sd, units (runs), rate and n (FP + TN
    sentences of a run; the fewest).
    """
    known = without_extras(cells).filter(pl.col("template_id").is_not_null())
    types = pl.Schema(
        {
            **dict.fromkeys(_TEMPLATE, pl.String()),
            **dict.fromkeys(("value", "sd"), pl.Float64()),
            "units": pl.Int64(),
            "rate": pl.Float64(),
            "n": pl.Int64(),
        }
    )
    parts = [
        _template_gaps(counts, k, members_of(counts, members))
        for counts in count_arrays(known, metrics)
        for k in range(len(counts.scores))
    ]
    found = pl.concat(
        [pl.DataFrame(schema=types), *(part.select(types.names()).cast(types) for part in parts)]
    )
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
            "run_id": run,
            "rate": rates_GRT[group, run, template],
            "value": rates_GRT[group, run, template] - means_RT[run, template],
            "n": items_GRT[group, run, template],
        }
    ).with_columns(unrounded(pl.col("value")))
    over = over_runs(long, ("group", "template_id"), pl.col("rate").mean(), pl.col("n").min())
    names = dict(zip(_TABLE, (*counts.keys, counts.scores[k]), strict=True))
    return over.with_columns(**{name: pl.lit(value) for name, value in names.items()})


def largest(table: pl.DataFrame, unit: str, *, k: int) -> pl.DataFrame:
    """Select the k terms or templates of each group that lie farthest from the mean.

    Over several classifiers of a probe their gaps are averaged.

    Parameters
    ----------
    table: of `by_term` or `by_template`.
    unit: its column `term` or `template_id`.

    Returns
    -------
    probe, attribute, score, group, `unit`, value, lowest and highest value of a classifier, rate
    and n_classifiers.
    """
    by = ["probe", "attribute", "score", "group"]
    value = pl.col("value")
    over = (
        # Sorted classifiers make the float sums the same for any order of the rows.
        table.sort(*by, unit, *schema.KEYS)
        .group_by(*by, unit, maintain_order=True)
        .agg(
            value.mean(),
            lowest=value.min(),
            highest=value.max(),
            rate=pl.col("rate").mean(),
            n_classifiers=pl.len(),
        )
        .filter(value != 0)
    )
    farthest = over.sort(*by, value.abs(), unit, descending=[False] * 4 + [True, False])
    return farthest.group_by(by, maintain_order=True).head(k)


def leave_one_out(
    tables: Iterable[GapTable], words: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each gap without each of its templates, and without each of its group's words.

    A template's part in a gap is that of `GapTable`: exact where every template has as many
    sentences of a group, and else to the first order.

    Parameters
    ----------
    tables: the gaps by run and template.
    words: schema.WORD_CELLS; groups with one word have no such row.

    Returns
    -------
    Columns of schema.ESTIMATES: the lowest and the highest such gap of each group, `condition`
    names what it is without, and `reason` the template or word without which the gap turns its
    sign or loses half of its size, if there is one.
    """
    by_word = _word_rates(words, metrics)
    rows: list[dict[str, object]] = []
    for table in tables:
        means_GT = table.values_GRT.mean(axis=1)
        gap_G, templates = means_GT.mean(axis=1), len(table.templates)
        members = int(table.in_mean_G.sum())
        for g, group in enumerate(table.groups):
            without: dict[str, tuple[Sequence[str], Doubles]] = {}
            if templates > 1:
                left_T = (templates * gap_G[g] - means_GT[g]) / (templates - 1)
                without["template"] = table.templates, left_T
            terms, change_W = by_word.get((*table.place, group), ((), np.empty(0)))
            if len(terms) > 1:
                # A group of the mean moves the mean too, by its share of it.
                share = 1 - 1 / members if table.in_mean_G[g] else 1.0
                without["word"] = terms, gap_G[g] + share * change_W
            for unit, (names, left) in without.items():
                ends = int(left.argmin()), int(left.argmax())
                # Nearest to the other sign, or beyond it.
                least = ends[0] if gap_G[g] > 0 else ends[1]
                carried = gap_G[g] != 0 and left[least] / gap_G[g] <= _HALF
                reason = f"{CARRIED}{names[least]}" if carried else None
                rows += [
                    {**table.names, "group": group, "statistic": "gap", "value": float(left[end]),
                     "condition": f"{WITHOUT}{unit} {names[end]}", "reason": reason}
                    for end in ends
                ]  # fmt: skip
    return from_rows(rows)


def _word_rates(
    words: pl.DataFrame, metrics: Sequence[str]
) -> dict[tuple[str, ...], tuple[Sequence[str], Doubles]]:
    """Compute how a group's rate over all runs changes without each of its words."""
    found: dict[tuple[str, ...], tuple[Sequence[str], Doubles]] = {}
    texts = without_extras(words)
    by = (*schema.KEYS, "attribute", "group")
    for score, share in shares(metrics).items():
        sums = texts.group_by(*by, "term").agg(*counted(share)).sort(*by, "term")
        for keys, part in sums.filter(pl.col("n_items") > 0).group_by(by, maintain_order=True):
            items, hits = part["n_items"].to_numpy(), part["hits"].to_numpy()
            if len(items) > 1:
                rates = (hits.sum() - hits) / (items.sum() - items)
                change = rates - hits.sum() / items.sum()
                *place, group = map(str, keys)
                found[(*place, score, group)] = (part["term"].to_list(), change)
    return found
