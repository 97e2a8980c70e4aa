"""Make rows of estimates of tables with more than two classes, each measured on its own.

Rates and gaps of a class are those that the class alone has (`--positive`); tests of all classes
and groups of one rate are corrected together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.measures.prediction_rows import KIND, of_gaps, rate_rows, unjudged
from raybias.schema import ALL, TABLE
from raybias.stats.checks import StatisticsWarning, warn
from raybias.stats.class_contrasts import ClassSummary, Recalls, lay_out_recalls, summaries
from raybias.stats.class_counts import by_class, recalls_by_unit, without_class
from raybias.stats.gaps import OUTSIDE, GapAnalysis
from raybias.stats.intervals import FAMILY, Rules, correct_within, estimates, from_rows
from raybias.stats.metric import metrics
from raybias.stats.metric_files import counts_by_unit
from raybias.stats.metric_table import LESS_NOISE
from raybias.stats.predictions import Source

#: Default metrics of a table that is measured by class.
OF_CLASSES: Final = ("tpr", "fpr", "accuracy", "rms_tpr_gap", "range_tpr_gap", "error_share")
#: Begins the condition of what belongs to one class, before its name.
CLASS: Final = "class "
#: Begins the condition of what sums classes up, before their number.
OVER: Final = "over "
#: The share of each class among the wrong answers, which is a rate of no single class's rows.
ERROR_SHARE: Final = "error_share"
#: Draws of statistics that are no means, of files that may have many examples.
DRAWS: Final = 2_000
#: Rows of expanded counts at once.
_ROWS: Final = 2_000_000
#: Classes and groups that a warning names.
_NAMED: Final = 5


def class_estimates(
    files: Sequence[Source],
    analysis: GapAnalysis,
    classes: Sequence[str],
    wanted: Sequence[str],
    background: str,
) -> Iterator[pl.DataFrame]:
    """Estimate the metrics of a table that is measured by class: columns of schema.ESTIMATES.

    Parameters
    ----------
    files: where the rows can be read again, if their templates are not known.
    analysis: of the gaps of the table's accuracy.
    classes: names of the classes, in the order of their numbers.
    wanted: names of metrics.
    background: what the gaps are taken from, for `condition`; empty for the mean of the groups.

    `condition` of a rate or gap is `class NAME`, and of a summary `over N classes`.
    """
    rules = analysis.rules
    rates = [name for name in wanted if metrics[name].share is not None and name != "accuracy"]
    sums = [name for name in wanted if metrics[name].of == "classes"]
    if rates:
        by_rate = rules.model_copy(update={"metrics": tuple(rates)})
        rows = pl.concat(_rates_and_gaps(analysis, len(classes), by_rate))
        named = _with_names(rows, classes, rates, background)
        _warn_of_undefined(named.filter(score=rates[0], statistic="rate"))
        tested = pl.col("q").is_not_null()
        yield correct_within(named, (*FAMILY, "scope"), tested, rules)
    if "accuracy" in wanted:
        yield from of_gaps(analysis)
    if sums:
        summed = _summary_rows(files, analysis, len(classes))
        yield unjudged(summed.filter(pl.col("score").str.contains_any(sums)), analysis)


def class_of(condition: str) -> str:
    """Return the name of the class that a condition of rates and gaps begins with."""
    return condition.removeprefix(CLASS).removesuffix(f", {OUTSIDE}")


def _rates_and_gaps(analysis: GapAnalysis, classes: int, rules: Rules) -> Iterator[pl.DataFrame]:
    """Estimate the rates and gaps of all classes; `dataset` begins with the class's number."""
    counts = analysis.counts
    units = counts.cells.select(pl.exclude("label", "pred", "n")).n_unique()
    step = max(1, _ROWS // units)
    for start in range(0, classes, step):
        some = range(start, min(classes, start + step))
        expanded = replace(
            counts,
            cells=by_class(counts.cells, some),
            words=by_class(counts.words, some),
            terms=counts.terms.clear(),
            families=counts.families.clear(),
        )
        withheld = _withheld_by_class(analysis, expanded.cells)
        with warnings.catch_warnings():
            # Of each class anew: the analysis of the accuracy has said it of the whole table.
            warnings.simplefilter("ignore", StatisticsWarning)
            of_classes = GapAnalysis(expanded, rules, withheld)
            yield estimates(rate_rows(of_classes), KIND)
            yield estimates(of_classes.estimates, KIND)


def _withheld_by_class(analysis: GapAnalysis, expanded: pl.DataFrame) -> pl.DataFrame | None:
    """Repeat the classifiers that have no verdict for each class; None if there is no such list."""
    if analysis.withheld is None:
        return None
    marked = expanded.select(schema.KEYS).unique().cast(pl.String)
    plain = without_class(marked.with_columns(marked="dataset"))
    joined = plain.join(analysis.withheld, on=schema.KEYS, nulls_equal=True)
    return joined.with_columns(dataset="marked").select(*schema.KEYS, "reason")


def _with_names(
    rows: pl.DataFrame, classes: Sequence[str], rates: Sequence[str], background: str
) -> pl.DataFrame:
    """Name the class of each row in `condition`, and sort the rows by rate, class and group."""
    names = pl.Series(classes, dtype=pl.String)
    parted = without_class(rows)
    plain_gap = (pl.col("condition") == "") & (pl.col("statistic") == "gap")
    rest = pl.when(plain_gap).then(pl.lit(background)).otherwise("condition").fill_null("")
    name = pl.lit(CLASS) + names[parted["code"]]
    named = parted.with_columns(
        condition=pl.when(rest == "").then(name).otherwise(name + pl.lit(", ") + rest)
    )
    order = (*schema.KEYS, "attribute", pl.col("score").cast(pl.Enum(rates)), "code", "group")
    return named.sort(order, maintain_order=True).drop("code")


def _warn_of_undefined(rates: pl.DataFrame) -> None:
    """Name the classes of which a group has no rows."""
    lacking = rates.filter(pl.col("value").is_null())
    if lacking.is_empty():
        return
    pairs = lacking.select("condition", "group").unique(maintain_order=True)
    first = [f"{name.removeprefix(CLASS)} ({group})" for name, group in pairs.head(_NAMED).rows()]
    more = f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
    warn(
        f"{rates['score'][0]} is not defined for {', '.join(first)}{more}: the group has no rows "
        "that count; it leaves the mean of the class"
    )


def _summary_rows(files: Sequence[Source], analysis: GapAnalysis, classes: int) -> pl.DataFrame:
    """Sum the recall gaps of classes up: rows for each group and for all."""
    counts = recalls_by_unit(counts_by_unit(files, analysis.counts.cells))
    rules = analysis.rules.model_copy(update={"bootstrap_draws": DRAWS})
    rows: list[dict[str, Any]] = []
    for recalls in lay_out_recalls(counts, analysis.inside, classes):
        for summary in summaries(recalls, rules):
            rows += _rows_of(recalls, summary)
    return from_rows(rows)


def _rows_of(recalls: Recalls, summary: ClassSummary) -> Iterator[dict[str, Any]]:
    """Yield the row of a summary, and that of the summary less noise."""
    rows_G, group = recalls.rows_G, summary.group
    row: dict[str, Any] = {
        **dict(zip(TABLE, recalls.keys, strict=True)),
        "score": summary.name,
        "statistic": "score",
        "condition": f"{OVER}{summary.classes} class{'' if summary.classes == 1 else 'es'}",
        "group": ALL if group is None else recalls.groups[group],
        "value": summary.value,
        "n": int(rows_G.sum() if group is None else rows_G[group]),
        "units": recalls.items_TRGK.shape[0],
    }
    varies = summary.low is not None
    reason = None if varies else "does not vary over what could be drawn"
    scope = recalls.scope if varies else ""
    yield {**row, "low": summary.low, "high": summary.high, "scope": scope, "reason": reason}
    if summary.less_noise is not None:
        yield {**row, "score": f"{summary.name}{LESS_NOISE}", "value": summary.less_noise}
