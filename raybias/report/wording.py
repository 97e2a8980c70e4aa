"""Words and number formats of tables, figures and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.schema import LABELS
from raybias.stats.metric import Metric, metrics
from raybias.stats.scopes import ADDED, Scope

YES_NO: Final[Mapping[bool | None, str]] = {True: "yes", False: "no", None: ""}

#: What an interval of each scope also draws anew.
SCOPES: Final[Mapping[Scope, str]] = {
    scope: f"only {added}" if scope == "runs" else f"{added} too" for scope, added in ADDED.items()
}

UNPARSED: Final = {
    "random": "a label drawn at random",
    "likelihood": "the label with the highest likelihood",
    "invalid": "no label: always wrong",
}


#: What tables and figures call the averages of pairs, and the effects of naming a group.
_CALLED: Final = {
    "avg_weighted": "all pairs",
    "avg_unweighted": "mean of types",
    "marking_effect": "named, against not named",
    "beyond_neutral": "named, against a neutral word",
    "neutral_effect": "a neutral word, against none",
}


def bias_type(name: str) -> str:
    """Name a bias type or average of pairs, or an effect of naming a group."""
    return _CALLED.get(name, name)


def shortened(text: str, longest: int) -> str:
    """Cut a text to `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def spaced(name: str) -> str:
    """Write the name of a style as words."""
    return name.replace("_", " ")


#: The labels of the study that is described, and the one that rates of a class are about.
_labels: Final[ContextVar[tuple[str, ...]]] = ContextVar("labels", default=LABELS)
_class: Final[ContextVar[str]] = ContextVar("class", default="")
#: Labels that are listed in a sentence.
_LISTED: Final = 5


@contextmanager
def describing(study: Study) -> Iterator[None]:
    """Name the labels of a study in the body, and the one that its rates of a class are about.

    Whether it is good or bad for a group to be called a label that is not one of sentiment is not
    known, so neither is claimed.
    """
    named = "" if study.is_sentiment or study.positive is None else study.labels[study.positive]
    tokens = _labels.set(study.labels), _class.set(named)
    try:
        yield
    finally:
        _labels.reset(tokens[0])
        _class.reset(tokens[1])


def task() -> str:
    """Name what classifiers of the study tell apart: `sentiment`, or the labels."""
    labels = _labels.get()
    if labels == LABELS:
        return "sentiment"
    return listed(labels) if len(labels) <= _LISTED else f"{len(labels)} labels"


def metric(rate: str) -> Metric:
    """Return a metric; of one that is not registered here, its name without a reading."""
    unknown = Metric(name=rate, of="predictions", title=rate, about="", words=rate)
    known = metrics.get(rate, unknown)
    label = _class.get()
    if not label or known.of != "class":
        return known
    title, about, words = (
        text.replace("the class", label) for text in (known.title, known.about, known.words)
    )
    return replace(known, title=title, about=about, words=words, above="", below="")


def heading(rate: str, gap: float) -> str:
    """Name a rate and direction: `Called negative too often (harm)`."""
    if rate not in metrics:
        return f"{rate} {'above' if gap > 0 else 'below'} the mean"
    often = "too often" if gap > 0 else "less often than the mean"
    effect = metric(rate).effect(gap)
    return f"{metric(rate).words.capitalize()} {often}{f' ({effect})' if effect else ''}"


def verdict(rate: str, gap: float) -> str:
    """Return the verdict on a significant gap: `harm: called negative more often`."""
    effect = metric(rate).effect(gap)
    said = f"{metric(rate).words} {'more' if gap > 0 else 'less'} often"
    return f"{effect}: {said}" if effect else said


def class_verdict(rate: str, gap: float, name: str) -> str:
    """Say what happens to a group by class: `rightly called nurse more often`.

    Which class is good or harmful to be called is not known, so it says neither.
    """
    words = metrics[rate].words
    named = words.replace("the class", name)
    named = named if named != words else f"{words} ({name})"
    return f"{named} {'more' if gap > 0 else 'less'} often"


def signed(value: float | None, digits: int = 3) -> str:
    """Format as `+0.412`; empty for a missing value, without a sign for what rounds to 0."""
    if value is None:
        return ""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """Format as `[+0.353, +0.471]`; empty when an end is missing."""
    if low is None or high is None:
        return ""
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def number(value: float | None, digits: int = 3) -> str:
    """Format as `0.412`; empty for a missing value."""
    # Zero is added for what rounds to -0.0.
    return "" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def interval(
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    digits: int = 3,
    plus: bool = True,
) -> str:
    """Format as `+0.412 [+0.353, +0.471]`, or without `plus`, and without what is missing."""
    form = signed if plus else number
    text = form(value, digits)
    if low is None or high is None:
        return text
    return f"{text} [{form(low, digits)}, {form(high, digits)}]"


def percent(value: float | None) -> str:
    """Format as `41.2%`; empty for a missing value."""
    return "" if value is None else f"{value:.1%}"


def probability(value: float | None) -> str:
    """Format as `0.031`, `<0.001`; empty for a missing value."""
    return "<0.001" if value is not None and value < 0.001 else number(value)


def counted(n: int, one: str, many: str = "") -> str:
    """Format a count with its noun: `1 run`, `5 runs`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join texts: `a, b and c`."""
    head, last = parts[:-1], parts[-1:]
    return f"{', '.join(head)} and {last[0]}" if head else "".join(last)


def naming_keys(
    frame: pl.DataFrame, others: Sequence[str] = ("method", "dataset", "style")
) -> list[str]:
    """Return the columns that tell classifiers apart: the model, and which of `others` vary."""
    return ["model", *(key for key in others if key in frame and frame[key].n_unique() > 1)]


def shortest_keys(frame: pl.DataFrame) -> list[str]:
    """Return the fewest of `naming_keys` that tell the classifiers of a figure apart."""
    keys = naming_keys(frame)
    several = frame.select(keys).n_unique()
    enough = (n for n in range(1, len(keys) + 1) if frame.select(keys[:n]).n_unique() == several)
    return keys[: next(enough, len(keys))]


def classifier_name(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Name a classifier by the columns that vary: `OPT-125M, sst5`."""
    return ", ".join(str(row[key]) for key in keys)


def probe_order(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """List the (probe, attribute) pairs of a derived table, in its order."""
    pairs = frame.select("probe", "attribute").unique(maintain_order=True)
    return [(str(probe), str(attribute)) for probe, attribute in pairs.iter_rows()]
