"""The words and number forms in which tables, figures and the page speak of a gap.

What a direction means is the metric's to say (`raybias.stats.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias import schema, stats
from raybias.registry import Metric, metrics

#: Metrics by name; a rate that is not here has no reading.
RATES: Final[Mapping[str, Metric]] = metrics

INTERVALS: Final = {
    "normal": "normal",
    "t": "Student t",
    "bootstrap": "template bootstrap",
}

#: What a table says instead of a verdict, where that is not the reason itself.
NO_VERDICT: Final = {stats.ONE_RUN: "not judged: one run"}

UNPARSED: Final = {
    "random": "a label drawn at random",
    "likelihood": "the label with the highest likelihood",
    "invalid": "no label: always wrong",
}


def rate_title(rate: str) -> str:
    """Say what a rate counts: `wrongly called negative`; any other rate's name."""
    known = RATES.get(rate)
    return known.title if known else rate


def effect(rate: str, gap: float) -> str:
    """`harm`, `benefit`, or nothing for a rate without a reading."""
    known = RATES.get(rate)
    return known.effect(gap) if known else ""


def heading(rate: str, gap: float) -> str:
    """`Called negative too often (harm)`; for any other rate its name and direction."""
    known = RATES.get(rate)
    if known is None:
        return f"{rate} {'above' if gap > 0 else 'below'} the mean"
    often = "too often" if gap > 0 else "less often than the mean"
    reading = f" ({known.effect(gap)})" if known.effect(gap) else ""
    return f"{known.words.capitalize()} {often}{reading}"


def verdict(row: Mapping[str, Any]) -> str:
    """One cell of words for a gap: `harm: called negative more often`, or `not significant`."""
    gap = row["gap"]
    if row["no_verdict"] is not None:
        return NO_VERDICT.get(row["no_verdict"], str(row["no_verdict"]))
    if not row["significant"]:
        return "not significant"
    if not row["survives"]:
        return "alone, not after correction"
    known = RATES.get(row["rate"])
    often = "more" if gap > 0 else "less"
    if known is None:
        return f"{often} than the mean"
    reading = f"{known.effect(gap)}: " if known.effect(gap) else ""
    return f"{reading}{known.words} {often} often"


def signed(value: float | None, digits: int = 3) -> str:
    """`+0.412`; empty for a missing value, without a sign for what rounds to 0."""
    if value is None:
        return ""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """`[+0.353, +0.471]`; empty when an end is missing."""
    if low is None or high is None:
        return ""
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def number(value: float | None, digits: int = 3) -> str:
    """`0.412`; empty for a missing value."""
    return "" if value is None else f"{value:.{digits}f}"


def probability(value: float | None) -> str:
    """`0.031`, `<0.001`; empty for a missing value."""
    return "<0.001" if value is not None and value < 0.001 else number(value)


def magnitude(n: float) -> str:
    """`124M`, `2.7B`: a number of parameters to three digits."""
    units = ((1e9, "B"), (1e6, "M"), (1e3, "K"))
    unit, name = next(((u, name) for u, name in units if n >= u), (1.0, ""))
    return f"{n / unit:.3g}{name}"


def counted(n: int, one: str, many: str = "") -> str:
    """`1 run`, `5 runs`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    head, last = parts[:-1], parts[-1:]
    return f"{', '.join(head)} and {last[0]}" if head else "".join(last)


def naming_keys(frame: pl.DataFrame) -> list[str]:
    """The columns that tell classifiers apart: the model, and whatever else varies."""
    varying = [k for k in ("method", "dataset", "style") if k in frame and frame[k].n_unique() > 1]
    return ["model", *varying]


def shortest_keys(frame: pl.DataFrame) -> list[str]:
    """The fewest of `naming_keys` that tell the classifiers of a figure apart."""
    keys = naming_keys(frame)
    several = frame.select(keys).n_unique()
    enough = (n for n in range(1, len(keys) + 1) if frame.select(keys[:n]).n_unique() == several)
    return keys[: next(enough, len(keys))]


def classifier_name(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`OPT-125M, sst5` from the columns that vary."""
    return ", ".join(str(row[key]) for key in keys)


def probe_order(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """The (probe, attribute) pairs of a derived table, in its order."""
    pairs = frame.select("probe", "attribute").unique(maintain_order=True)
    return [(str(probe), str(attribute)) for probe, attribute in pairs.iter_rows()]


def same_classifier(frame: pl.DataFrame, row: Mapping[str, Any]) -> pl.DataFrame:
    """The rows of `frame` about the classifier and probe that `row` names."""
    wanted = [pl.col(key).eq_missing(row[key]) for key in schema.KEYS if key in frame.columns]
    return frame.filter(*wanted)
