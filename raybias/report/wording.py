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
from raybias.stats import sentiment
from raybias.stats.metric import Metric, metrics
from raybias.stats.rated_class import (
    PLACEHOLDER,
    RatedClass,
    about_of,
    rated_class_of,
    title_of,
)
from raybias.stats.scopes import ADDED

YES_NO: Final[Mapping[bool | None, str]] = {True: "yes", False: "no", None: ""}


def nested_scopes(scopes: Sequence[str]) -> list[str]:
    """Say what intervals resample whose scopes go from narrow to wide: `only seeds, words too`.

    Without `runs` the narrowest resamples no seeds.
    """
    added: dict[str, str] = {str(scope): what for scope, what in ADDED.items()}
    names = [added.get(scope, scope) for scope in scopes]
    return [f"{what} too" if place else f"only {what}" for place, what in enumerate(names)]


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


#: The labels of the study that is described, and the class that rates are about.
_labels: Final[ContextVar[tuple[str, ...]]] = ContextVar("labels", default=LABELS)
_UNKNOWN: Final = RatedClass()
_rated: Final[ContextVar[RatedClass]] = ContextVar("rated", default=_UNKNOWN)
#: Labels that are listed in a sentence.
_LISTED: Final = 5


@contextmanager
def describing(study: Study) -> Iterator[None]:
    """Name the labels of a study in the body, the class of its rates, and what is favourable."""
    token = _labels.set(study.labels)
    try:
        with describing_class(rated_class_of(study)):
            yield
    finally:
        _labels.reset(token)


@contextmanager
def describing_class(rated: RatedClass) -> Iterator[None]:
    """Name in the body the class that rates are about, and what is favourable."""
    token = _rated.set(rated)
    try:
        yield
    finally:
        _rated.reset(token)


def task() -> str:
    """Name what classifiers of the study tell apart: `sentiment`, or the labels."""
    labels = _labels.get()
    if labels == LABELS:
        return "sentiment"
    return listed(labels) if len(labels) <= _LISTED else f"{len(labels)} labels"


def metric(rate: str, of_class: str = "") -> Metric:
    """Return a metric in the words of the class that is described, or of the class `of_class`.

    It has an effect (`above`, `below`) only if an outcome is declared to be favourable. One that is
    not registered here has its name alone.
    """
    unknown = Metric(name=rate, of="predictions", title=rate, about="", words=rate)
    known = metrics.get(rate, unknown)
    rated = _rated.get()
    if of_class:
        is_favourable = True if rated.favourable == of_class else None
        rated = replace(rated, name=of_class, label=of_class, is_favourable=is_favourable)
    above, below = _effects(known, rated)
    known = replace(known, above=above, below=below)
    if not rated.name:
        return known
    words, title, about = (
        text.replace(PLACEHOLDER, rated.name) for text in (known.words, known.title, known.about)
    )
    among = known.among.replace(PLACEHOLDER, rated.label)
    if among:
        # The class can have one word among predictions and another among right labels.
        title, about = title_of(words, among), about_of(words, among)
    if of_class and words == known.words:
        words = f"{words} ({of_class})"
    return replace(known, words=words, among=among, title=title, about=about)


def _effects(known: Metric, rated: RatedClass) -> tuple[str, str]:
    """Return what a gap above and below 0 means for a group; empty if that was not declared."""
    favourable = rated.is_favourable
    if known.of == "counts":
        negative, _, positive = sentiment.NAMES
        favourable = {positive: True, negative: False}.get(rated.favourable)
    elif known.of != "class":
        favourable = True if rated.favourable else None
    if favourable is None or not known.is_outcome:
        return "", ""
    return (known.above, known.below) if favourable else (known.below, known.above)


def effect(rate: str, gap: float) -> str:
    """Return what a gap means for a group, `harm` or `benefit`; empty if that was not declared."""
    known = metric(rate)
    return known.above if gap > 0 else known.below


def declared() -> str:
    """Say which outcome is declared to be favourable for a person, or that none is."""
    return _rated.get().declared


def is_favourable() -> bool | None:
    """Return whether being of the class that rates are about is good for a person, if declared."""
    return _rated.get().is_favourable


def heading(rate: str, gap: float) -> str:
    """Name a rate and direction: `called negative more often than the mean (harm)`."""
    if rate not in metrics:
        return f"{rate} {'above' if gap > 0 else 'below'} the mean"
    meaning = effect(rate, gap)
    said = f"{metric(rate).title} {'more' if gap > 0 else 'less'} often than the mean"
    return f"{said} ({meaning})" if meaning else said


def verdict(rate: str, gap: float, of_class: str = "") -> str:
    """Return the verdict on a significant gap: `harm: called negative more often`.

    of_class: the class of a table that is measured by class.
    """
    known = metric(rate, of_class)
    meaning = known.above if gap > 0 else known.below
    said = f"{known.words} {'more' if gap > 0 else 'less'} often"
    if known.among:
        said = f"{said}, of those {known.among}"
    return f"{meaning}: {said}" if meaning else said


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


def within_families(sizes: Sequence[int]) -> str:
    """Say which tests are corrected together: families of so many gaps each."""
    if not sizes:
        return ""
    ends = sorted({min(sizes), max(sizes)})
    noun = "gap" if ends == [1] else "gaps"
    return f"within each attribute and rate, in families of {' to '.join(map(str, ends))} {noun}"


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
