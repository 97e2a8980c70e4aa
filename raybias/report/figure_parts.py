"""The parts that figures are put together from: panels of named rows, dots with intervals, keys.

A filled marker is a significant value, a hollow one is not, a small one on a dotted interval has
no verdict, so that figures do not rest on colour.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import polars as pl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from raybias.report import wording
from raybias.report.figure_style import (
    COLOURS,
    INK,
    PAPER,
    WIDTH,
    inline,
    mark,
    quiet_axes,
    tip,
    to_svg,
)
from raybias.storage import Store

Key = TypeVar("Key", bound=Hashable)

#: Most panels side by side.
ACROSS: Final = 4
#: Inches that the names of rows take.
_NAMES: Final = 1.9


@dataclass(frozen=True)
class Drawn:
    """One finished figure."""

    name: str
    """Its file name in OUT/figures, without suffix."""
    title: str
    svg: str


@dataclass(frozen=True)
class Shown:
    """Figures that a notebook shows."""

    figures: tuple[Drawn, ...]

    def _repr_html_(self) -> str:
        ink = "--paper: #ffffff; --faint: #5d6876; color: #16202b; background: #ffffff"
        return f'<div style="{ink}">{Markup().join(inlined(self.figures, "n"))}</div>'

    def save(self, folder: str | Path) -> None:
        """Write each figure to a folder as SVG.

        Raises
        ------
        OutputError: it cannot be written.
        """
        store = Store(folder)
        for figure in self.figures:
            store.write_text(f"{figure.name}.svg", figure.svg)


def write_figures(store: Store, figures: Iterable[Drawn]) -> None:
    """Write each figure to OUT/figures."""
    for figure in figures:
        store.write_text(f"figures/{figure.name}.svg", figure.svg)


def inlined(figures: Iterable[Drawn], prefix: str) -> tuple[Markup, ...]:
    """Return figures to put into a page, in order; their ids begin with `prefix`."""
    return tuple(Markup(inline(one.svg, f"{prefix}{i}")) for i, one in enumerate(figures))


def slug(*parts: str) -> str:
    """Return a file name of the parts; a hash keeps apart parts that are no file names."""
    text = ".".join(parts)
    safe = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).strip(".-")[:120]
    if safe == text:
        return safe
    return f"{safe}.{hashlib.blake2b(text.encode('utf-8'), digest_size=4).hexdigest()}"


def grid_size(n_panels: int) -> tuple[float, int]:
    """Return the inches and the rows of panels that `n_panels` take, at most `ACROSS` abreast."""
    across = min(ACROSS, n_panels)
    width = _NAMES + (2 * WIDTH - _NAMES) * across / ACROSS
    return max(width, WIDTH), math.ceil(n_panels / across)


def panels(
    figure: Figure,
    titles: Mapping[Key, str],
    rows: Sequence[str],
    *,
    axis: str,
    neutral: float | None = 0.0,
    grid: Literal["x", "y"] = "x",
    margin: float = 0.55,
    title_size: float = 11.0,
) -> dict[Key, Axes]:
    """Draw empty panels that share their rows and scale.

    Parameters
    ----------
    titles: of the panels, by what is to be drawn in each.
    rows: names of the rows, from the top.
    axis: label of the scale.
    neutral: where the line of no effect is; None for no line.
    margin: rows between the outermost row and the edge.
    """
    across = min(ACROSS, len(titles))
    down = math.ceil(len(titles) / across)
    places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    drawn = dict(zip(titles, places, strict=False))
    for place, (key, axes) in enumerate(drawn.items()):
        quiet_axes(axes, grid=grid)
        if neutral is not None:
            axes.axvline(neutral, color=INK, linewidth=1.0)
        axes.set_title(titles[key], fontsize=title_size)
        # A panel with nothing below it bears the scale, in the last row or not.
        if place >= len(titles) - across:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(axis)
    for axes in places[len(titles) :]:
        axes.set_visible(False)
    places[0].set_yticks(range(len(rows)), rows)
    places[0].set_ylim(len(rows) - 1 + margin, -margin)
    return drawn


def headed(figure: Figure, title: str) -> None:
    """Write the title of a figure of several panels."""
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")


def dot(
    axes: Axes,
    x: float | None,
    y: float,
    style: tuple[str, str],
    *,
    verdict: bool | None,
    interval: tuple[float | None, float | None] = (None, None),
    size: float = 7.0,
    told: str = "",
) -> None:
    """Draw a value with its interval; a missing value or interval is left out.

    Parameters
    ----------
    style: colour and marker.
    verdict: whether it is significant; None where that is not judged.
    interval: its ends.
    size: of the marker, in points.
    told: what is shown where the marker is pointed at.
    """
    if x is None:
        return
    low, high = interval
    if low is not None and high is not None:
        look = _line(verdict)
        axes.plot([low, high], [y, y], color=style[0], **look, solid_capstyle="butt", zorder=2)
    gid = tip(told) if told else None
    axes.plot([x], [y], linestyle="", **_marker(style, verdict, size), zorder=3, gid=gid)


def estimate(
    axes: Axes,
    row: Mapping[str, Any],
    column: str,
    y: float,
    style: tuple[str, str],
    *,
    size: float = 7.0,
    name: str = "",
) -> None:
    """Draw the estimate in a column of a table's row as `dot`, by `low`, `high` and `survives`."""
    interval = (row["low"], row["high"])
    told = f"{name}: {wording.signed(row[column])} {wording.span(*interval)}".strip()
    dot(
        axes,
        row[column],
        y,
        style,
        verdict=row["survives"],
        interval=interval,
        size=size,
        told=told,
    )


def legend_key(style: tuple[str, str], label: str, verdict: bool | None = True) -> Line2D:
    """Return one entry of a legend: a marker as `dot` draws it, on its interval."""
    return Line2D([], [], label=label, **_marker(style, verdict, 7.0), **_line(verdict))


def meanings(
    verdicts: pl.Series,
    *,
    strong: str = "significant after any correction",
    weak: str = "not significant",
) -> dict[str, bool | None]:
    """Say what markers mean, as a legend has it; `no verdict` only where a value has none."""
    unjudged: dict[str, bool | None] = {"no verdict": None} if verdicts.has_nulls() else {}
    return {strong: True, weak: False} | unjudged


def series_keys(names: Sequence[str], verdicts: Mapping[str, bool | None]) -> list[Line2D]:
    """Return the entries of several series, and of what their markers mean.

    Parameters
    ----------
    names: of the series; a single one needs no entry.
    verdicts: of `meanings`.
    """
    if len(names) == 1:
        names = ()
    keys = [legend_key(mark(index), name) for index, name in enumerate(names)]
    colour = INK if names else COLOURS[0]
    return keys + [legend_key((colour, "o"), text, kind) for text, kind in verdicts.items()]


def finished(
    figure: Figure, title: str, keys: Sequence[Any], described: Iterable[str], *, columns: int
) -> str:
    """Return a figure as SVG, with a legend of `keys` below it and its values described."""
    figure.legend(handles=keys, loc="outside lower center", ncols=columns)
    return to_svg(figure, title=title, description="; ".join(described))


def offset(index: int, n_series: int) -> float:
    """Return how far the series `index` of several lies below the middle of its row."""
    return (index - (n_series - 1) / 2) * min(0.8 / n_series, 0.24)


def reach(frame: pl.DataFrame, *columns: str, neutral: float = 0.0) -> float:
    """Return the largest distance of any value of the columns from `neutral`; 0 without any."""
    largest = frame.select(pl.max_horizontal((pl.col(columns) - neutral).abs().max())).item()
    return float(largest or 0.0)


def centre(axes: Axes, limit: float, *, ticks: int, neutral: float = 0.0) -> None:
    """Scale panels to `limit` on both sides of `neutral`, with signs where that is 0."""
    axes.set_xlim(neutral - limit, neutral + limit)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, symmetric=not neutral))
    if not neutral:
        axes.xaxis.set_major_formatter(signed_tick)


def signed_tick(value: float, _: float | None = None) -> str:
    """Return a tick label with its sign."""
    text = f"{value:+.3f}".rstrip("0").rstrip(".")
    return "0" if text in ("+0", "-0") else text.replace("-", "\N{MINUS SIGN}")


def _line(verdict: bool | None) -> dict[str, Any]:
    return {"linewidth": 2.4 if verdict else 1.3, "linestyle": ":" if verdict is None else "-"}


def _marker(style: tuple[str, str], verdict: bool | None, size: float) -> dict[str, Any]:
    colour, marker = style
    return {
        "color": colour,
        "marker": marker,
        "markersize": 0.6 * size if verdict is None else size,
        "markeredgewidth": 1.5,
        "markerfacecolor": colour if verdict else PAPER,
    }
