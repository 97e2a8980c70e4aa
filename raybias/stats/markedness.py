"""Markedness: what naming any group does to a rate, and how often a corpus names each group.

Source: raybias's own; Kohankhaki2024 conjectures that groups which are rarely named read as
unmarked. Templates that also come without their group
term (group `unmarked`) and with a neutral word in its place (group `placeholder`) are
compared within each run. Every template has the same weight, so that groups with
many terms, and forms with one, are comparable. A rank correlation with how often a corpus names
the handful of groups of an attribute is weak evidence, and its interval says so.

Shapes: G groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias import schema
from raybias.config import Statistics
from raybias.errors import DataError
from raybias.schema import PLACEHOLDER, UNMARKED
from raybias.seeding import generator
from raybias.stats.arrays import CountArrays, count_arrays
from raybias.stats.cells import without_extras
from raybias.stats.components import Doubles
from raybias.stats.intervals import ROUNDING, judged
from raybias.stats.scopes import PLACE, GapTable, every_scope, members_of, one_scope

#: Fewer groups than this have no rank correlation worth the name.
_FEWEST: Final = 4
_BY: Final = (*schema.KEYS, "attribute", "score", "effect")
_COLUMNS: Final = pl.Schema(
    {
        **dict.fromkeys(_BY, pl.String),
        "rho": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "p": pl.Float64,
        "n_groups": pl.Int64,
    }
)


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


def marked_rates(corpus: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Compute the share of the probe's nouns in a corpus that each group's terms modify.

    Parameters
    ----------
    corpus: schema.CORPUS.
    where: its place, for messages.

    Returns
    -------
    attribute, group, marked (occurrences with one of the group's terms), nouns (all of the
    attribute's) and marked_rate; null where the corpus has none of the nouns.

    Raises
    ------
    DataError: negative or missing counts.
    """
    bad = corpus.filter(pl.any_horizontal(pl.all().is_null(), pl.col("marked", "bare") < 0))
    if bad.height:
        row = bad.row(0, named=True)
        raise DataError(
            f"{row['group']!r}, {row['term']!r}, {row['noun']!r} has no or negative counts",
            where=where,
            cure="count it again with `raybias probes corpus`",
        )
    bare = corpus.group_by("attribute", "noun").agg(pl.col("bare").max())
    nouns = (
        corpus.group_by("attribute")
        .agg(pl.col("marked").sum())
        .join(bare.group_by("attribute").agg(pl.col("bare").sum()), on="attribute")
        .select("attribute", nouns=pl.col("marked") + pl.col("bare"))
    )
    return (
        corpus.group_by("attribute", "group")
        .agg(pl.col("marked").sum())
        .join(nouns, on="attribute")
        .with_columns(
            marked_rate=pl.when(pl.col("nouns") > 0).then(pl.col("marked") / pl.col("nouns"))
        )
        .sort("attribute", "group")
    )


def corpus_correlations(
    rates: pl.DataFrame,
    gaps: pl.DataFrame,
    markedness: pl.DataFrame,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> pl.DataFrame:
    """Correlate corpus markedness with gaps and marking effects (Spearman's rank correlation).

    Over the groups of an attribute that the corpus knows, with a permutation p value (exact
    for seven groups and fewer) and a percentile interval of groups drawn anew.

    Parameters
    ----------
    rates: of `marked_rates`.
    gaps, markedness: of `GapAnalysis`; their means over runs are used.

    Returns
    -------
    The keys, attribute, score, effect (gap or marking_effect), rho, low, high, p, n_groups. Fewer
    than four groups, or equal values throughout, have no correlation.
    """
    of_gaps = gaps.with_columns(effect=pl.lit("gap"))
    marking = without_extras(markedness).filter(condition="marking_effect")
    columns = [*_BY, "group", "value"]
    marking = marking.rename({"condition": "effect"}).select(columns)
    values = pl.concat([of_gaps.select(columns), marking]).drop_nulls("value")
    known = rates.drop_nulls("marked_rate").select("attribute", "group", "marked_rate")
    joined = values.join(known, on=["attribute", "group"]).sort(*_BY, "group")
    rows = list(_correlated(joined, level, draws, seed))
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


def _correlated(
    joined: pl.DataFrame, level: float, draws: int, seed: int
) -> Iterator[tuple[Any, ...]]:
    for key, part in joined.group_by(_BY, maintain_order=True):
        pair = part.select("marked_rate", "value").to_numpy().T
        if part.height < _FEWEST or np.ptp(pair, axis=1).min() == 0:
            continue
        name = tuple(map(str, key))
        rho, p_value = _tested(pair, generator(seed, "permutation", *name))
        ends = _interval(pair, level, draws, generator(seed, "groups", *name))
        yield (*key, rho, *ends, p_value, part.height)


def _tested(pair: Doubles, random: np.random.Generator) -> tuple[float, float]:
    left, right = stats.rankdata(pair, axis=1)

    def rho(permuted: Doubles, axis: int) -> Doubles:
        return _pearson(permuted, np.broadcast_to(right, permuted.shape))

    found = stats.permutation_test(
        (left,), rho, permutation_type="pairings", vectorized=True, n_resamples=9999, rng=random
    )
    return float(found.statistic), float(found.pvalue)


def _interval(
    pair: Doubles, level: float, draws: int, random: np.random.Generator
) -> tuple[float, float]:
    chosen_DN = random.integers(0, pair.shape[1], (draws, pair.shape[1]))
    rhos = _pearson(*(stats.rankdata(values[chosen_DN], axis=1) for values in pair))
    known = rhos[~np.isnan(rhos)]
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _pearson(left: Doubles, right: Doubles) -> Doubles:
    """Compute the correlation along the last axis; NaN where one side does not vary."""
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in (left, right))
    size = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Doubles = (x * y).sum(axis=-1) / size
    return found
