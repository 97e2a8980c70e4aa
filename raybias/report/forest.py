"""Draw estimates with their intervals as one forest: an SVG whose places are percentages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from raybias.measures.prediction_rows import KIND, WIDTH
from raybias.report import wording
from raybias.report.rendering import Drawn, rendered, round_values, slug
from raybias.stats.metric import metrics
from raybias.stats.scopes import SCOPES

#: Most rows of one figure, and of the one that leads a page; of more, the clearest are drawn.
_MOST: Final = 48
_LEADING: Final = 12
#: Pixels of a row, of a panel's title, and below the last row.
_ROW: Final = 36
_TITLE: Final = 28
_FOOT: Final = 30
#: Pixels of a letter, about; letters of the axis, and of a key, that fit a narrow screen.
_CHARACTER: Final = 6.5
_NARROW: Final = 48
_NARROW_KEYS: Final = 56
_TICKS: Final = 6
#: Columns that tell rows apart; those of them that vary name a row.
_NAMES: Final = (
    *("group", "score", "attribute", "model", "probe", "method", "dataset", "style", "condition"),
)
_KEYS: Final = ("filled: significant; hollow: not",)
_BROKEN: Final = "broken: no verdict"
_UNNESTED: Final = "a bar that sticks out of a thinner one is of few seeds, or of few words"


@dataclass(frozen=True)
class _Row:
    """One estimate; `told` replaces `text` under the pointer."""

    name: str
    text: str
    told: str
    value: float
    spans: tuple[tuple[float, float], ...]
    """Its intervals, the widest first."""
    sure: bool | None
    """Whether it is significant; None without a verdict."""
    truth: float | None


@dataclass(frozen=True)
class _Forest:
    """Rows in panels on one scale; forest.svg.j2 draws it, places across in percent."""

    title: str
    axis: str
    panels: Mapping[str, Sequence[_Row]]
    neutral: float
    logarithmic: bool
    """Whether distances from `neutral` are drawn by their logarithms, beyond about 2."""
    band: tuple[float, float] | None
    keys: tuple[str, ...]

    def place(self, value: float) -> str:
        return f"{50 + 47 * self._far(value) / self._limit:.2f}"

    def width(self, low: float, high: float) -> str:
        return f"{max(47 * (self._far(high) - self._far(low)) / self._limit, 0.1):.2f}"

    def _far(self, value: float) -> float:
        far = value - self.neutral
        return math.copysign(math.log1p(abs(far) / 2), far) if self.logarithmic else far

    @cached_property
    def _rows(self) -> list[_Row]:
        return [row for rows in self.panels.values() for row in rows]

    @cached_property
    def _limit(self) -> float:
        ends = [end for row in self._rows for span in row.spans for end in span]
        ends += [end for row in self._rows for end in (row.value, row.truth) if end is not None]
        ends += self.band or ()
        return 1.05 * max((abs(self._far(end)) for end in ends), default=0.0) or 1.0

    @property
    def ticks(self) -> list[tuple[str, str]]:
        if self.logarithmic:
            powers = [10.0**n for n in range(4) if self._far(10.0**n + self.neutral) < self._limit]
            offsets = [*(-power for power in reversed(powers)), 0.0, *powers]
        else:
            offsets = round_values(-self._limit, self._limit, _TICKS)
        values = [self.neutral + offset for offset in offsets]
        form = "{:g}" if self.neutral else "{:+g}"
        return [
            (self.place(v), form.format(v).replace("-", "\N{MINUS SIGN}") if v else "0")
            for v in values
        ]

    @property
    def laid(self) -> Iterator[tuple[int, _Row | str]]:
        """Yield each panel's title and each row, with the line of its text from the top."""
        y = 0
        for title, rows in self.panels.items():
            if title:
                yield y + 18, title
                y += _TITLE
            for row in rows:
                yield y + 14, row
                y += _ROW

    @property
    def top(self) -> int:
        return _TITLE if next(iter(self.panels)) else 0

    @property
    def bottom(self) -> int:
        return _TITLE * sum(map(bool, self.panels)) + _ROW * len(self._rows)

    @property
    def height(self) -> int:
        return self.bottom + _FOOT + 13 * len(self.lines)

    @property
    def lines(self) -> list[str]:
        """Explain the scale and the marks, below the scale."""
        first, *rest = self.axis.split("; ")
        keys = textwrap.wrap("; ".join((*rest, *self.keys)), _NARROW_KEYS)
        return [*textwrap.wrap(first, _NARROW), *keys]

    @property
    def least(self) -> int:
        """Return the pixels across that names and values without their intervals need."""
        longest = max(len(row.name + row.text.partition(" [")[0]) for row in self._rows)
        return round(_CHARACTER * longest) + 10


def forest_of(
    estimates: pl.DataFrame,
    *,
    name: str,
    title: str,
    axis: str = "",
    panel: Sequence[str] = ("model",),
    neutral: float = 0.0,
    scale: float = 1.0,
    digits: int = 1,
    logarithmic: bool = False,
    most: int = _MOST,
    ranked: bool = False,
    truth: pl.DataFrame | None = None,
    band: tuple[float, float] | None = None,
    keys: tuple[str, ...] = _KEYS,
) -> Drawn | None:
    """Draw estimates of one quantity, a panel for each value of some columns, if there are any.

    Rows that differ in their scope alone are one, with nested intervals; of many rows those
    farthest from no bias (`neutral`) for their width are drawn. `scale` and `digits` are of the
    numbers; differences of shares are in percentage points, though. `ranked` rows are sorted by
    their value, the highest first. `truth` has score, group and `truth`, where it is known. `band`
    and `keys` shade a range, and explain the marks.
    """
    known = estimates.drop_nulls("value")
    if known.is_empty():
        return None
    shares = [wording.metric(rate).share is not None for rate in known["score"].unique()]
    points = (known["kind"] == KIND).all() and all(shares)
    scale, digits = (100.0, 1) if points else (scale, digits)
    panel = [key for key in panel if known[key].n_unique() > 1]
    names = [key for key in _NAMES if key not in panel and known[key].n_unique() > 1]
    by = [*panel, *names] or ["model"]
    rows = (
        known.sort(WIDTH, (pl.col("high") - pl.col("low")).fill_null(0),
                   descending=True, maintain_order=True)
        .group_by(by, maintain_order=True)
        .agg(pl.col("value", "survives", "significant").first(), pl.col("scope", "low", "high"))
    )  # fmt: skip
    distance, reach = (pl.col("value") - neutral).abs(), pl.col("high").list.first()
    # No distance is clear, however narrow its interval.
    far = pl.when(distance > 0).then(distance / (reach - pl.col("value"))).otherwise(0.0)
    clearest = rows.sort(far, descending=True, nulls_last=True, maintain_order=True).head(most)
    shown = known.select(by).unique(maintain_order=True).join(
        clearest, on=by, how="inner", maintain_order="left"
    )  # fmt: skip
    if ranked:
        shown = shown.sort("value", descending=True, maintain_order=True)
    if truth is not None and {"score", "group"} <= {*by}:
        shown = shown.join(truth, on=["score", "group"], how="left", maintain_order="left")
    panels: dict[str, list[_Row]] = {}
    for row in shown.iter_rows(named=True):
        title_of = ", ".join(_words(key, row[key]) for key in panel) if names else ""
        made = _row(row, names or by, scale, digits, signed=neutral == 0)
        panels.setdefault(title_of, []).append(made)
    rows_of = [row for each in panels.values() for row in each]
    if any(row.sure is None for row in rows_of):
        keys = (*keys, _BROKEN)
    if any(low < row.spans[0][0] or high > row.spans[0][1]
           for row in rows_of for low, high in row.spans[1:]):  # fmt: skip
        keys = (*keys, _UNNESTED)
    more = f"; the clearest {shown.height} of {rows.height}" if shown.height < rows.height else ""
    unit = ", in percentage points" if points and neutral == 0 else ""
    shaded = None if band is None else (scale * band[0], scale * band[1])
    forest = _Forest(
        title, f"{axis or title}{unit}{more}", panels, neutral * scale, logarithmic, shaded, keys
    )
    return Drawn(name, rendered("forest.svg.j2", {"forest": forest}))


def _row(
    row: dict[str, Any], keys: Sequence[str], scale: float, digits: int, *, signed: bool
) -> _Row:
    ends = [
        (scope, scale * low, scale * high)
        for scope, low, high in zip(row["scope"], row["low"], row["high"], strict=True)
        if low is not None and high is not None
    ]
    value, truth = scale * row["value"], row.get("truth")
    spans = tuple((low, high) for _, low, high in ends)
    widest = spans[0] if spans else (None, None)
    text = wording.interval(value, *widest, digits=digits, plus=signed)
    told = [wording.interval(value, None, None, digits=digits, plus=signed)]
    scopes = wording.nested_scopes([scope for scope, *_ in reversed(ends)])
    told += [
        f"{scope} {wording.span(low, high, digits)}"
        for scope, (_, low, high) in zip(scopes, reversed(ends), strict=True)
    ]
    return _Row(
        wording.shortened(", ".join(_words(key, row[key]) for key in keys if row[key]), 60),
        text,
        ", ".join(told) if len(ends) > 1 else text,
        value,
        spans,
        row["survives"] if row["survives"] is not None else row["significant"],
        None if truth is None else scale * truth,
    )


def _words(key: str, value: object) -> str:
    text = str(value)
    if key == "score" and text in metrics:
        known = wording.metric(text)
        # A row has little room: `predicted approved, label is paid`.
        return ", ".join(filter(None, (known.words, known.among.removeprefix("whose "))))
    return wording.spaced(wording.bias_type(text))


def gap_forests(
    gaps: pl.DataFrame, *, level: float, corrected: bool = True, truth: pl.DataFrame | None = None
) -> list[Drawn]:
    """Draw the clearest gaps, their scopes nested, and if there are more, each attribute's."""
    drawn_anew = gaps.drop_nulls("low")["scope"]
    there = wording.nested_scopes([scope for scope in SCOPES if (drawn_anew == scope).any()])
    nested = [f"redrawn, thickest line first: {', '.join(there)}"] if len(there) > 1 else []
    filled = f"filled: significant{' after correction' if corrected else ''}; hollow: not"
    filled += "; the bar: truth" if truth is not None else ""
    how: dict[str, Any] = {
        "axis": "\N{LEFTWARDS ARROW} less often than the groups' mean · "
        f"more often \N{RIGHTWARDS ARROW}; {100 * level:g}% intervals",
        "keys": (*nested, filled),
        "truth": truth, "digits": 3, "ranked": True,
    }  # fmt: skip
    lead = forest_of(
        gaps, name="answer", title="The clearest gaps, and what intervals draw anew", panel=(),
        most=_LEADING, **how,
    )  # fmt: skip
    drawn = [lead] if lead else []
    by = ["model", "method", "dataset", "style", "condition", "score"]
    if gaps.drop_nulls("value").select(*by, "probe", "attribute", "group").n_unique() <= _LEADING:
        return drawn
    for probe, attribute in wording.probe_order(gaps):
        part = gaps.filter(probe=probe, attribute=attribute)
        one = forest_of(part, name=slug("gaps", probe, attribute), title=attribute,
                        panel=by[:-2] + by[-1:], **how)  # fmt: skip
        drawn += [one] if one else []
    return drawn
