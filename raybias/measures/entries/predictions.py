"""Labels that a classifier gives sentences, or anyone's decisions, about people of groups.

Predictions exceed memory, so they are counted while they are read (`stats.counts`). Without
templates, blocks of items are resampled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from raybias.errors import ConfigError
from raybias.measures.class_rows import CLASS, DRAWS, ERROR_SHARE, OF_CLASSES, OVER, class_estimates
from raybias.measures.kind import Kind, Table, kind
from raybias.measures.prediction_rows import (
    KIND,
    WITHHELD,
    accuracy_rows,
    of_gaps,
    unjudged,
    unread_rows,
    with_items,
)
from raybias.measures.predictions_read import MeasuredPredictions, predictions_read
from raybias.schema import ALL
from raybias.schema import PREDICTIONS as PREDICTION_TABLE
from raybias.stats.breakdown import WITHOUT, WORD
from raybias.stats.checks import StatisticsWarning, membership
from raybias.stats.conclusive import without_refused_ends
from raybias.stats.counts import Counts, count_files, without_extras
from raybias.stats.draws import SCORES as DRAW_SCORES
from raybias.stats.gaps import FAMILIES, OUTSIDE, GapAnalysis, gap_analysis
from raybias.stats.intervals import Rules, estimates, from_rows
from raybias.stats.metric import BACKGROUNDS, THE_CLASS, check_names, contrasts, metrics
from raybias.stats.metric_files import (
    agreement,
    as_class,
    metric_rows,
    metrics_of_cells,
    metrics_of_files,
)
from raybias.stats.metric_table import DEFAULT_BACKGROUND, LESS_NOISE
from raybias.stats.predictions import Source
from raybias.stats.rated_class import RatedClass, rated_label, sentiment_class
from raybias.stats.ratios import BY
from raybias.stats.redrawn import redrawn_by
from raybias.stats.size_trends import RANK_CORRELATION, SLOPE
from raybias.stats.untold import OUTCOME

#: What labels of sentiment, which have no other names, stand for.
OF_SENTIMENT: Final = "label and pred are read as sentiment: 0 negative, 1 neutral, 2 positive."
#: Default metrics of labels of two classes.
OF_TWO_CLASSES: Final = ("selection_rate", "tpr", "fpr")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which metrics of predictions to compute, and by which rules."""

    rules: Rules
    metrics: Sequence[str] = ()
    """Names; `all` is every one that the files allow. By default those of the rules, or
    `OF_TWO_CLASSES`."""
    positive: int | None = None
    """The class that metrics of one class are about; by default the last."""
    background: str = ""
    """What groups are compared with, one of BACKGROUNDS, instead of each metric's own."""
    sentiment: bool = False
    """Whether labels are known to be sentiment, also where no third one occurs."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers, if each is measured on its own."""
    rated: RatedClass | None = None
    """The class that rates are about, in words; None if the files have numbers without names."""
    favourable: tuple[str, ...] = ()
    """The prediction that is declared to be favourable, if `rated` does not say it."""
    sentence: str = ""
    """What was taken as the class in each column."""


def measure_predictions(files: Sequence[Source], asked: Asked) -> MeasuredPredictions:
    """Estimate rates, gaps, ratios and metrics of predictions.

    Gaps are judged under every scope that the design allows, each with its own multiplicity
    correction. A classifier that cannot do its task has estimates and no verdict.

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
    if asked.classes:
        found = _of_classes(files, counts, asked, asked_for)
        rated, sentence = asked.rated or RatedClass(), asked.sentence
    else:
        found, rated, sentence = _of_one_class(files, counts, asked, asked_for)
    return predictions_read(found, files, counts, sentence=sentence, rated=rated, rules=asked.rules)


def _of_one_class(
    files: Sequence[Source], counts: Counts, asked: Asked, asked_for: Sequence[str]
) -> tuple[pl.DataFrame, RatedClass, str]:
    """Estimate rates of one class against the rest, or of sentiment; and name the class."""
    codes = {*counts.sentences["label"], *counts.cells["pred"].drop_nulls()}
    last = max(1, *codes)
    two = not asked.sentiment and len(codes) < 3
    usual = last if two else THE_CLASS
    positive = usual if asked.positive is None else asked.positive
    if positive > max(last, usual):
        raise ConfigError(
            f"--positive {positive} is no label of these files",
            cure=f"choose from {', '.join(map(str, range(last + 1)))}",
        )
    swapped = two or positive != THE_CLASS
    untold = counts.cells["label"].null_count() > 0
    names = _wanted(asked, asked_for, two=two, swapped=swapped, untold=untold)
    counts = replace(
        counts, cells=as_class(counts.cells, positive), terms=as_class(counts.terms, positive),
        words=as_class(counts.words, positive),
    )  # fmt: skip
    # Rightly so, a rare class is predicted less well than by always naming the other.
    rules = _rules_of(files, counts, asked, able=two)
    background = _named_background(asked)
    asked = replace(asked, rules=rules)
    parts = [*_of_contrasts(files, counts, names, asked, positive=positive)]
    gapped = [n for n in names if n not in contrasts(names) and "pooled" not in asked.background]
    if gapped:
        rules = rules.model_copy(update={"metrics": tuple(gapped)})
        gaps = _joined([*of_gaps(gap_analysis(counts, rules))])
        plain = (pl.col("statistic") == "gap") & (pl.col("condition") == "")
        against = pl.when(plain).then(pl.lit(background)).otherwise("condition")
        parts.insert(0, gaps.with_columns(condition=against))
    own = any(source.columns.by for source in files)
    parts += [accuracy_rows(counts, rules, together=not own), unread_rows(counts)]
    found = with_items(_joined(parts), counts.cells)
    if asked.rated is not None:
        return found, asked.rated, asked.sentence or OF_SENTIMENT
    if not two:
        return found, sentiment_class(positive, asked.favourable), asked.sentence or OF_SENTIMENT
    labels = [str(min({0, 1, *codes} - {positive})), str(positive)]
    sentence = f"Rates are those of the class for which label and pred are `{positive}`."
    return found, rated_label(1, labels, asked.favourable), sentence


def _rules_of(files: Sequence[Source], counts: Counts, asked: Asked, *, able: bool) -> Rules:
    """Choose the groups that others are compared with; all classifiers are judged if `able`."""
    # Groups of columns that a user names are compared with one another, not by the papers' lists.
    own = [name for source in files if source.columns for name in source.columns.by]
    groups = counts.cells.select("attribute", "group").unique().cast(pl.String).sort("group")
    by = groups.filter(pl.col("attribute").is_in(own)).group_by("attribute")
    chosen = {name: tuple(found) for name, found in by.agg("group").iter_rows()}
    changed: dict[str, Any] = {"everywhere": {**chosen, **asked.rules.everywhere}}
    if able:
        methods = frozenset(counts.cells["method"].cast(pl.String).unique().to_list())
        changed["judged"] = methods
    rules = asked.rules.model_copy(update=changed)
    return _against(asked.background, rules, counts.cells)


def _named_background(asked: Asked) -> str:
    """Return the background for a condition; empty for the usual one."""
    return asked.background if asked.background != DEFAULT_BACKGROUND else ""


def _of_classes(
    files: Sequence[Source], counts: Counts, asked: Asked, names: Sequence[str]
) -> pl.DataFrame:
    """Estimate the metrics of a table with more than two classes."""
    wanted = _wanted_of_classes(asked, names)
    foreign = all(source.is_foreign for source in files)
    rules = _rules_of(files, counts, asked, able=foreign)
    rules = rules.model_copy(update={"metrics": ("accuracy",)})
    analysis = gap_analysis(counts, rules)
    parts = [*class_estimates(files, analysis, asked.classes, wanted, _named_background(asked))]
    parts += [accuracy_rows(counts, rules, together=False), unread_rows(counts)]
    return with_items(_joined(parts), counts.cells)


def _wanted_of_classes(asked: Asked, names: Sequence[str]) -> list[str]:
    """List the metrics of a table with more than two classes; refuse those of one class."""
    if asked.background.startswith("pooled"):
        raise ConfigError(
            f"the background {asked.background!r} is of one class, and this table has "
            f"{len(asked.classes)}",
            cure="name the class with --positive, or take reference:GROUP",
        )
    possible = [
        name
        for name, entry in metrics.items()
        if entry.of == "class" or entry.over_classes or name == "accuracy"
    ]
    if wrong := [name for name in names if name not in possible]:
        raise ConfigError(
            f"the metric {wrong[0]!r} is not of a table with {len(asked.classes)} classes",
            cure=f"name one class with --positive, or ask for {', '.join(OF_CLASSES)}",
        )
    if ALL in asked.metrics:
        return possible
    return list(dict.fromkeys(names or OF_CLASSES))


def _joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Join estimates; rows of classifiers that cannot do their task have no interval and no p."""
    return without_refused_ends(pl.concat(estimates(part, KIND) for part in parts))


def _wanted(
    asked: Asked, names: Sequence[str], *, two: bool, swapped: bool, untold: bool
) -> list[str]:
    """List the metrics, without those of sentiment for other classes.

    untold: whether there are sentences whose right label a classifier never gives.
    """
    over_classes = [n for n, each in metrics.items() if each.over_classes]
    of_any = ("accuracy", *over_classes)
    sentiment = [
        name for name, metric in metrics.items() if metric.of == "counts" and name not in of_any
    ]
    if of_many := [name for name in names if name in over_classes]:
        raise ConfigError(
            f"the metric {of_many[0]!r} is of tables with more than two classes that are measured "
            "one by one",
            cure=f"leave --positive out of such a table, or ask for {', '.join(OF_TWO_CLASSES)}",
        )
    if ALL in asked.metrics:
        hidden = [*over_classes, *(sentiment if swapped else []), *([] if untold else [OUTCOME])]
        return [
            name
            for name, metric in metrics.items()
            if name in names or (metric.values is None and name not in hidden)
        ]
    if not names:
        usual = OF_TWO_CLASSES if two else asked.rules.metrics
        names = OF_TWO_CLASSES if swapped and {*usual} & {*sentiment} else usual
    if swapped and (wrong := [name for name in names if name in sentiment]):
        labels = "labels of two classes" if two else "another class"
        raise ConfigError(
            f"the metric {wrong[0]!r} is of negative, neutral and positive labels, not of {labels}",
            cure=f"ask for {', '.join(OF_TWO_CLASSES)}",
        )
    return list(dict.fromkeys(names))


def _against(background: str, rules: Rules, cells: pl.DataFrame) -> Rules:
    """Compare with one group, if it is the background, in place of the reference groups."""
    kind, colon, group = background.partition(":")
    if not background:
        return rules
    if background not in BACKGROUNDS[:3] and (kind, colon) != ("reference", ":"):
        raise ConfigError(
            f"no background {background!r}", cure=f"choose from {', '.join(BACKGROUNDS)}"
        )
    if not colon:
        return rules
    known = cells.select(pl.col("attribute", "group").cast(pl.String)).unique()
    has = known.filter(group=group)["attribute"].to_list()
    if not has:
        groups = ", ".join(known["group"].unique().sort())
        raise ConfigError(f"no group {group!r} to be the background", cure=f"groups are {groups}")
    everywhere = {**rules.everywhere, **dict.fromkeys(has, (group,))}
    return rules.model_copy(update={"everywhere": everywhere})


def _of_contrasts(
    files: Sequence[Source], counts: Counts, names: Sequence[str], asked: Asked, *, positive: int
) -> Iterator[pl.DataFrame]:
    pooled = "pooled" in asked.background
    several = len(names) > 1 and bool(asked.metrics)
    drawn = [n for n in names if metrics[n].values is None]
    drawn = drawn if several or pooled else contrasts(names)
    if not drawn:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        inside = membership(without_extras(counts.cells), asked.rules.groups_of)
    rules = asked.rules.model_copy(update={"bootstrap_draws": DRAWS})
    measured = [*metrics_of_files(
        files, counts.cells, drawn, inside, rules, against=asked.background, positive=positive,
        asked=bool({*names} & {*asked.metrics}),
    )]  # fmt: skip
    yield metric_rows([each for each in measured if pooled or each.name in contrasts(names)])
    if several:
        yield from_rows(agreement(measured, level=rules.level))


def estimates_of(found: GapAnalysis) -> pl.DataFrame:
    """Estimate rates, gaps and metrics of a study's predictions (schema.ESTIMATES)."""
    counts = found.counts
    parts = [*of_gaps(found), accuracy_rows(counts, found.rules), unread_rows(counts)]
    if contrasts(found.rules.metrics):
        measured = metrics_of_cells(counts.cells, found.inside, found.rules)
        parts.append(unjudged(measured, found))
    return with_items(_joined(parts), counts.cells)


def _defined(scores: list[str]) -> Iterator[str]:
    for name, entry in metrics.items():
        if name in scores:
            yield f"{name}: {entry.formula or entry.about}; {entry.source or 'registered here'}"
    if any(name.endswith(LESS_NOISE) for name in scores):
        yield f"NAME{LESS_NOISE}: the value less what noise adds to it, or with what it takes off"
    if any(name.endswith(SLOPE) for name in scores):
        yield (
            f"NAME{SLOPE}: the change of the gap for each tenfold of the models' parameters;"
            f" NAME{RANK_CORRELATION}: Spearman's, over models"
        )
    if "agreement" in scores:
        yield "agreement: Kendall's W of how metrics rank groups or models; 1 alike, 0 cancelled"


_SCORE: Final = pl.col("score")
_STATISTIC: Final = pl.col("statistic")
_CONDITION: Final = pl.col("condition")
_ONE: Final = pl.col("model") != ALL
_GROUP: Final = pl.col("group") != ALL
_AGREE: Final = _SCORE == "agreement"
_APART: Final = {
    "by word": _CONDITION.str.starts_with(WORD),
    "without one template or word": _CONDITION.str.starts_with(WITHOUT),
    "how far rankings would come out again": _SCORE.str.ends_with("_reliability"),
    "gaps against the size of models": _SCORE.str.contains(f"({SLOPE}|{RANK_CORRELATION})$"),
    "what the rules find in meaningless group labels": _SCORE.str.starts_with("meaningless_"),
    "the worst of a prompt's draws": _SCORE.is_in(DRAW_SCORES),
    "where families of templates are redrawn": pl.col("scope").str.starts_with(FAMILIES),
    "how far pairs of metrics agree": _AGREE & _GROUP,
}
_UNITS: Final = {"what the rules find in meaningless group labels": "shuffles"}
_BY_CLASS: Final = _CONDITION.str.starts_with(CLASS)
_OVER_CLASSES: Final = _CONDITION.str.starts_with(OVER) & _SCORE.str.contains("_tpr_gap")
_USUAL: Final = ~(pl.any_horizontal(*_APART.values()) | _AGREE | _BY_CLASS | _OVER_CLASSES) & (
    _SCORE != WITHHELD
)
_PLAIN: Final = _USUAL & _ONE & _GROUP & _CONDITION.str.contains(f"^($|{BY}|{OUTSIDE}|reference:)")
_EFFECT: Final = _USUAL & _GROUP & (_STATISTIC == "difference")

PREDICTIONS: Final = kind(
    Kind(
        name=KIND,
        answers=PREDICTION_TABLE,
        item=("run_id", "item_id"),
        units="items",
        title="How groups are labelled",
        redrawn=redrawn_by("drawn"),
        units_by_scope={
            "runs": "runs",
            "sentences": "templates",
            "wording": "templates",
            "clusters": "clusters",
            FAMILIES: "families",
            f"{FAMILIES}, words": "families",
            "models": "models",
            "models, words": "models",
        },
        defined=_defined,
        digits=3,
        about="A gap is a rate less the mean of the groups; a ratio is a rate divided by that of "
        "its reference group.",
        tables=(
            Table("", _PLAIN & _STATISTIC.is_in(["rate", "gap", "ratio"]), beside="statistic"),
            Table("gaps: a rate less the mean of the groups", _PLAIN & (_STATISTIC == "gap"),
                  signed=True, neutral=0, listed=False),
            Table("by class", _BY_CLASS & (_SCORE != ERROR_SHARE), beside="statistic"),
            Table("gaps by class: a rate less the mean of the groups",
                  _BY_CLASS & (_SCORE != ERROR_SHARE) & (_STATISTIC == "gap"), signed=True,
                  neutral=0, listed=False),
            Table("recall gaps over all classes", _OVER_CLASSES),
            Table("what wrong answers are called", _BY_CLASS & (_SCORE == ERROR_SHARE),
                  beside="statistic", folded=True),
            Table("over all groups", _USUAL & _ONE & ~_GROUP, beside="statistic"),
            Table("against other backgrounds", _USUAL & _ONE & _GROUP & ~_PLAIN & ~_EFFECT,
                  beside="statistic"),
            Table("how far metrics agree", _AGREE & ~_GROUP),
            Table("what naming a group does to a rate", _EFFECT, signed=True, neutral=0,
                  folded=True),
            Table("mean gaps over models", _USUAL & ~_ONE, signed=True, folded=True),
            *(Table(title, where, folded=True, units=_UNITS.get(title, ""))
              for title, where in _APART.items()),
        ),
    )
)  # fmt: skip
