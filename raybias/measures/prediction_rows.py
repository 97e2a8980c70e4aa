"""Make rows of estimates from counts of predictions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from raybias import schema
from raybias.schema import ALL, TABLE
from raybias.stats.bootstrap import Resampled
from raybias.stats.breakdown import leave_one_out
from raybias.stats.checks import StatisticsWarning
from raybias.stats.counts import Counts, without_extras
from raybias.stats.gaps import FAMILIES, OUTSIDE, GapAnalysis, by_family
from raybias.stats.intervals import NO_ROWS, Rules, over_runs, reasons_of
from raybias.stats.metric import metrics, shares
from raybias.stats.metric_table import LESS_NOISE
from raybias.stats.null_check import null_check
from raybias.stats.over_models import model_tables, over_models, reliability
from raybias.stats.rate_intervals import share_ends
from raybias.stats.ratios import ratios
from raybias.stats.scopes import PLACE, every_scope
from raybias.stats.size_trends import gap_trends
from raybias.stats.units import UNITS

KIND: Final = "predictions"
#: The score of a classifier of which nothing can be concluded; `reason` says why.
WITHHELD: Final = "withheld"
_ITEMS: Final = "items"
#: How much intervals of each scope resample: items and clusters are in the place of sentences.
WIDTHS: Final[Mapping[str, int]] = {
    "runs": 0,
    "sentences": 1,
    **dict.fromkeys(UNITS, 1),
    "wording": 2,
}
#: The place of a row's scope among them; -1 of another scope.
WIDTH: Final = pl.col("scope").replace_strict(WIDTHS, default=-1, return_dtype=pl.Int64)
#: What names a quantity, whatever is drawn anew.
_QUANTITY: Final = ("kind", *schema.KEYS, "condition", "attribute", "group", "score", "statistic")
_ACROSS_MODELS: Final = tuple(name for name in schema.KEYS if name != "model")
_CLASSIFIER: Final = (*schema.KEYS, "attribute", "score")


def gap_rows(estimates: pl.DataFrame, scope: str | None = None) -> pl.DataFrame:
    """Select the gaps of groups under every scope, or one row each under `scope` (see `under`)."""
    found = estimates.filter(
        pl.col("kind") == KIND, pl.col("model") != ALL, pl.col("statistic") == "gap",
        pl.col("condition").is_in(["", OUTSIDE]), ~pl.col("scope").str.starts_with(FAMILIES),
    )  # fmt: skip
    return found if scope is None else under(found, [*WIDTHS], scope)


def under(estimates: pl.DataFrame, scopes: Sequence[str], scope: str) -> pl.DataFrame:
    """Select each quantity's estimate under a scope, or the widest narrower one of `scopes`."""
    order = {name: WIDTHS.get(name, place) for place, name in enumerate(scopes)}
    wide = pl.col("scope").replace_strict(order, default=-1, return_dtype=pl.Int64)
    families = pl.col("scope").str.starts_with(FAMILIES)
    found = estimates.filter(wide <= order.get(scope, len(order)))
    return found.filter(wide == wide.max().over(*_QUANTITY, families))


def no_wider(estimates: pl.DataFrame, scope: str) -> pl.DataFrame:
    """Leave out the estimates under wider scopes than `scope`, the one that decides."""
    width = WIDTHS.get(scope, max(WIDTHS.values()))
    return estimates.filter(pl.lit(width) >= WIDTH)


def of_gaps(found: GapAnalysis) -> Iterator[pl.DataFrame]:
    """Estimate the gaps of all groups and what stands beside them: columns of schema.ESTIMATES."""
    options = found.rules
    yield rate_rows(found)
    yield found.estimates
    yield unjudged(ratios(found.rate_tables, found.word_variances, options), found)
    if found.withheld is not None:
        yield found.withheld.with_columns(
            score=pl.lit(WITHHELD), statistic=pl.lit("score"), group=pl.lit(ALL)
        )
    placed = not found.counts.cells["template_id"].null_count()
    drawn = found.drawn if placed and shares(options.metrics) else None
    yield unjudged(spans(found.gaps, drawn), found)
    # Each model counts once, by whichever engines it was read.
    models = found.gaps.filter(~pl.col("model").is_in([*found.rules.engines]))
    if models.select(schema.KEYS).n_unique() > 1:
        yield extremes(models, drawn)
        yield net_significance(models)
    own = [each for each in found.judgeable if each.keys[0] not in found.rules.engines]
    together = [*model_tables(own)]
    words = without_extras(found.counts.words)
    yield over_models(together, words, options)
    yield gap_trends(together, options.sizes, level=options.level)
    yield reliability(found.judgeable, found.word_variances, together)
    yield null_check(found.judgeable, words, options)
    yield leave_one_out(found.tables, found.counts.words, options.metrics)
    yield found.of_terms
    yield found.marked.filter(pl.col("condition") != "gap")
    yield by_family(found.counts, found.rules)


def rate_rows(found: GapAnalysis) -> pl.DataFrame:
    """Estimate the rates of groups, with intervals within 0 and 1."""
    named = found.rates.with_columns(condition=pl.lit(""))
    over = over_runs(named, PLACE, n=pl.col("n_items").min())
    tables = [each.with_no_mean() for each in found.rate_tables]
    whole = every_scope(over, tables, found.word_variances, found.rules)
    if found.rules.interval != "normal":
        of_shares = share_ends(tables, found.word_variances, found.rules.level)
        whole = whole.update(of_shares, on=of_shares.columns[:-2], how="left")
    # Each has a row, under `runs` where no scope has an interval.
    has = pl.col("low").is_not_null()
    scoped = whole.filter(has | ((pl.col("scope") == "runs") & ~has.any().over(PLACE)))
    is_share = pl.col("score").is_in([*shares(metrics)])
    ends = pl.col("low", "high")
    return scoped.drop("p", "mde").with_columns(
        pl.when(is_share).then(ends.clip(0, 1)).otherwise(ends),
        statistic=pl.lit("rate"),
        reason=pl.when(is_share & pl.col("value").is_null()).then(pl.lit(NO_ROWS)),
    )


def unjudged(table: pl.DataFrame, found: GapAnalysis) -> pl.DataFrame:
    """Give the values of classifiers of which nothing is judged the reason, and no interval."""
    for frame in found.unable:
        why = pl.when(pl.col("value").is_not_null()).then(reasons_of(table, frame))
        ends = [name for name in ("low", "high", "p", "significant") if name in table.columns]
        table = table.with_columns(
            *(pl.when(why.is_null()).then(name) for name in ends), reason=pl.coalesce(why, "reason")
        )
    return table


def net_significance(gaps: pl.DataFrame) -> pl.DataFrame:
    """Count models with a significant gap, up minus down, of those judged (Tian2023, Table 1).

    There is no row where no gap is judged.
    """
    by = [*_ACROSS_MODELS, "attribute", "group", "score"]
    sign = pl.col("value").sign() * pl.col("survives")
    counted = gaps.group_by(by).agg(value=sign.sum(), units=pl.col("survives").count())
    return counted.filter(pl.col("units") > 0).sort(by).with_columns(
        pl.format("{}_net_significance", "score").alias("score"),
        model=pl.lit(ALL), statistic=pl.lit("score"),
    )  # fmt: skip


def spans(gaps: pl.DataFrame, drawn: Resampled | None) -> pl.DataFrame:
    """Subtract a model's smallest mean gap from its largest (Kohankhaki2024, Table 4).

    It is too large on average, so that `NAME_less_noise`, which is corrected, has the interval.
    `reason` names the groups that the mean leaves out.
    """
    outside = pl.col("group").filter(~pl.col("in_mean")).unique().sort().str.join(", ")
    inside = pl.col("value").filter("in_mean")
    spanning = gaps.group_by(_CLASSIFIER).agg(
        value=inside.max() - inside.min(),
        reason=pl.when((~pl.col("in_mean")).any()).then(pl.lit("leaves out ") + outside),
    )
    table = spanning.drop_nulls("value").sort(_CLASSIFIER).with_columns(
        group=pl.lit(ALL), statistic=pl.lit("difference"), condition=pl.lit("highest less lowest")
    )  # fmt: skip
    if drawn is None:
        return table
    # The interval is of what is left without the noise, which can all be below the raw value.
    judged = table.drop("value").join(
        drawn.spans.rename({"corrected": "value"}),
        on=_CLASSIFIER, how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    known = judged.filter(pl.col("value").is_not_nan()).with_columns(
        pl.col("score") + LESS_NOISE, scope=pl.lit(drawn.scope), reason=pl.lit(None, pl.String)
    )
    return pl.concat([table, known], how="diagonal")


def extremes(gaps: pl.DataFrame, drawn: Resampled | None) -> pl.DataFrame:
    """Compute how often each group is an extreme (Kohankhaki2024, section on the White group).

    `NAME_extreme` is the share of (model, method, dataset, probe) pairs in which its mean gap is
    the highest or lowest of the reference groups (ties share; not if all are equal).
    """
    by = ["attribute", "group", "score"]
    value = pl.col("value")
    inside = gaps.filter("in_mean", value.is_not_null())
    low, high = value.min().over(_CLASSIFIER), value.max().over(_CLASSIFIER)
    ends = [(value == end) & (low < high) for end in (low, high)]
    shared = pl.sum_horizontal((end / end.sum().over(_CLASSIFIER)).fill_nan(0) for end in ends)
    found = inside.with_columns(extreme=shared).group_by(by).agg(
        value=pl.col("extreme").sum() / pl.len(), n=pl.len().cast(pl.Int64)
    )  # fmt: skip
    if drawn is not None:
        # A group that is never an extreme can be one in most draws.
        low, high = pl.min_horizontal("low", "value"), pl.max_horizontal("high", "value")
        has = pl.col("low").is_not_null()
        found = found.join(drawn.extremes, on=by, how="left").with_columns(
            pl.when(has).then(low).alias("low"), pl.when(has).then(high).alias("high"),
            scope=pl.lit(drawn.scope),
        )  # fmt: skip
    return found.sort(by).with_columns(
        pl.format("{}_extreme", "score").alias("score"), model=pl.lit(ALL),
        statistic=pl.lit("rate"),
    )  # fmt: skip


def accuracy_rows(counts: Counts, rules: Rules, *, together: bool = True) -> pl.DataFrame:
    """Estimate the accuracy on each attribute over all groups, and its deviation between runs.

    The score `accuracy_sd` is the standard deviation over runs (ddof 1), which Kohankhaki2024
    prints with the mean (Tables 2 and 3); one run has none. Rows of the attribute `all` are over
    the sentences of all attributes of a probe, if it has several.

    together: whether attributes have sentences of their own; otherwise none are put together.
    """
    cells = without_extras(counts.cells).with_columns(group=pl.lit(ALL))
    parts = [*_accuracies(counts, cells, rules)]
    several = cells.filter(pl.col("attribute").n_unique().over("probe") > 1)
    if together and several.height:
        every = several.with_columns(attribute=pl.lit(ALL))
        # What there is to warn of was said of the attributes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StatisticsWarning)
            parts += _accuracies(counts, every, rules)
    return pl.concat(parts, how="diagonal_relaxed")


def _accuracies(counts: Counts, cells: pl.DataFrame, rules: Rules) -> Iterator[pl.DataFrame]:
    """Yield the accuracies of cells whose groups are one, and their deviations between runs."""
    attributes = cells["attribute"].unique().cast(pl.String)
    whole = {"metrics": ("accuracy",), "everywhere": dict.fromkeys(attributes, (ALL,))}
    everyone = rules.model_copy(update=whole)
    found = GapAnalysis(replace(counts, cells=cells, words=counts.words.clear()), everyone)
    yield rate_rows(found)
    over = over_runs(found.rates, (*TABLE, "group"), n=pl.col("n_items").min())
    yield over.drop_nulls("sd").with_columns(
        value="sd", score=pl.lit("accuracy_sd"), statistic=pl.lit("score"), scope=pl.lit("runs")
    )


def unread_rows(counts: Counts) -> pl.DataFrame:
    """Compute the share of answers that name no label."""
    return counts.answers.filter(run_id=ALL).with_columns(
        value="share", score=pl.lit("unread"), statistic=pl.lit("rate"), group=pl.lit(ALL),
        n="predictions",
    )  # fmt: skip


def with_items(found: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """Call what is drawn anew items, or clusters of rows, if no templates are known."""
    units = pl.col("template_id").cast(pl.String)
    begins = {scope: units.str.starts_with(begin).all() for scope, begin in UNITS.items()}
    blocks = cells.group_by(TABLE).agg(**begins).cast({pl.Categorical: pl.String})
    named = found.join(blocks, on=TABLE, how="left", nulls_equal=True, maintain_order="left")
    of_sentences = pl.col("scope") == "sentences"
    drawn = {scope: pl.col(scope).fill_null(blocks[scope].all()) & of_sentences for scope in UNITS}
    scopes = [pl.when(mine).then(pl.lit(scope)) for scope, mine in drawn.items()]
    return named.with_columns(
        scope=pl.coalesce(*scopes, "scope"),
        units=pl.when(drawn[_ITEMS]).then("n").otherwise("units"),
    ).drop(*UNITS)
