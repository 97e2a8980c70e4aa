"""Find which words and templates drive a gap, which one carries it, and what any mark does.

A group's gap is the mean of its terms' gaps, weighted by their sentences, and on templates alike.

Markedness (raybias's own) is the effect of naming any group at all: templates are compared within
each run with their forms without a group term (group `unmarked`) and with a neutral word in its
place (group `placeholder`). Every template has the same weight.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.schema import PLACEHOLDER, UNMARKED
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, from_rows, judged, over_runs, parametric, unrounded
from raybias.stats.metric import DEFAULT, CountArrays, count_arrays, counted, shares
from raybias.stats.scopes import PLACE, GapTable, by_group, every_scope, members_of, one_scope

#: Begins the condition of the gap of a word, and of a gap without a template or a word.
WORD: Final = "word: "
WITHOUT: Final = "without "
#: Begins the reason of a gap without one of them that carries it.
CARRIED: Final = "carried by "
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
    excluded: Sequence[pl.DataFrame],
) -> pl.DataFrame:
    """Compute each term's rate minus the mean over reference groups in the same run.

    `terms` are schema.TERM_CELLS, `rates` those of `metric.rates` on the same predictions. Gives
    columns of schema.ESTIMATES under the scope `runs`, and `term`, `rate` (its own) and `sd`; `n`
    are the FP + TN sentences of a run (the fewest).
    """
    terms = without_extras(terms).filter(pl.col("term") != "").cast({pl.Categorical: pl.String})
    keys = ["probe", "attribute", "group"]
    inside = rates.join(members, on=keys, how="left", nulls_equal=True).filter("in_mean")
    mean = inside.group_by(_RUN).agg(mean=pl.col("value").mean())
    by = [*RUN_KEYS, "attribute", "group", "term"]
    tables = [
        terms.filter(share.among).group_by(by).agg(*counted(share), score=pl.lit(score))
        for score, share in shares(rates["score"].unique().sort()).items()
    ]
    nothing = terms.clear().select(*by, n_items="n", hits="n", score=pl.lit(""))
    rate = pl.col("hits") / pl.col("n_items")
    per_run = (
        pl.concat([nothing, *tables])
        .join(mean, on=_RUN, nulls_equal=True)
        .with_columns(rate=rate, value=unrounded(rate - pl.col("mean")))
    )
    over = over_runs(
        per_run, (*_TABLE, "group", "term"), pl.col("rate").mean(), n=pl.col("n_items").min()
    )
    found = parametric(over, rules).drop("mde", "equivalent")
    # Counts of terms do not know their templates, nor those of words their runs.
    return judged(found, rules, excluded).with_columns(
        statistic=pl.lit("gap"), scope=pl.lit("runs"), condition=pl.format(f"{WORD}{{}}", "term")
    )


def by_template(
    cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each group's rate on a template less its mean over the reference groups that have it.

    There is no interval: a template has few sentences, and their rates often agree over runs. Gives
    the keys, attribute, score, group, template_id, value, sd, units (runs), rate and n (FP + TN
    sentences of a run; the fewest).
    """
    known = without_extras(cells).filter(pl.col("template_id").is_not_null())
    floats = dict.fromkeys(("value", "sd", "rate"), pl.Float64)
    types = {**dict.fromkeys(_TEMPLATE, pl.String), **floats, "units": pl.Int64, "n": pl.Int64}
    names = (*_TEMPLATE, "value", "sd", "units", "rate", "n")
    parts = [
        _template_gaps(counts, k, members_of(counts, members)).select(names)
        for counts in count_arrays(known, metrics)
        for k in range(len(counts.scores))
    ]
    nothing = pl.DataFrame(schema=types).select(names)
    return pl.concat([nothing, *(part.cast(nothing.schema) for part in parts)]).sort(_TEMPLATE)


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

    `table` is of `by_term` or `by_template`, and `unit` its column of these. Gaps of several
    classifiers of a probe are averaged, with the `lowest` and `highest` of a classifier, `rate` and
    `n_classifiers`.
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

    Without a template a gap is exact where every template has as many sentences of a group, and
    else right to the first order. Gives columns of schema.ESTIMATES: the lowest and the highest
    such gap of each group, `condition` names the template or word that is left out, and `reason`
    the one without which the gap turns its sign or loses half of its size.
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


def markedness(
    cells: pl.DataFrame,
    members: pl.DataFrame,
    rules: Statistics,
    excluded: Sequence[pl.DataFrame],
) -> pl.DataFrame:
    """Separate the effect of being marked at all from that of the group that is named.

    On the templates that have every form in every run: marking_effect is a group's rate minus the
    unmarked rate, neutral_effect the placeholder's rate minus the unmarked one, beyond_neutral a
    group's rate minus the placeholder's; and gap. A group without some of these templates is left
    out. Words are not resampled: intervals of wording are those of sentences.

    Gives columns of schema.ESTIMATES under the rules' scope, a row for each effect, which is the
    `condition`; also `in_mean`, `runs`, `templates`, and `sd` over runs.
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
    rows: list[Mapping[str, Any]] = []
    for table in effects:
        runs_GR = table.values_GRT.mean(axis=2)
        _, runs, templates = table.values_GRT.shape
        sd_G = runs_GR.std(axis=1, ddof=1) if runs > 1 else np.full(len(runs_GR), np.nan)
        names = {**table.names, "units": runs, "runs": runs, "templates": templates}
        columns = {"in_mean": table.in_mean_G, "value": runs_GR.mean(axis=1), "sd": sd_G}
        rows += by_group(names, table.groups, columns)
    types = {
        **dict.fromkeys(PLACE, pl.String), **dict.fromkeys(("value", "sd"), pl.Float64),
        **dict.fromkeys(("units", "runs", "templates"), pl.Int64), "in_mean": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, types).fill_nan(None)
