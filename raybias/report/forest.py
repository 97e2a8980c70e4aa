"""Draw estimates with their intervals as one forest: an SVG whose places are percentages.

A filled dot is significant, a hollow one is not, and one with a broken line has no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from raybias.measures import Kind
from raybias.report import wording
from raybias.report.figure_parts import Drawn, slug
from raybias.report.rendering import rendered

#: Most rows of one figure; of more, the clearest are drawn.
_MOST: Final = 48
#: Pixels of a row, of a panel's title, and below the last row.
_ROW: Final = 36
_TITLE: Final = 28
_FOOT: Final = 30
#: Pixels of a letter, about.
_CHARACTER: Final = 7
#: Marks on the scale, about.
_TICKS: Final = 6
#: Columns that tell rows apart, and those of panels.
_NAMES: Final = ("probe", "method", "style", "condition", "attribute", "group", "score")
_PANEL: Final = "model"


@dataclass(frozen=True)
class Row:
    """One estimate: its name, text, value and intervals, the widest first."""

    name: str
    text: str
    value: float
    spans: tuple[tuple[float, float], ...]
    sure: bool | None
    """Whether it is significant; None without a verdict."""
    truth: float | None = None
    told: str = ""
    """What a reader is shown who points at it, instead of `text`."""


@dataclass(frozen=True)
class Forest:
    """Rows in panels on one scale."""

    name: str
    title: str
    axis: str
    panels: tuple[tuple[str, tuple[Row, ...]], ...]
    neutral: float = 0.0
    logarithmic: bool = False
    """Whether distances from `neutral` are drawn by their logarithms, beyond about 2."""
    one_sided: bool = False
    """Whether nothing lies below `neutral`."""
    band: tuple[float, float] | None = None
    """What is shaded."""
    keys: tuple[str, ...] = ("filled: significant; hollow: not; broken: no verdict",)

    def drawn(self) -> Drawn:
        """Return the figure as SVG."""
        svg = rendered("forest.svg.j2", {"forest": self})
        return Drawn(self.name, self.title, svg)

    def place(self, value: float) -> str:
        """Return where a value is on the scale, as a percentage of its width."""
        middle, half = (3, 94) if self.one_sided else (50, 47)
        return f"{middle + half * self._far(value) / self._limit:.2f}"

    def width(self, low: float, high: float) -> str:
        """Return how wide an interval is, as a percentage of the scale."""
        half = 94 if self.one_sided else 47
        return f"{max(half * (self._far(high) - self._far(low)) / self._limit, 0.1):.2f}"

    def _far(self, value: float) -> float:
        far = value - self.neutral
        return math.copysign(math.log1p(abs(far) / 2), far) if self.logarithmic else far

    @cached_property
    def _limit(self) -> float:
        """The half width of the scale, which `neutral` is the middle of."""
        rows = [row for _, each in self.panels for row in each]
        ends = [end for row in rows for span in row.spans for end in span]
        ends += [end for row in rows for end in (row.value, row.truth) if end is not None]
        ends += self.band or ()
        return 1.05 * max((abs(self._far(end)) for end in ends), default=0.0) or 1.0

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """The places and texts of round values on the scale."""
        if self.logarithmic:
            powers = [10.0**n for n in range(4) if self._far(10.0**n + self.neutral) < self._limit]
            offsets = [*(-power for power in reversed(powers)), 0.0, *powers]
        else:
            rough = 2 * self._limit / _TICKS
            power = 10 ** math.floor(math.log10(rough))
            step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
            n = math.floor(self._limit / step)
            offsets = [place * step for place in range(0 if self.one_sided else -n, n + 1)]
        values = [self.neutral + offset for offset in offsets]
        form = "{:g}" if self.neutral else "{:+g}"
        return [
            (self.place(v), form.format(v).replace("-", "\N{MINUS SIGN}") if v else "0")
            for v in values
        ]

    @property
    def laid(self) -> list[tuple[int, Row]]:
        """Each row and the line of its text, from the top."""
        return [(y, row) for y, row in self._lines() if isinstance(row, Row)]

    @property
    def titles(self) -> list[tuple[int, str]]:
        """The title of each panel and its line."""
        return [(y, text) for y, text in self._lines() if isinstance(text, str)]

    def _lines(self) -> Iterator[tuple[int, Row | str]]:
        y = 0
        for title, rows in self.panels:
            if title:
                yield y + 18, title
                y += _TITLE
            for row in rows:
                yield y + 14, row
                y += _ROW

    @property
    def top(self) -> int:
        """Where the line of no bias begins."""
        return _TITLE if self.panels and self.panels[0][0] else 0

    @property
    def bottom(self) -> int:
        """Where the scale is."""
        titles = sum(1 for title, _ in self.panels if title)
        return _TITLE * titles + _ROW * sum(len(rows) for _, rows in self.panels)

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return self.bottom + _FOOT + 16 * len(self.lines)

    @property
    def lines(self) -> list[str]:
        """What the scale and the marks are, below the scale."""
        return [*self.axis.split("; "), *self.keys]

    @property
    def least(self) -> int:
        """Pixels across that names and texts need beside one another."""
        rows = [row for _, each in self.panels for row in each]
        names, texts = ([getattr(row, name) for row in rows] for name in ("name", "text"))
        longest = sum(max(map(len, each), default=0) for each in (names, texts))
        small = max(map(len, self.lines[1:]), default=0)
        return max(_CHARACTER * longest + 20, (_CHARACTER - 1) * small)


def forest_of(
    kind: Kind,
    estimates: pl.DataFrame,
    *,
    title: str,
    neutral: float,
    scale: float = 1.0,
    digits: int = 1,
    logarithmic: bool = False,
) -> Forest | None:
    """Draw estimates of one kind, a panel for each model; None where there is none.

    Parameters
    ----------
    estimates: schema.ESTIMATES of one quantity. Rows that differ in their scope alone are one,
        with nested intervals; of many rows those farthest from no bias for their width are drawn.
    neutral: the value that means no bias.
    """
    known = estimates.drop_nulls("value")
    if known.is_empty():
        return None
    keys = [name for name in _NAMES if known[name].n_unique() > 1]
    wide = (pl.col("high") - pl.col("low")).fill_null(0)
    by = [_PANEL, *keys]
    rows = known.sort(wide, descending=True, maintain_order=True).group_by(
        by, maintain_order=True
    ).agg(
        pl.col("value", "survives", "significant", "reason").first(),
        low=pl.col("low"), high=pl.col("high"),
    )  # fmt: skip
    far = (pl.col("value") - neutral).abs() / (pl.col("high").list.first() - pl.col("value"))
    place = known.select(by).unique(maintain_order=True)
    shown = rows.sort(far, descending=True, nulls_last=True).head(_MOST)
    shown = place.join(shown, on=by, how="inner", maintain_order="left")
    signed = neutral == 0
    panels = tuple(
        (str(model) if known[_PANEL].n_unique() > 1 and keys else "",
         tuple(_row(row, keys, scale, digits, signed) for row in part.iter_rows(named=True)))
        for (model,), part in shown.group_by(_PANEL, maintain_order=True)
    )  # fmt: skip
    more = f"; the clearest {shown.height} of {rows.height}" if shown.height < rows.height else ""
    name = slug(kind.name, *title.partition(":")[0].lower().split())
    return Forest(name, title, f"{title}{more}", panels, neutral * scale, logarithmic)


def _row(row: dict[str, Any], keys: Sequence[str], scale: float, digits: int, signed: bool) -> Row:
    spans = [
        (scale * low, scale * high)
        for low, high in zip(row["low"], row["high"], strict=True)
        if low is not None and high is not None
    ]
    name = ", ".join(wording.bias_type(str(row[key])) for key in keys if row[key]) or row[_PANEL]
    value = scale * row["value"]
    text = wording.estimate(value, spans[0] if spans else (), digits, plus=signed)
    sure = row["survives"] if row["survives"] is not None else row["significant"]
    return Row(wording.spaced(name), text, value, tuple(spans), sure)
