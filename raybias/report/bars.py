"""Lay estimates with nested intervals out as rows of text and bars, legible at any width.

A bar's ends are percentages of the scale, so that a page needs neither script nor picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.report import wording
from raybias.report.gap_figures import clearest, gap_names
from raybias.stats.scopes import SCOPES

#: Most rows of one figure, so that it stays above the fold.
MOST: Final = 10
#: Marks on the scale, about.
_TICKS: Final = 8
_VERDICTS: Final = {True: "significant", False: "not significant", None: "no verdict"}
_CORRECTED: Final = {
    "significant": "significant after correction",
    "not significant": "not significant after correction",
}


@dataclass(frozen=True)
class Bar:
    """One estimate: its name, value and intervals, the widest first."""

    name: str
    value: float
    text: str
    spans: tuple[tuple[str, float, float], ...]
    """The class of each interval (a scope), and its ends."""
    survives: bool | None
    truth: float | None = None


@dataclass(frozen=True)
class Bars:
    """Rows on one scale."""

    title: str
    axis: str
    rows: tuple[Bar, ...]
    neutral: float
    keys: Mapping[str, str]
    """What each class of interval means."""
    corrected: bool = False
    """Whether what is marked as significant is so after correction for many tests."""

    @property
    def _limit(self) -> float:
        """The half width of the scale, which `neutral` is the middle of."""
        ends = [end for row in self.rows for _, *both in row.spans for end in both]
        ends += [row.value for row in self.rows]
        ends += [row.truth for row in self.rows if row.truth is not None]
        return 1.05 * max((abs(end - self.neutral) for end in ends), default=0.0) or 1.0

    def place(self, value: float) -> str:
        """Return where a value is on the scale, as a percentage of its width."""
        return f"{50 + 50 * (value - self.neutral) / self._limit:.2f}"

    def width(self, low: float, high: float) -> str:
        """Return how wide an interval is, as a percentage of the scale."""
        return f"{50 * (high - low) / self._limit:.2f}"

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """The places and texts of round values on the scale."""
        rough = 2 * self._limit / _TICKS
        power = 10 ** math.floor(math.log10(rough))
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
        n = math.floor(self._limit / step)
        values = [self.neutral + place * step for place in range(-n, n + 1)]
        return [(self.place(value), self._tick(value)) for value in values]

    def _tick(self, value: float) -> str:
        text = f"{value:g}" if self.neutral else f"{value:+g}"
        return "0" if value == 0 else text.replace("-", "\N{MINUS SIGN}")

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """The classes and meanings of the marks in use."""
        return [
            (kind.replace(" ", "-"), _CORRECTED.get(kind, kind) if self.corrected else kind)
            for verdict, kind in _VERDICTS.items()
            if any(row.survives is verdict for row in self.rows)
        ]

    @staticmethod
    def mark(survives: bool | None) -> str:
        """Return the class of a mark, which says its verdict."""
        return _VERDICTS[survives].replace(" ", "-")


def nested_bars(
    scopes: pl.DataFrame,
    *,
    level: float,
    truth: pl.DataFrame | None = None,
    corrected: bool = True,
) -> list[Bars]:
    """Lay out the gaps least likely by chance with the intervals of every scope.

    Parameters
    ----------
    scopes: schema.SCOPES.
    truth: rate, group and `truth`, where the gaps are known.
    corrected: whether verdicts are corrected for many tests.
    """
    shown = clearest(scopes, most=MOST, truth=truth)
    if shown.is_empty():
        return []
    shares = all(map(wording.is_share, shown["rate"]))
    scale, digits = (100.0, 1) if shares else (1.0, 3)
    rows = [
        Bar(
            name,
            scale * row["gap"],
            _text(
                scale * row["gap"], [scale * end for end in row["intervals"][-1]["ends"]], digits
            ),
            tuple(
                (each["scope"], *(scale * end for end in each["ends"]))
                for each in reversed(row["intervals"])
            ),
            row["survives"],
            scale * row["truth"] if row.get("truth") is not None else None,
        )
        for name, row in zip(gap_names(shown), shown.iter_rows(named=True), strict=True)
    ]
    there = [scope for scope in SCOPES if (scopes["scope"] == scope).any()]
    unit = "percentage points" if shares else "the metric"
    return [
        Bars(
            "The clearest gaps, and what intervals draw anew",
            f"less or more often than average, in {unit}; {100 * level:g}% intervals",
            tuple(rows),
            0.0,
            {scope: wording.SCOPES[scope] for scope in there},
            corrected,
        )
    ]


def _text(value: float, ends: Sequence[float | None], digits: int, *, signs: bool = True) -> str:
    form = wording.signed if signs else wording.number
    said = form(value, digits)
    return said if None in ends else f"{said} [{', '.join(form(end, digits) for end in ends)}]"
