"""Draw t tests between lists of sentence scores (Zhao2025, figures 3 and 4).

A list is one side (the stereotyping sentences or the others) under one style. One figure
sets the two sides against each other, one the same side under two styles; a panel per
pair of lists, a marker per model. A filled marker is |t| > 1.96, a hollow one is not.
"""

from __future__ import annotations

import math
from typing import Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from raybias.report import figure_parts as parts
from raybias.report import wording
from raybias.report.figure_style import FAINT, drawing, mark
from raybias.stats.pairs import LISTED_STYLES

#: Beyond this a list pair dwarfs the others, and t goes on in logarithms.
_LINEAR: Final = 15.0
_CRITICAL: Final = 1.96
_ROOM: Final = 1.1
_KINDS: Final = {
    "sides": "stereotyping against other sentences",
    "styles": "the same sentences in two styles",
}


def t_figures(t_values: pl.DataFrame) -> list[parts.Drawn]:
    """Draw two figures per score and probe: sides against each other, and styles.

    Parameters
    ----------
    t_values: of `stats.pairs.t_tests`. The two sides of each style are drawn, and each style
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
                name = parts.slug("t_values", kind, *(value for value in (score, probe) if value))
                drawn.append(parts.Drawn(name, title, _figure(part, title)))
    return drawn


def _figure(part: pl.DataFrame, title: str) -> str:
    lists = part.select("first", "second").unique(maintain_order=True).rows()
    models = part["model"].unique(maintain_order=True).to_list()
    types = part["bias_type"].unique().sort().to_list()
    width, down = parts.grid_size(len(lists))
    row_inches = max(0.24, 0.085 * len(models) + 0.08)
    legend_inches = 0.24 * math.ceil((len(models) + 2) / 4)
    height = 0.9 + legend_inches + down * (0.75 + row_inches * len(types))
    with drawing(width, height) as figure:
        drawn = parts.panels(
            figure,
            {pair: f"{pair[0]}\nagainst {pair[1]}".replace("_", " ") for pair in lists},
            [wording.shortened(name, 24) for name in types],
            axis="t, above 0: first is higher",
            grid="y",
            margin=0.6,
            title_size=9.5,
        )
        for axes in drawn.values():
            for edge in (-_CRITICAL, _CRITICAL):
                axes.axvline(edge, color=FAINT, linewidth=0.8, linestyle="--")
        for row in part.iter_rows(named=True):
            index = models.index(row["model"])
            y = types.index(row["bias_type"]) + parts.offset(index, len(models))
            parts.dot(
                drawn[row["first"], row["second"]],
                row["t_value"],
                y,
                mark(index),
                verdict=bool(row["marked"]),
                size=5.5,
            )
        _scale(drawn[lists[0]], parts.reach(part, "t_value"))
        parts.headed(figure, title)
        keys = parts.series_keys(models, {f"|t| > {_CRITICAL} (dashed)": True, "less": False})
        for key in keys:
            key.set_linestyle("")
        described = (
            f"{row['model']} {row['bias_type']} {row['first']} against {row['second']} "
            f"{wording.signed(row['t_value'], 2)}"
            for row in part.iter_rows(named=True)
        )
        return parts.finished(figure, title, keys, described, columns=4)


def _scale(axes: Axes, largest: float) -> None:
    parts.centre(axes, _ROOM * max(largest, 2 * _CRITICAL), ticks=5)
    if largest > _LINEAR:
        axes.set_xscale("symlog", linthresh=2 * _CRITICAL)
        tens = [t for t in (2.0, 10.0, 100.0, 1000.0) if t < largest]
        axes.xaxis.set_major_locator(FixedLocator([*(-t for t in reversed(tens)), 0.0, *tens]))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.xaxis.set_major_formatter(parts.signed_tick)
        limit = _ROOM * _ROOM * largest
        axes.set_xlim(-limit, limit)
