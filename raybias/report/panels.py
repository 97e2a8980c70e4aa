"""Draw groups across and a mark for each model, in panels on one scale, as papers lay them out.

The file is complete: it has a background of its own, and every row that it is given is in it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from raybias.report import wording
from raybias.report.rendering import Drawn, rendered, round_values

#: Outlines of marks around 0, 0, and their colours: as many pairs as both numbers make.
_SHAPES: Final = (
    "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z",
    "M-4,-4h8v8h-8z",
    "M0,-5.5L5.2,4H-5.2z",
    "M0,-5.8L5.8,0L0,5.8L-5.8,0z",
    "M0,5.5L5.2,-4H-5.2z",
    "M-5,0L-2.5,-4.4H2.5L5,0L2.5,4.4H-2.5z",
    "M-1.8,-5.2h3.6v3.4h3.4v3.6h-3.4v3.4h-3.6v-3.4h-3.4v-3.6h3.4z",
)
_COLOURS: Final = (
    *("#0077bb", "#cc3311", "#00806f", "#7b3294", "#a65300", "#333333", "#3a87b8", "#5a8f16"),
)
#: Pixels of a letter, about; of a plot, above it (its title) and below the names of groups.
_CHARACTER: Final = 7
_PLOT: Final = 210
_ABOVE: Final = 26
_BELOW: Final = 20
#: Letters of a line of a group's name, and pixels of that line.
_NAME: Final = 13
_NAME_LINE: Final = 14
#: Pixels left of a plot, between marks of one group, and between groups.
_LEFT: Final = 52
_MARK: Final = 13
_BETWEEN: Final = 22
#: Pixels that panels side by side fill at most, and the least of a whole figure.
_WIDEST: Final = 2000
_LEAST: Final = 560
_LINE: Final = 18
_TICKS: Final = 6


@dataclass(frozen=True)
class _Mark:
    """One estimate; places in pixels of its plot."""

    x: float
    y: float
    ends: tuple[float, float] | None
    sure: bool | None
    """Whether it is significant; None without a verdict."""
    series: int
    told: str

    @property
    def shape(self) -> str:
        return _SHAPES[self.series % len(_SHAPES)]

    @property
    def colour(self) -> str:
        return _COLOURS[self.series % len(_COLOURS)]


@dataclass(frozen=True)
class _Panels:
    """Rows with panel, series, group, value, low, high and sure, in the order to draw them."""

    title: str
    described: str
    axis: str
    keys: str
    rows: pl.DataFrame
    most_columns: int

    @cached_property
    def groups(self) -> list[str]:
        return self._names("group")

    @cached_property
    def series(self) -> list[str]:
        return self._names("series")

    @cached_property
    def panels(self) -> list[str]:
        return self._names("panel")

    def _names(self, column: str) -> list[str]:
        return [str(name) for name in self.rows[column].unique(maintain_order=True)]

    @cached_property
    def names(self) -> list[list[str]]:
        """The lines of each group's name."""
        return [
            textwrap.wrap(group, _NAME, break_long_words=False) or [""] for group in self.groups
        ]

    @cached_property
    def slot(self) -> int:
        """Pixels of one group."""
        longest = max(len(line) for lines in self.names for line in lines)
        return max(_MARK * len(self.series) + _BETWEEN, _CHARACTER * longest + 8)

    @cached_property
    def panel_height(self) -> int:
        """Pixels of a panel with its title and names."""
        return _ABOVE + _PLOT + _BELOW + _NAME_LINE * max(map(len, self.names))

    @property
    def plot_width(self) -> int:
        return self.slot * len(self.groups)

    @property
    def columns(self) -> int:
        whole = _LEFT + self.plot_width + _BETWEEN
        fits = max(1, _WIDEST // max(whole, _CHARACTER * max(map(len, self.panels))))
        return min(fits, self.most_columns, len(self.panels))

    @property
    def panel_width(self) -> int:
        return max(_LEFT + self.plot_width, _CHARACTER * max(map(len, self.panels))) + _BETWEEN

    @property
    def width(self) -> int:
        return max(self.columns * self.panel_width + _BETWEEN, _LEAST)

    @property
    def letters(self) -> int:
        """How many letters a line of text has at most."""
        return (self.width - 2 * _BETWEEN) // _CHARACTER

    @property
    def title_lines(self) -> list[str]:
        return textwrap.wrap(self.title, round(0.85 * self.letters))

    @property
    def foot_lines(self) -> list[str]:
        return textwrap.wrap(self.keys, self.letters)

    @cached_property
    def legend(self) -> list[tuple[int, int, str, _Mark]]:
        """Places of the models' marks and names, from the left and from the first line's top."""
        found = []
        x, y = _BETWEEN, 0
        for number, name in enumerate(self.series):
            wide = _CHARACTER * len(name) + 34
            if x > _BETWEEN and x + wide > self.width - _BETWEEN:
                x, y = _BETWEEN, y + _LINE
            found.append((x, y, name, _Mark(x, y, None, True, number, name)))
            x += wide
        return found

    @property
    def head(self) -> int:
        """Pixels above the legend."""
        return 12 + _LINE * (len(self.title_lines) + 1)

    @property
    def top(self) -> int:
        """Pixels above the first panel."""
        return self.head + self.legend[-1][1] + 2 * _LINE

    @property
    def foot(self) -> int:
        """Pixels above the text below the panels."""
        lines = -(-len(self.panels) // self.columns)
        return self.top + lines * self.panel_height

    @property
    def height(self) -> int:
        return self.foot + _LINE * (len(self.foot_lines) + 1)

    @property
    def plot_height(self) -> int:
        return _PLOT

    @cached_property
    def _scale(self) -> tuple[float, float]:
        columns = (self.rows[name].drop_nulls() for name in ("value", "low", "high"))
        ends = [end for column in columns for end in column]
        low, high = min(0.0, *ends), max(0.0, *ends)
        room = 0.06 * (high - low) or 1.0
        return low - room, high + room

    def down(self, value: float) -> float:
        """Pixels from the top of a plot to a value."""
        low, high = self._scale
        return round(_PLOT * (high - value) / (high - low), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        shown = (value + 0.0 for value in round_values(*self._scale, _TICKS))
        return [
            (self.down(v), f"{v:+.6g}".replace("-", "\N{MINUS SIGN}") if v else "0") for v in shown
        ]

    @property
    def placed(self) -> Iterator[tuple[int, int, str, list[_Mark]]]:
        """Yield each panel's place, title and marks."""
        place = {name: number for number, name in enumerate(self.series)}
        across = {name: number for number, name in enumerate(self.groups)}
        by_panel = self.rows.partition_by("panel", as_dict=True, maintain_order=True)
        for number, ((title,), part) in enumerate(by_panel.items()):
            row, column = divmod(number, self.columns)
            marks = [
                self._mark(each, across[each["group"]], place[each["series"]])
                for each in part.iter_rows(named=True)
            ]
            yield (
                _LEFT + column * self.panel_width,
                self.top + row * self.panel_height + _ABOVE,
                str(title),
                marks,
            )

    def _mark(self, row: Mapping[str, Any], group: int, series: int) -> _Mark:
        middle = self.slot * (group + 0.5) + _MARK * (series - (len(self.series) - 1) / 2)
        value, low, high = (row[name] for name in ("value", "low", "high"))
        ends = None if low is None or high is None else (self.down(high), self.down(low))
        told = f"{row['series']}, {row['group']}: {wording.interval(value, low, high, digits=2)}"
        return _Mark(round(middle, 1), self.down(value), ends, row["sure"], series, told)


def panels_of(
    rows: pl.DataFrame,
    *,
    name: str,
    title: str,
    described: str,
    axis: str,
    keys: Sequence[str] = (),
    most_columns: int = 3,
) -> Drawn | None:
    """Draw rows of panel, series, group, value, low, high and sure; None if none has a value.

    Parameters
    ----------
    rows: in the order of panels, series (one mark each) and groups (across); `sure` is whether a
        value is significant, null without a verdict.
    described: what a reader who does not see the figure is told.
    axis: what the values are, with their unit.
    keys: explains marks, intervals and groups, below the panels.
    most_columns: panels side by side, at most.
    """
    known = rows.drop_nulls("value").filter(pl.col("value").is_finite())
    if known.is_empty():
        return None
    filled = ["filled: significant; hollow: not"] if known["sure"].count() else []
    filled += ["dashed: no verdict"] if known["sure"].null_count() else []
    whole = _Panels(title, described, axis, "; ".join([*keys, *filled]), known, most_columns)
    return Drawn(name, rendered("panels.svg.j2", {"figure": whole}))
