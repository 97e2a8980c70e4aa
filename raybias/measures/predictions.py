"""Measure predictions: read and count them once, and estimate what was asked for.

Predictions are too many to be held as one table, so they are counted while they are read
(`stats.counts`), and every estimate is made of counts (`prediction_rows`). Without templates,
blocks of items are what is drawn anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import ConfigError
from raybias.measures.kind import ALL
from raybias.measures.prediction_rows import (
    accuracy_rows,
    complete,
    of_gaps,
    unread_rows,
    with_items,
)
from raybias.stats.agreement import agreement
from raybias.stats.cells import without_extras
from raybias.stats.counts import Counts, count_files
from raybias.stats.gaps import GapAnalysis
from raybias.stats.judging import GapRules, gap_analysis
from raybias.stats.metric import check_names, contrasts
from raybias.stats.metric_files import as_class, metric_rows, metrics_of_cells, metrics_of_files
from raybias.stats.metric_table import DEFAULT_BACKGROUND, MetricRules
from raybias.stats.metric_types import BACKGROUNDS, metrics
from raybias.stats.predictions import Source
from raybias.stats.reference_groups import StatisticsWarning, membership

#: What is measured of labels of two classes, where nothing else is asked for.
OF_TWO_CLASSES: Final = ("selection_rate", "tpr", "fpr")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be measured of predictions, and by which rules."""

    rules: GapRules
    metrics: Sequence[str] = ()
    """Names; `all` is every one that the files allow. By default those of the rules, or
    `OF_TWO_CLASSES`."""
    positive: int | None = None
    """The class that metrics of one class are about; by default the last."""
    background: str = ""
    """What groups are compared with, one of BACKGROUNDS, instead of each metric's own."""
    sentiment: bool = False
    """Whether labels are known to be schema.Label, also where no third one occurs."""


def measure_predictions(files: Sequence[Source], asked: Asked) -> pl.DataFrame:
    """Estimate rates, gaps, ratios and metrics of predictions: schema.ESTIMATES.

    Gaps are judged under every scope that the design allows, each with its own correction for many
    tests. A classifier that cannot do its task has estimates and no verdict.

    Parameters
    ----------
    files: of predictions, as of `stats.sources`.

    Raises
    ------
    DataError: a malformed file, or a metric of scores or source examples where there are none.
    ConfigError: no such metric, class, background or group.
    """
    asked_for = [name for name in asked.metrics if name != ALL]
    check_names(asked_for)
    where = ", ".join(source.uri for source in files)
    of_all = [name for name in asked_for if metrics[name].values is not None]
    counts = count_files(files, where=where, metrics=of_all, unfinished="refuse")
    last = _last_label(counts.cells)
    two = last == 1 and not asked.sentiment
    positive = _positive(asked.positive, 1 if two else int(schema.Label.POSITIVE), last)
    names = _wanted(asked, asked_for, two=two, swapped=positive != int(schema.Label.POSITIVE))
    counts = replace(
        counts, cells=as_class(counts.cells, positive), terms=as_class(counts.terms, positive),
        words=as_class(counts.words, positive),
    )  # fmt: skip
    asked = replace(asked, rules=_of_own_groups(files, asked.rules, counts.cells))
    if two:
        # Rightly so, a rare class is predicted less well than by always naming the other.
        methods = frozenset(counts.cells["method"].cast(pl.String).unique().to_list())
        asked = replace(asked, rules=replace(asked.rules, judged=methods))
    rules = _against(asked, counts.cells)
    background = asked.background if asked.background != DEFAULT_BACKGROUND else ""
    asked = replace(asked, rules=rules)
    parts = [*_of_contrasts(files, counts, names, asked, positive=positive)]
    gapped = [] if "pooled" in asked.background else [n for n in names if n not in contrasts(names)]
    if gapped:
        statistics = rules.statistics.model_copy(update={"metrics": tuple(gapped)})
        rules = replace(rules, statistics=statistics)
        found = gap_analysis(counts, rules)
        against = pl.col("condition").replace("", background)
        gaps = [complete(part) for part in of_gaps(found, counts, rules)]
        plain = (pl.col("statistic") == "gap") & (pl.col("condition") == "")
        parts[:0] = [
            part.with_columns(condition=pl.when(plain).then(against).otherwise("condition"))
            for part in gaps
        ]
    parts += [accuracy_rows(counts, rules.statistics), unread_rows(counts)]
    return with_items(pl.concat(map(complete, parts)), counts.cells)


def _last_label(cells: pl.DataFrame) -> int:
    there = pl.concat(cells[name].cast(pl.Int64) for name in ("label", "pred"))
    return max(1, int(there.drop_nulls().to_numpy().max()))


def _positive(chosen: int | None, usual: int, last: int) -> int:
    if chosen is not None and chosen > max(last, usual):
        raise ConfigError(
            f"--positive {chosen} is no label of these files",
            cure=f"choose from {', '.join(map(str, range(last + 1)))}",
        )
    return usual if chosen is None else chosen


def _wanted(asked: Asked, names: Sequence[str], *, two: bool, swapped: bool) -> list[str]:
    """List the metrics; those of sentiment are none of other classes."""
    sentiment = [
        name
        for name, entry in metrics.items()
        if entry.share is not None and entry.one_class is None and name != "accuracy"
    ]
    if ALL in asked.metrics:
        return [
            name
            for name, entry in metrics.items()
            if name in names or (entry.values is None and not (swapped and name in sentiment))
        ]
    if not names:
        usual = OF_TWO_CLASSES if two else asked.rules.statistics.metrics
        names = OF_TWO_CLASSES if swapped and {*usual} & {*sentiment} else usual
    if swapped and (wrong := [name for name in names if name in sentiment]):
        labels = "labels of two classes" if two else "another class"
        raise ConfigError(
            f"the metric {wrong[0]!r} is of negative, neutral and positive labels, not of {labels}",
            cure=f"ask for {', '.join(OF_TWO_CLASSES)}",
        )
    return list(dict.fromkeys(names))


def _of_own_groups(files: Sequence[Source], rules: GapRules, cells: pl.DataFrame) -> GapRules:
    """Compare groups of columns that a user names with one another, not with the papers' lists."""
    own = {name for source in files if source.columns for name in source.columns.by}
    groups = cells.select("attribute", "group").unique().cast(pl.String).sort("group")
    known = groups.filter(pl.col("attribute").is_in(sorted(own)))
    chosen = dict(known.group_by("attribute").agg("group").iter_rows())
    return replace(rules, everywhere={**chosen, **rules.everywhere})


def _against(asked: Asked, cells: pl.DataFrame) -> GapRules:
    """Put a group that is the background in the place of the reference groups."""
    kind, colon, group = asked.background.partition(":")
    if not asked.background:
        return asked.rules
    if asked.background not in BACKGROUNDS[:3] and (kind, colon) != ("reference", ":"):
        raise ConfigError(
            f"no background {asked.background!r}", cure=f"choose from {', '.join(BACKGROUNDS)}"
        )
    if not colon:
        return asked.rules
    known = cells["group"].cast(pl.String).unique().sort().to_list()
    if group not in known:
        raise ConfigError(
            f"no group {group!r} to be the background", cure=f"groups are {', '.join(known)}"
        )
    has = cells.filter(pl.col("group").cast(pl.String) == group)["attribute"].cast(pl.String)
    chosen = {**asked.rules.everywhere, **dict.fromkeys(has.unique().to_list(), (group,))}
    return replace(asked.rules, everywhere=chosen)


def _of_contrasts(
    files: Sequence[Source],
    counts: Counts,
    names: Sequence[str],
    asked: Asked,
    *,
    positive: int,
) -> Iterator[pl.DataFrame]:
    """Estimate metrics that contrast groups, and how far metrics that were asked for agree."""
    pooled = "pooled" in asked.background
    several = len(names) > 1 and bool(asked.metrics)
    drawn = [n for n in names if metrics[n].values is None]
    drawn = drawn if several or pooled else contrasts(names)
    if not drawn:
        return
    groups = without_extras(counts.cells).select("probe", "attribute", "group").unique()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        inside = membership(groups.cast(pl.String), asked.rules.of)
    statistics = asked.rules.statistics
    how = MetricRules(
        against=asked.background, level=statistics.level, seed=statistics.bootstrap_seed
    )
    listed = bool({*names} & {*asked.metrics})
    measured = [
        *metrics_of_files(files, counts.cells, drawn, inside, how, positive=positive, asked=listed)
    ]
    shown = [each for each in measured if pooled or each.name in contrasts(names)]
    yield metric_rows(shown)
    if several:
        rows = agreement(measured, level=statistics.level)
        yield pl.DataFrame(rows, infer_schema_length=None)


def estimates_of(found: GapAnalysis, counts: Counts, rules: GapRules) -> pl.DataFrame:
    """Estimate what a study's predictions show: schema.ESTIMATES.

    Parameters
    ----------
    found: of the counts, by the rules.
    """
    parts = [
        *of_gaps(found, counts, rules), accuracy_rows(counts, found.rules), unread_rows(counts),
    ]  # fmt: skip
    if contrasts(found.rules.metrics):
        measured = metrics_of_cells(counts.cells, found.inside, found.rules)
        parts.append(_without_verdict(measured, found.excluded))
    return with_items(pl.concat(map(complete, parts)), counts.cells)


def _without_verdict(measured: pl.DataFrame, excluded: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Put the reason in the place of the intervals of classifiers that cannot do their task."""
    for frame in (frame for frame in excluded if "rate" not in frame.columns):
        measured = measured.join(
            frame, on=schema.KEYS, how="left", nulls_equal=True, maintain_order="left"
        )
        low, high = (pl.when(pl.col("no_verdict").is_null()).then(end) for end in ("low", "high"))
        reason = pl.coalesce("no_verdict", "reason")
        measured = measured.with_columns(low=low, high=high, reason=reason).drop("no_verdict")
    return measured
