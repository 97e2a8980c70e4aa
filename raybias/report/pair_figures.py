"""The figures of pairs: every bias type with its interval, one panel per model or style.

Scores are drawn beside the value that means no bias, effects of styles beside 0. A filled
marker survives the correction for many tests (is significant, where there is none), a hollow
one does not; the averages stand apart, below the bias types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybias.report import figure_style, wording
from raybias.report.figures import Drawn, key, signed_tick, slug
from raybias.stats.intervals import Adjust
from raybias.stats.pairs import AVERAGES, ORIGINAL

_METRIC: Final = ("model", "score", "probe")
_ROOM: Final = 1.08
_LABELS: Final = {"avg_weighted": "all pairs", "avg_unweighted": "mean of types"}
_ACROSS: Final = 4


@dataclass(frozen=True)
class _Dots:
    """What a figure draws of a table."""

    column: str
    """The number; its interval is in `low` and `high`."""
    panels: str
    """The column with a panel for each of its values."""
    neutral: float
    """Where the line of no bias, or of no effect, is."""
    axis: str
    """What the number is, for the axis label."""
    adjust: Adjust
    level: float

    def draw(self, part: pl.DataFrame, title: str) -> str:
        """Return the figure of `part` as SVG."""
        names = part[self.panels].unique(maintain_order=True).to_list()
        types = sorted(set(part["bias_type"]) - set(AVERAGES))
        rows = [*types, *(name for name in AVERAGES if name in set(part["bias_type"]))]
        across = min(_ACROSS, len(names))
        down = math.ceil(len(names) / across)
        width = 1.9 + (2 * figure_style.WIDTH - 1.9) * across / _ACROSS
        with figure_style.drawing(
            max(width, figure_style.WIDTH), 1.25 + down * (0.75 + 0.26 * len(rows))
        ) as figure:
            panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
            for axes, name in zip(panels, names, strict=False):
                self._panel(axes, part.filter(pl.col(self.panels) == name), rows)
                axes.set_title(str(name).replace("_", " "), parse_math=False)
            for axes in panels[len(names) :]:
                axes.set_visible(False)
            # A panel with nothing below it bears the scale, in the last row or not.
            for place in range(max(0, len(names) - across), len(names)):
                panels[place].tick_params(labelbottom=True)
                panels[place].set_xlabel(f"{self.axis}, with {100 * self.level:g}% interval")
            self._scale(panels[0], part, rows)
            figure.suptitle(title, parse_math=False, fontsize=11, x=0.01, ha="left")
            strong = "survives correction" if self.adjust != "none" else "significant"
            handles = [
                key(figure_style.COLOURS[0], "o", strong),
                key(figure_style.COLOURS[0], "o", "not", hollow=True),
                key(figure_style.INK, "D", "average (of types: no test)", hollow=True),
            ]
            figure.legend(handles=handles, loc="outside lower center", ncols=3)
            return figure_style.to_svg(figure, title=title, description=self._described(part))

    def _scale(self, axes: Axes, part: pl.DataFrame, rows: list[str]) -> None:
        away = (pl.col(self.column, "low", "high") - self.neutral).abs().max()
        reach = part.select(pl.max_horizontal(away)).item()
        limit = _ROOM * reach if reach else 1.0
        labels = [_LABELS.get(row, row if len(row) <= 24 else f"{row[:23]}…") for row in rows]
        axes.set_yticks(range(len(rows)), labels, parse_math=False)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(self.neutral - limit, self.neutral + limit)
        axes.xaxis.set_major_locator(MaxNLocator(4, symmetric=not self.neutral))
        if not self.neutral:
            axes.xaxis.set_major_formatter(FuncFormatter(signed_tick))

    def _panel(self, axes: Axes, part: pl.DataFrame, rows: list[str]) -> None:
        figure_style.quiet_axes(axes, grid="x")
        axes.axvline(self.neutral, color=figure_style.INK, linewidth=1.0)
        for row in part.iter_rows(named=True):
            _dot(axes, row, row[self.column], rows.index(row["bias_type"]))

    def _described(self, part: pl.DataFrame) -> str:
        return "; ".join(
            f"{row[self.panels]} {row['bias_type']} {wording.signed(row[self.column])} "
            f"{wording.span(row['low'], row['high'])}"
            for row in part.iter_rows(named=True)
        )


def score_figures(scores: pl.DataFrame, *, level: float, adjust: Adjust) -> list[Drawn]:
    """Draw one figure per score and probe: the originals, a panel per model, on one scale.

    Parameters
    ----------
    scores: of `stats.pairs.bias_scores`.
    level: confidence level of its intervals, for the axis label.
    adjust: its correction, for the legend.
    """
    found = []
    originals = scores.filter(style=ORIGINAL)
    by = ["score", "probe"]
    for (score, probe), part in originals.group_by(by, maintain_order=True):
        neutral = float(part["neutral"][0])
        axis = "percent of pairs" if neutral else "points"
        what = "preference" if neutral else "pro \N{MINUS SIGN} anti"
        dots = _Dots("value", "model", neutral, axis, adjust, level)
        title = f"{what} on {probe or 'pairs'} ({score})"
        name = slug("bias_scores", *(str(value) for value in (score, probe) if value))
        found.append(Drawn(name, title, dots.draw(part, title)))
    return found


def effect_figures(effects: pl.DataFrame, *, level: float, adjust: Adjust) -> list[Drawn]:
    """Draw one figure per (model, score, probe), a panel per style, on one scale.

    Parameters
    ----------
    effects: of `stats.pairs.effects`.
    level: confidence level of its intervals, for the axis label.
    adjust: its correction, for the legend.
    """
    found = []
    dots = _Dots("effect", "style", 0.0, "points", adjust, level)
    for values in effects.select(_METRIC).unique(maintain_order=True).iter_rows():
        part = effects.filter(**dict(zip(_METRIC, values, strict=True)))
        model, score, probe = values
        title = f"{model} on {probe or 'pairs'} ({score}): effects of style"
        name = slug("style_effects", *(value for value in (model, score, probe) if value))
        found.append(Drawn(name, title, dots.draw(part, title)))
    return found


def _dot(axes: Axes, row: Mapping[str, Any], value: float, y: float) -> None:
    average = row["bias_type"] in AVERAGES
    colour = figure_style.INK if average else figure_style.COLOURS[0]
    strong = bool(row["survives"])
    if row["low"] is not None and row["high"] is not None:
        axes.plot([row["low"], row["high"]], [y, y], color=colour,
                  linewidth=2.4 if strong else 1.3, solid_capstyle="butt", zorder=2)  # fmt: skip
    axes.plot([value], [y], "D" if average else "o", color=colour, markersize=6,
              markeredgewidth=1.4, zorder=3,
              markerfacecolor=colour if strong else figure_style.PAPER)  # fmt: skip
