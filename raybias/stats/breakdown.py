"""Find which words and templates drive a gap, which one carries it, and what any mark does.

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
from raybias.schema import PLACEHOLDER, RUN_KEYS, TABLE, UNMARKED
from raybias.stats.components import ROUNDING, Doubles
from raybias.stats.count_arrays import CountArrays, count_arrays
from raybias.stats.counts import without_extras
from raybias.stats.intervals import from_rows, judged, over_runs, parametric, unrounded
from raybias.stats.metric import DEFAULT, counted_by
from raybias.stats.scopes import PLACE, GapTable, by_group, every_scope, members_of, one_scope
from raybias.stats.word_variance import WordVariance

#: Prefixes of `condition`: the gap of a word, and a gap without a template or a word.
WORD: Final = "word: "
WITHOUT: Final = "without "
#: Begins the reason of a gap without one of them that carries it.
CARRIED: Final = "carried by "
#: The effect (column `condition`) of a neutral word in the place of a group's.
NEUTRAL: Final = "neutral_effect"
#: Why an estimate has no verdict under `wording`.
NO_WORDS: Final = "no group with two known words"
_GAP: Final = "gap"
_RUN: Final = (*RUN_KEYS, "attribute", "score")
_TABLE: Final = (*TABLE, "score")
_GROUP: Final = ("probe", "attribute", "group")
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

    `terms` are schema.TERM_CELLS, `rates` those of `metric_rates` of the same predictions. Gives
    columns of schema.ESTIMATES under the scope `runs`, and `term`, `rate` (its own) and `sd`; `n`
    are the FP + TN sentences of a run (the fewest).
    """
    inside = rates.join(members, on=_GROUP, how="left", nulls_equal=True).filter("in_mean")
    mean = inside.group_by(_RUN).agg(mean=pl.col("value").mean())
    own = _unit_rates(terms.filter(pl.col("term") != ""), "term", rules.metrics)
    found = parametric(_gaps(own.join(mean, on=_RUN, nulls_equal=True), "term"), rules)
    # Counts of terms do not know their templates, nor those of words their runs.
    return judged(found.drop("mde", "equivalent"), rules, excluded).with_columns(
        statistic=pl.lit("gap"), scope=pl.lit("runs"), condition=pl.format(f"{WORD}{{}}", "term")
    )


def by_template(
    cells: pl.DataFrame, members: pl.DataFrame, metrics: Sequence[str] = DEFAULT
) -> pl.DataFrame:
    """Compute each group's rate on a template less its mean over the reference groups that have it.

    A template has too few sentences for an interval. Gives the keys, attribute, score, group,
    template_id, value, sd, units (runs), rate and n (FP + TN sentences of a run; the fewest).
    """
    known = cells.filter(pl.col("template_id").is_not_null()).cast({pl.String: pl.Categorical})
    own = _unit_rates(known, "template_id", metrics)
    mean = pl.col("rate").filter("in_mean").mean().over(*_RUN, "template_id")
    both = own.join(members, on=_GROUP, how="left", nulls_equal=True).with_columns(mean=mean)
    return _gaps(both.drop_nulls("mean"), "template_id")


def _unit_rates(cells: pl.DataFrame, unit: str, metrics: Sequence[str]) -> pl.DataFrame:
    """Compute a group's rates in each run by `unit`, where it has items that count."""
    counts = counted_by(without_extras(cells), [*RUN_KEYS, "attribute", "group", unit], metrics)
    known = counts.filter(pl.col("n_items") > 0).cast({pl.Categorical: pl.String})
    return known.with_columns(rate=pl.col("hits") / pl.col("n_items"))


def _gaps(per_run: pl.DataFrame, unit: str) -> pl.DataFrame:
    """Average over runs how far a unit's `rate` lies above the `mean` of its run."""
    table = per_run.with_columns(value=unrounded(pl.col("rate") - pl.col("mean")))
    by = (*_TABLE, "group", unit)
    return over_runs(table, by, pl.col("rate").mean(), n=pl.col("n_items").min())


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

    Where templates have unequal numbers of a group's sentences, a gap without one is right to the
    first order. Gives columns of schema.ESTIMATES: the lowest and the highest such gap of each
    group, `condition` names the template or word that is left out, and `reason` the one without
    which the gap turns its sign or loses half of its size.
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
            if (*table.place, group) in by_word:
                terms, change_W = by_word[*table.place, group]
                # Without a word of a group in the mean, the mean moves too, by 1 / members.
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
    by = [*TABLE, "score", "group"]
    sums = counted_by(without_extras(words), [*TABLE, "group", "term"], metrics).sort("term")
    for keys, part in sums.filter(pl.col("n_items") > 0).group_by(by, maintain_order=True):
        items, hits = part["n_items"].to_numpy(), part["hits"].to_numpy()
        if len(items) > 1:
            rates = (hits.sum() - hits) / (items.sum() - items)
            change = rates - hits.sum() / items.sum()
            found[*map(str, keys)] = (part["term"].to_list(), change)
    return found


def markedness(
    cells: pl.DataFrame,
    members: pl.DataFrame,
    words: Mapping[tuple[str, ...], WordVariance],
    rules: Statistics,
    excluded: Sequence[pl.DataFrame],
) -> pl.DataFrame:
    """Separate the effect of being marked at all from that of the group that is named.

    On the templates that have every form in every run: marking_effect is a group's rate minus the
    unmarked rate, neutral_effect the placeholder's rate minus the unmarked one, beyond_neutral a
    group's rate minus the placeholder's; and gap. A group without some of these templates is left
    out. Intervals of `wording` draw the words of the group that is named, and of a gap those of the
    groups in the mean; neutral words are never drawn.

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
    neutral = [table for table in effects if table.condition == NEUTRAL]
    of_groups = [table for table in effects if table.condition != NEUTRAL]
    of_sentences = "sentences" if rules.scope == "wording" else rules.scope
    chosen = pl.concat([
        one_scope(_every_scope(of_groups, words, rules), rules.scope),
        one_scope(_every_scope(neutral, {}, rules), of_sentences),
    ])  # fmt: skip
    unknown = chosen.filter(pl.col("low").is_null(), scope="wording")
    reasons = unknown.select(*PLACE, reason=pl.lit(NO_WORDS))
    return (
        judged(chosen, rules, [*excluded, reasons])
        .sort("model", "attribute", "score", "condition", "group", *schema.KEYS[1:])
        .with_columns(statistic=pl.lit("difference"))
        .drop("mde", "equivalent")
    )


def _every_scope(
    effects: Sequence[GapTable], words: Mapping[tuple[str, ...], WordVariance], rules: Statistics
) -> pl.DataFrame:
    # What a group is compared with has no words of its own, unless it is the mean of groups.
    tables = [each if each.condition == _GAP else each.with_no_mean() for each in effects]
    return every_scope(_over_runs(effects), tables, words, rules)


def _effects(counts: CountArrays, k: int, member: Mapping[str, bool]) -> Iterator[GapTable]:
    """Compare the forms by one metric on the templates that all of them have in every run."""
    there_GRT = counts.items_KGRT[k] > 0
    runs_R, there_G = there_GRT.any(axis=(0, 2)), there_GRT.any(axis=(1, 2))
    inside_G = np.array([member.get(group, False) for group in counts.groups]) & there_G
    needed_G = inside_G | (np.isin(counts.groups, schema.EXTRA_GROUPS) & there_G)
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
    inside = [group for group, own in zip(counts.groups, inside_G, strict=True) if own]
    named = [group for group in rates if group not in schema.EXTRA_GROUPS]
    templates = tuple(np.array(counts.templates)[whole_T].tolist())
    unmarked, placeholder = rates.get(UNMARKED), rates.get(PLACEHOLDER)
    neutral = [PLACEHOLDER] if placeholder is not None else []
    mean = np.mean([rates[group] for group in inside], axis=0) if inside else None
    for effect, groups, base_RT in (
        ("marking_effect", named, unmarked),
        (NEUTRAL, neutral, unmarked),
        ("beyond_neutral", named, placeholder),
        (_GAP, named, mean),
    ):
        if groups and base_RT is not None:
            values_GRT = np.stack([rates[group] - base_RT for group in groups])
            values_GRT[np.abs(values_GRT) < ROUNDING] = 0.0
            yield GapTable(counts.keys, counts.scores[k], tuple(groups), np.isin(groups, inside),
                           values_GRT, templates, effect)  # fmt: skip


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
