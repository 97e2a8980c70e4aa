"""The figures of t tests between lists of sentence scores (Figures 3 and 4 of Zhao2025).

A list is one side (the stereotyping sentences or the others) under one style. One figure
sets the two sides against each other, one the same side under two styles; a panel per
pair of lists, a marker per model. A filled marker is |t| > 1.96, a hollow one is not.
"""

from __future__ import annotations

import math
from typing import Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from raybias.report import figure_style, wording
from raybias.report.figures import Drawn, key, signed_tick, slug
from raybias.stats.pairs import LISTED_STYLES

#: Beyond this a list pair dwarfs the others, and t goes on in logarithms.
_LINEAR: Final = 15.0
_CRITICAL: Final = 1.96
_ACROSS: Final = 4
_ROOM: Final = 1.1
_KINDS: Final = {
    "sides": "stereotyping against other sentences",
    "styles": "the same sentences in two styles",
}


def t_figures(t_values: pl.DataFrame) -> list[Drawn]:
    """Two figures per score and probe: sides against each other, and styles.

    Parameters
    ----------
    t_values: of `stats.pairs.t_tests`. Each style's own sides are drawn, and each style
        against `original`; among the paper's three styles all 15 pairs of lists.
    """
    if t_values.is_empty():
        return []
    ends = t_values.drop_nulls("t_value").with_columns(
        pl.col(end).str.extract_groups(rf"^(?<{end}_style>.*)_(?<{end}_side>stereo|anti)$").alias(
            f"_{end}"
        )
        for end in ("first", "second")
    )  # fmt: skip
    split = ends.unnest("_first", "_second")
    same_style = pl.col("first_style") == pl.col("second_style")
    same_side = pl.col("first_side") == pl.col("second_side")
    listed = pl.all_horizontal(pl.col("first_style", "second_style").is_in(LISTED_STYLES))
    chosen = {
        "sides": ~same_side & (same_style | listed),
        "styles": same_side & (listed | (pl.col("first_style") == LISTED_STYLES[0])),
    }
    drawn = []
    for score, probe in t_values.select("score", "probe").unique(maintain_order=True).iter_rows():
        for kind, condition in chosen.items():
            part = split.filter(condition, score=score, probe=probe)
            if part.height:
                title = f"t tests of scores on {probe or 'pairs'} ({score}): {_KINDS[kind]}"
                name = slug("t_values", kind, *(value for value in (score, probe) if value))
                drawn.append(Drawn(name, title, _figure(part, title)))
    return drawn


def _figure(part: pl.DataFrame, title: str) -> str:
    lists = part.select("first", "second").unique(maintain_order=True).rows()
    models = part["model"].unique(maintain_order=True).to_list()
    types = part["bias_type"].unique().sort().to_list()
    across = min(_ACROSS, len(lists))
    down = math.ceil(len(lists) / across)
    width = max(1.9 + (2 * figure_style.WIDTH - 1.9) * across / _ACROSS, figure_style.WIDTH)
    row_inches = max(0.24, 0.085 * len(models) + 0.08)
    legend = 0.24 * math.ceil((len(models) + 2) / 4)
    height = 0.9 + legend + down * (0.75 + row_inches * len(types))
    with figure_style.drawing(width, height) as figure:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (first, second) in zip(panels, lists, strict=False):
            _panel(axes, part.filter(first=first, second=second), types, models)
            axes.set_title(f"{first}\nagainst {second}".replace("_", " "), fontsize=9.5,
                           parse_math=False)  # fmt: skip
        for axes in panels[len(lists) :]:
            axes.set_visible(False)
        _scale(panels[0], part, types)
        # A panel with nothing below it bears the scale, in the last row or not.
        for place in range(max(0, len(lists) - across), len(lists)):
            panels[place].tick_params(labelbottom=True)
            panels[place].set_xlabel("t, above 0: first is higher")
        figure.suptitle(title, parse_math=False, fontsize=11, x=0.01, ha="left")
        _legend(figure, models)
        return figure_style.to_svg(figure, title=title, description=_described(part))


def _panel(axes: Axes, part: pl.DataFrame, types: list[str], models: list[str]) -> None:
    figure_style.quiet_axes(axes, grid="y")
    axes.axvline(0, color=figure_style.INK, linewidth=1.0)
    for edge in (-_CRITICAL, _CRITICAL):
        axes.axvline(edge, color=figure_style.FAINT, linewidth=0.8, linestyle="--")
    step = min(0.8 / len(models), 0.24)
    for row in part.iter_rows(named=True):
        index = models.index(row["model"])
        colour, marker = figure_style.mark(index)
        y = types.index(row["bias_type"]) + (index - (len(models) - 1) / 2) * step
        axes.plot([row["t_value"]], [y], marker, color=colour, markersize=5.5, zorder=3,
                  markeredgewidth=1.2,
                  markerfacecolor=colour if row["marked"] else figure_style.PAPER)  # fmt: skip


def _scale(axes: Axes, part: pl.DataFrame, types: list[str]) -> None:
    reach = float(part.select(pl.col("t_value").abs().max()).item())
    labels = [name if len(name) <= 24 else f"{name[:23]}…" for name in types]
    axes.set_yticks(range(len(types)), labels, parse_math=False)
    axes.set_ylim(len(types) - 0.4, -0.6)
    if reach > _LINEAR:
        axes.set_xscale("symlog", linthresh=2 * _CRITICAL)
        tens = [t for t in (2.0, 10.0, 100.0, 1000.0) if t < reach]
        axes.xaxis.set_major_locator(FixedLocator([*(-t for t in reversed(tens)), 0.0, *tens]))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        reach *= _ROOM
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    axes.set_xlim(-_ROOM * max(reach, 2 * _CRITICAL), _ROOM * max(reach, 2 * _CRITICAL))
    axes.xaxis.set_major_formatter(FuncFormatter(signed_tick))


def _legend(figure: Figure, models: list[str]) -> None:
    several = len(models) > 1
    handles = [key(*figure_style.mark(i), name) for i, name in enumerate(models) if several]
    colour = figure_style.INK if several else figure_style.COLOURS[0]
    handles += [key(colour, "o", f"|t| > {_CRITICAL} (dashed)"),
                key(colour, "o", "less", hollow=True)]  # fmt: skip
    for handle in handles:
        handle.set_linestyle("")
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=4)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _described(part: pl.DataFrame) -> str:
    return "; ".join(
        f"{row['model']} {row['bias_type']} {row['first']} against {row['second']} "
        f"{wording.signed(row['t_value'], 2)}"
        for row in part.iter_rows(named=True)
    )
