"""Make rows of estimates of what counts of predictions show.

A group's rate is how often it is called something, its gap that rate less the mean of the groups,
its ratio that rate by the rate of the most favoured group. What one row is about beside its group
stands in its `condition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.measures.kind import ALL
from raybias.stats.breakdown import by_term, leave_one_out
from raybias.stats.cells import without_extras
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.counts import Counts
from raybias.stats.gaps import GAP_KEYS, GapAnalysis
from raybias.stats.intervals import REFERENCE, over_runs, parametric
from raybias.stats.judging import GapRules, by_family, judgeable
from raybias.stats.markedness import markedness
from raybias.stats.metric import shares
from raybias.stats.metric_table import LESS_NOISE
from raybias.stats.metric_types import metrics
from raybias.stats.null_check import null_check
from raybias.stats.over_models import model_tables, over_models, reliability
from raybias.stats.plain_predictions import BLOCK
from raybias.stats.rates import rates as metric_rates
from raybias.stats.scopes import SCOPES, GapTable, estimate_columns
from raybias.stats.summaries import extremes, net_significance, spans

KIND: Final = "predictions"
#: Begins the condition of a ratio, before the group that the others are divided by.
BY: Final = "by "
#: Begin the condition of the gap of a word, and of a gap without a template or a word.
WORD: Final = "word: "
WITHOUT: Final = "without "
#: Begins the reason of a gap without one of them that carries it.
CARRIED: Final = "carried by "
#: The score of a classifier of which nothing can be concluded; `reason` says why.
WITHHELD: Final = "withheld"
#: What is drawn anew in the place of templates.
FAMILIES: Final = "families"
#: The condition of the gap of a group that is not in the mean.
OUTSIDE: Final = "not in the mean"
#: Begins the reason of a gap that is smaller than a margin.
SMALLER: Final = "smaller than the margin of "
_TYPES: Final = pl.Schema(schema.ESTIMATES)
_TABLE: Final = (*schema.KEYS, "attribute")
_PLACE: Final = (*_TABLE, "group", "score", "scope")
#: What SCOPES, OVER_MODELS and MARKEDNESS call the columns of estimates.
_NAMES: Final = {"rate": "score", "gap": "value", "estimate": "value", "p_value": "p",
                 "q_value": "q", "no_verdict": "reason"}  # fmt: skip
_ITEMS: Final = "items"
#: What names a quantity, whatever is drawn anew.
_QUANTITY: Final = ("kind", *schema.KEYS, "condition", "attribute", "group", "score", "statistic")


def complete(frame: pl.DataFrame) -> pl.DataFrame:
    """Give a frame every column of schema.ESTIMATES."""
    renamed = frame.rename({old: new for old, new in _NAMES.items() if old in frame.columns})
    missing = [
        pl.lit(None, t).alias(name) for name, t in _TYPES.items() if name not in renamed.columns
    ]
    whole = renamed.with_columns(missing).select(_TYPES.names()).cast(_TYPES).fill_nan(None)
    texts = [name for name, t in _TYPES.items() if t == pl.String and name != "reason"]
    return whole.with_columns(pl.col(texts).fill_null("")).with_columns(kind=pl.lit(KIND))


def gap_rows(estimates: pl.DataFrame, scope: str | None = None) -> pl.DataFrame:
    """Select the gaps of groups, under every scope, or one row each.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    scope: one of `Statistics.scope`; under it, or the widest narrower one that there is.
    """
    found = estimates.filter(
        pl.col("kind") == KIND, pl.col("model") != ALL, pl.col("statistic") == "gap",
        pl.col("condition").is_in(["", OUTSIDE]), ~pl.col("scope").str.starts_with(FAMILIES),
    )  # fmt: skip
    return found if scope is None else under(found, (*SCOPES, _ITEMS), scope)


def under(estimates: pl.DataFrame, scopes: Sequence[str], scope: str) -> pl.DataFrame:
    """Take of each quantity the estimate under a scope, or under the widest that there is.

    Parameters
    ----------
    scopes: of the estimates, narrowest first; others are the narrowest.
    """
    order = {name: place for place, name in enumerate(scopes)}
    wide = pl.col("scope").replace_strict(order, default=-1, return_dtype=pl.Int64)
    families = pl.col("scope").str.starts_with(FAMILIES)
    return (
        estimates.filter(wide <= order.get(scope, len(order)))
        .with_columns(widest=wide == wide.max().over(*_QUANTITY, families))
        .filter("widest")
        .drop("widest")
    )


def of_gaps(found: GapAnalysis, counts: Counts, rules: GapRules) -> Iterator[pl.DataFrame]:
    """Estimate the gaps of all groups and what stands beside them."""
    options = found.rules
    yield _rates(found)
    yield _gaps(found)
    yield _ratios(found)
    yield _withheld(found)
    yield from _extremes(found)
    apart = judgeable(found.tables, found.excluded)
    together = [*model_tables(apart)]
    how: dict[str, Any] = {"level": options.level, "adjust": options.adjust}
    yield _over_models(over_models(together, without_extras(counts.words), **how))
    yield _reliabilities(reliability(apart, found.word_variances, together))
    yield _null_checks(null_check(apart, found.word_variances, options))
    yield _left_out(leave_one_out(found.tables, counts.words, options.metrics))
    how |= {"interval": options.interval, "excluded": found.excluded}
    of_groups = metric_rates(without_extras(counts.cells), options.metrics)
    words = by_term(counts.terms, of_groups, found.inside, **how)
    yield words.with_columns(
        statistic=pl.lit("gap"), condition=pl.format(f"{WORD}{{}}", "term"), n="n_items",
        units="n_runs",
    )  # fmt: skip
    marks = markedness(
        counts.cells, found.inside, scope=options.scope, metrics=options.metrics, **how
    ).filter(pl.col("effect") != "gap")
    yield marks.with_columns(
        statistic=pl.lit("difference"), condition="effect",
        units=pl.when(scope="runs").then("n_runs").otherwise("n_templates"),
    )  # fmt: skip
    families = by_family(counts, rules)
    yield families.with_columns(
        statistic=pl.lit("gap"),
        scope=pl.when(scope="sentences").then(pl.lit(FAMILIES)).otherwise(
            pl.lit(f"{FAMILIES}, words")
        ),
    )  # fmt: skip


def _gaps(found: GapAnalysis) -> pl.DataFrame:
    """Give the gaps under every scope, and under that of the rules where there is no interval."""
    gaps, judged = found.gaps, found.scopes
    place = [*GAP_KEYS, "scope"]
    drawn = gaps.filter(interval="bootstrap") if found.rules.interval == "bootstrap" else gaps[:0]
    # No words are drawn: what is drawn instead has no wider scope.
    wider = drawn.with_columns(scope=pl.lit(SCOPES[-1]))
    kept = judged.join(drawn, on=place, how="anti", nulls_equal=True)
    kept = kept.join(wider, on=place, how="anti", nulls_equal=True)
    rest = gaps.join(kept, on=place, how="anti", nulls_equal=True)
    whole = pl.concat([kept, rest.select(kept.columns)])
    for sizes in (gaps.select(*GAP_KEYS, "n_items", "n_runs", "in_mean"), _sizes(found)):
        whole = whole.join(sizes, on=GAP_KEYS, how="left", nulls_equal=True, maintain_order="left")
    return _equivalent(whole, found.rules.margin).with_columns(
        statistic=pl.lit("gap"),
        condition=pl.when(~pl.col("in_mean")).then(pl.lit(OUTSIDE)),
        n="n_items",
        units=pl.when(scope="runs").then("n_runs").otherwise("templates"),
    )


def _equivalent(table: pl.DataFrame, margin: float | None) -> pl.DataFrame:
    """Say in `reason` which values are smaller than the margin."""
    if margin is None:
        return table
    said = pl.lit(f"{SMALLER}{margin:g}")
    smaller = pl.col("equivalent") & pl.col("no_verdict").is_null()
    return table.with_columns(no_verdict=pl.when(smaller).then(said).otherwise("no_verdict"))


def _sizes(found: GapAnalysis) -> pl.DataFrame:
    """How many templates each gap has: GAP_KEYS and `templates`."""
    rows = [
        (*table.keys[:-1], table.keys[-1], group, table.rate, table.values_GRT.shape[2])
        for table in found.tables
        for group in table.groups
    ]
    types = {**dict.fromkeys(GAP_KEYS, pl.String), "templates": pl.Int64}
    return pl.DataFrame(rows, types, orient="row")


def _rates(found: GapAnalysis) -> pl.DataFrame:
    """Give the rates of groups, with intervals within 0 and 1."""
    options = found.rules
    interval = "normal" if options.interval == "normal" else "t"
    n = pl.col("n_items").min()
    over = over_runs(found.rates, GAP_KEYS, n.alias("n"), value="value")
    under_runs = parametric(over, value="value", interval=interval, level=options.level)
    parts = [under_runs.with_columns(scope=pl.lit("runs"), units="n_runs")]
    sizes = over.select(*GAP_KEYS, "n")
    rows: list[dict[str, Any]] = []
    for table in found.rate_tables:
        words = found.word_variances.get((*table.keys, table.rate))
        none = replace(table, in_mean_G=np.zeros_like(table.in_mean_G))
        rows += _rows(none, none.estimates(words), found)
    if rows:
        wide = pl.DataFrame(rows, infer_schema_length=None).filter(pl.col("scope") != "runs")
        parts.append(wide.join(sizes, on=GAP_KEYS, how="left", nulls_equal=True))
    whole = pl.concat(map(complete, parts))
    scoped = whole.filter(
        pl.col("low").is_not_null() | (pl.len().over(*_TABLE, "group", "score") == 1)
    )
    shares = pl.col("score").is_in([n for n, entry in metrics.items() if entry.share is not None])
    ends = [pl.when(shares).then(pl.col(end).clip(0, 1)).otherwise(end) for end in ("low", "high")]
    return scoped.with_columns(*ends, statistic=pl.lit("rate"), p=None)


def _rows(
    table: GapTable, found: Mapping[Any, MeanEstimate], analysis: GapAnalysis
) -> Iterator[dict[str, Any]]:
    """Yield a row per group and scope of a table."""
    names = {**dict(zip(_TABLE, table.keys, strict=True)), "rate": table.rate}
    normal = analysis.rules.interval == "normal"
    for scope, estimate in found.items():
        ends = estimate_columns(estimate, level=analysis.rules.level, margin=None, normal=normal)
        units = table.values_GRT.shape[1 if scope == "runs" else 2]
        for g, group in enumerate(table.groups):
            yield {**names, "group": group, "scope": scope, "value": float(estimate.mean[g]),
                   **{name: float(ends[name][g]) for name in ("low", "high", "p_value")},
                   "units": units}  # fmt: skip


def _ratios(found: GapAnalysis) -> pl.DataFrame:
    """Divide each group's rate by that of the most favoured group.

    Intervals are of the logarithm, linearised, so that none leaves the possible range. The most
    favoured group is chosen from the same data, which makes ratios somewhat extreme.
    """
    rows: list[dict[str, Any]] = []
    for table in found.rate_tables:
        rates_G: Doubles = table.values_GRT.mean(axis=(1, 2))
        effect = metrics[table.rate].above
        if len(table.groups) < 2 or not effect:
            continue
        best = int(rates_G.argmax() if effect == "benefit" else rates_G.argmin())
        names = {**dict(zip(_TABLE, table.keys, strict=True)), "rate": table.rate,
                 "condition": f"{BY}{table.groups[best]}"}  # fmt: skip
        known = rates_G > 0
        if known[best]:
            with np.errstate(divide="ignore", invalid="ignore"):
                parts_GRT = table.values_GRT / rates_G[:, None, None]
                logs_G = np.log(rates_G / rates_G[best])
            compared = replace(
                table, values_GRT=parts_GRT - parts_GRT[best] + logs_G[:, None, None]
            )
            kept = np.flatnonzero(known & (np.arange(len(known)) != best))
            some = replace(
                compared, values_GRT=compared.values_GRT[kept], in_mean_G=table.in_mean_G[kept],
                groups=tuple(table.groups[g] for g in kept),
            )  # fmt: skip
            for row in _rows(some, some.estimates(None), found) if len(kept) else ():
                ends = {name: float(np.exp(row[name])) for name in ("value", "low", "high")}
                rows.append({**row, **names, **ends})
        without = [g for g in range(len(known)) if g == best or not known[g] or not known[best]]
        for g in without:
            reason = REFERENCE if g == best else "a rate is 0"
            value = 1.0 if g == best else 0.0 if known[best] else None
            rows.append({**names, "group": table.groups[g], "scope": "", "value": value,
                         "reason": reason})  # fmt: skip
    found_rows = complete(pl.DataFrame(rows, infer_schema_length=None))
    return found_rows.with_columns(
        statistic=pl.lit("ratio"), significant=pl.col("p") < 1 - found.rules.level
    )


def _withheld(found: GapAnalysis) -> pl.DataFrame:
    """Name the classifiers of which nothing can be concluded, and why; some rules judge them."""
    withheld = pl.DataFrame() if found.withheld is None else found.withheld
    return withheld.with_columns(
        score=pl.lit(WITHHELD), statistic=pl.lit("score"), group=pl.lit(ALL)
    )


def _extremes(found: GapAnalysis) -> Iterator[pl.DataFrame]:
    """Give spans, how often a group is an extreme, and in how many models more than not."""
    outside = found.inside.filter(~pl.col("in_mean")).group_by("probe", "attribute").agg(
        reason=pl.lit("leaves out ") + pl.col("group").sort().str.join(", ")
    )  # fmt: skip
    spanning, extreme = spans(found.gaps), extremes(found.gaps)
    placed = not found.cells["template_id"].null_count()
    drawn = found.drawn if placed and shares(found.rules.metrics) else None
    if drawn is not None:
        on = [*schema.KEYS, "attribute", "rate"]
        spanning = spanning.join(
            drawn.spans, on=on, how="left", nulls_equal=True, maintain_order="left"
        )
        extreme = extreme.join(
            drawn.extremes, on=["attribute", "group", "rate"], how="left", maintain_order="left"
        )
    scope = pl.lit("" if drawn is None else found.drawn_scope)
    spanned = spanning.join(
        outside, on=["probe", "attribute"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(
        value="span", group=pl.lit(ALL), statistic=pl.lit("difference"), scope=scope,
        condition=pl.lit("highest less lowest"),
    )  # fmt: skip
    yield spanned
    if drawn is not None:
        yield spanned.drop("low", "high", "reason").with_columns(
            value="corrected", rate=pl.col("rate") + LESS_NOISE, scope=pl.lit("")
        )
    if found.gaps.select(schema.KEYS).n_unique() < 2:
        return
    yield extreme.with_columns(
        model=pl.lit(ALL), score=pl.format("{}_extreme", "rate"), statistic=pl.lit("rate"),
        value="share", scope=scope, n="n_pairs",
    ).drop("rate")  # fmt: skip
    yield net_significance(found.gaps).with_columns(
        model=pl.lit(ALL), score=pl.format("{}_net_significance", "rate"),
        statistic=pl.lit("score"), value="net", units="n_models",
    ).drop("rate")  # fmt: skip


def _over_models(table: pl.DataFrame) -> pl.DataFrame:
    """Give the mean gaps over models, and in how many a group is the lowest or highest."""
    means = table.with_columns(model=pl.lit(ALL), statistic=pl.lit("gap"), units="n_models")
    once = means.unique([*GAP_KEYS], keep="first", maintain_order=True)
    ends = [
        once.select(
            *GAP_KEYS[:-1], "units", score=pl.format(f"{{}}_{end}_in_models", "rate"),
            statistic=pl.lit("score"), value=f"n_{end}", p=f"p_{end}",
        )
        for end in ("lowest", "highest")
    ]  # fmt: skip
    return pl.concat(map(complete, [means, *ends]))


def _reliabilities(table: pl.DataFrame) -> pl.DataFrame:
    """Give how far rankings of groups and of models would come out again."""
    return table.drop("rate").with_columns(
        value="reliability", score=pl.format("{}_reliability", table["rate"]), n="n_ranked",
        statistic=pl.lit("score"), condition=pl.format("ranking of {}", "ranking"),
        group=pl.col("group").replace("", ALL),
    )  # fmt: skip


def _null_checks(table: pl.DataFrame) -> pl.DataFrame:
    """Give what each rule finds in meaningless group labels."""
    parts = [
        table.with_columns(
            value=name, score=pl.lit(f"meaningless_{name}"), statistic=pl.lit("rate"),
            model=pl.lit(ALL), group=pl.lit(ALL), n="gaps", units="shuffles",
            reason=pl.format("{} expected, by {}", pl.col("expected").round(3), "interval"),
        )
        for name in ("flagged", "with_survivor")
    ]  # fmt: skip
    return pl.concat(map(complete, parts))


def _left_out(table: pl.DataFrame) -> pl.DataFrame:
    """Give the lowest and the highest that each gap is without a template or a word."""
    parts = [
        table.with_columns(
            gap=end, statistic=pl.lit("gap"),
            condition=pl.format(f"{WITHOUT}{{}} {{}}", "unit", f"{end}_without"),
            no_verdict=pl.format(f"{CARRIED}{{}}", "carried_by"),
        )
        for end in ("lowest", "highest")
    ]  # fmt: skip
    return pl.concat(map(complete, parts))


def accuracy_rows(counts: Counts, rules: Statistics) -> pl.DataFrame:
    """Give the accuracy on each attribute, over all groups."""
    cells = without_extras(counts.cells).with_columns(group=pl.lit(ALL))
    options = rules.model_copy(update={"metrics": ("accuracy",)})
    return _rates(GapAnalysis(cells, options, lambda *_: (ALL,)))


def unread_rows(counts: Counts) -> pl.DataFrame:
    """Give the share of answers that name no label."""
    whole = counts.answers.filter(run_id=ALL)
    return whole.with_columns(
        value="share", score=pl.lit("unread"), statistic=pl.lit("rate"), group=pl.lit(ALL),
        n="predictions",
    )  # fmt: skip


def with_items(found: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """Call what is drawn anew items, where no templates are known."""
    blocks = cells.group_by(_TABLE).agg(
        pl.col("template_id").cast(pl.String).str.starts_with(BLOCK).all().alias("blocks")
    )  # fmt: skip
    on = [pl.col(name) for name in _TABLE]
    named = found.join(
        blocks.cast({pl.Categorical: pl.String}), on=on, how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    of_items = pl.col("blocks").fill_null(blocks["blocks"].all()) & (pl.col("scope") == "sentences")
    return named.with_columns(
        scope=pl.when(of_items).then(pl.lit(_ITEMS)).otherwise("scope"),
        units=pl.when(of_items).then("n").otherwise("units"),
    ).drop("blocks")  # fmt: skip
