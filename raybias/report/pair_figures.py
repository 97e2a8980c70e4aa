"""Draw pairs: every bias type with its interval, one panel per model or style.

Scores are drawn beside the value that means no bias, effects of styles beside 0; the averages
stand apart, below the bias types. A mean over styles has two nested intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from matplotlib.lines import Line2D

from raybias.report import figure_parts as parts
from raybias.report import wording
from raybias.report.figure_style import COLOURS, INK, drawing
from raybias.stats.intervals import Adjust
from raybias.stats.pairs import AVERAGES, ORIGINAL

_METRIC: Final = ("model", "score", "probe")
_ROOM: Final = 1.08
#: How the narrower of two nested intervals is drawn, behind the wider.
_INNER: Final[Mapping[str, Any]] = {"linewidth": 7.0, "alpha": 0.3, "solid_capstyle": "butt"}


@dataclass(frozen=True)
class _Dots:
    """What a figure draws of a table."""

    column: str
    """The number; its interval is in `low` and `high`."""
    panels: str
    """The column with a panel for each of its values."""
    axis: str
    """What the number is, for the axis label."""
    level: float
    adjust: Adjust
    neutral: float = 0.0
    """Where the line of no bias, or of no effect, is."""

    def draw(self, part: pl.DataFrame, title: str) -> str:
        """Return the figure of `part` as SVG."""
        names = part[self.panels].unique(maintain_order=True).to_list()
        types = sorted(set(part["bias_type"]) - set(AVERAGES))
        rows = [*types, *(name for name in AVERAGES if name in set(part["bias_type"]))]
        width, down = parts.grid_size(len(names))
        with drawing(width, 1.25 + down * (0.75 + 0.26 * len(rows))) as figure:
            drawn = parts.panels(
                figure,
                {name: str(name).replace("_", " ") for name in names},
                [wording.shortened(wording.bias_type(row), 24) for row in rows],
                axis=f"{self.axis}, with {100 * self.level:g}% interval",
                neutral=self.neutral,
                margin=0.6,
            )
            # An average without a test is drawn as not significant; the legend says which.
            average = pl.col("bias_type").is_in(AVERAGES)
            untested = average & pl.col("survives").is_null()
            shown = part.with_columns(
                survives=pl.when(~untested).then("survives").otherwise(pl.lit(False))
            )
            for row in shown.iter_rows(named=True):
                style = (INK, "D") if row["bias_type"] in AVERAGES else (COLOURS[0], "o")
                y = rows.index(row["bias_type"])
                if row.get("inner_low") is not None:
                    ends = [row["inner_low"], row["inner_high"]]
                    drawn[row[self.panels]].plot(ends, [y, y], color=style[0], **_INNER)
                name = f"{row[self.panels]}, {row['bias_type']}"
                parts.estimate(
                    drawn[row[self.panels]], row, self.column, y, style, size=6, name=name
                )
            furthest = parts.reach(part, self.column, "low", "high", neutral=self.neutral)
            parts.centre(
                drawn[names[0]], _ROOM * furthest if furthest else 1.0, ticks=4,
                neutral=self.neutral,
            )  # fmt: skip
            parts.headed(figure, title)
            strong = "survives correction" if self.adjust != "none" else "significant"
            tested = part.filter(~average)["survives"]
            keys = parts.series_keys([""], parts.meanings(tested, strong=strong, weak="not"))
            if "inner_low" in part.columns:
                keys.append(Line2D([], [], label="other pairs, same styles", color=INK, **_INNER))
            keys.append(parts.legend_key((INK, "D"), "average (of types: no test)", False))
            described = (
                f"{row[self.panels]} {row['bias_type']} {wording.signed(row[self.column])} "
                f"{wording.span(row['low'], row['high'])}"
                for row in part.iter_rows(named=True)
            )
            # Four keys are wider than a figure of one panel.
            columns = 2 if len(names) == 1 and len(keys) > 3 else len(keys)
            return parts.finished(figure, title, keys, described, columns=columns)


def score_figures(scores: pl.DataFrame, *, level: float, adjust: Adjust) -> list[parts.Drawn]:
    """Draw one figure per score and probe: the originals, a panel per model, on one scale.

    Parameters
    ----------
    scores: of `stats.pairs.bias_scores`.
    level: confidence level of its intervals, for the axis label.
    adjust: its correction, for the legend.
    """
    originals = scores.filter(style=ORIGINAL)
    return [
        _value_figure(part, "bias_scores", "preference" if neutral else "pro \N{MINUS SIGN} anti",
                      neutral=neutral, level=level, adjust=adjust)
        for part, neutral in _by_score(originals)
    ]  # fmt: skip


def scope_figures(scopes: pl.DataFrame, *, level: float, adjust: Adjust) -> list[parts.Drawn]:
    """Draw one figure per score and probe: means over styles, other pairs inside other styles.

    Parameters
    ----------
    scopes: of `stats.pairs.style_scopes`.
    level: confidence level of its intervals, for the axis label.
    adjust: its correction, for the legend.
    """
    inner = scopes.filter(scope="pairs").select(
        *_METRIC, "bias_type", inner_low="low", inner_high="high"
    )
    wide = scopes.filter(scope="styles").join(
        inner, on=[*_METRIC, "bias_type"], how="left", maintain_order="left"
    )
    return [
        _value_figure(part, "style_scopes", "mean over styles",
                      neutral=neutral, level=level, adjust=adjust)
        for part, neutral in _by_score(wide)
    ]  # fmt: skip


def _by_score(values: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, float]]:
    """Yield the part of each score and probe, with its value of no bias."""
    for part in values.partition_by("score", "probe", maintain_order=True):
        yield part, float(part["neutral"][0])


def _value_figure(
    part: pl.DataFrame, kind: str, what: str, *, neutral: float, level: float, adjust: Adjust
) -> parts.Drawn:
    """Draw the values of one score and probe, a panel per model."""
    score, probe = part.select("score", "probe").row(0)
    title = f"{what} on {probe or 'pairs'} ({score})"
    name = parts.slug(kind, *(value for value in (score, probe) if value))
    axis = "percent of pairs" if neutral else "points"
    svg = _Dots("value", "model", axis, level, adjust, neutral).draw(part, title)
    return parts.Drawn(name, title, svg)


def effect_figures(effects: pl.DataFrame, *, level: float, adjust: Adjust) -> list[parts.Drawn]:
    """Draw one figure per (model, score, probe), a panel per style, on one scale.

    Parameters
    ----------
    effects: of `stats.pairs.effects`.
    level: confidence level of its intervals, for the axis label.
    adjust: its correction, for the legend.
    """
    figures = []
    dots = _Dots("effect", "style", "points", level, adjust)
    for model, score, probe in effects.select(_METRIC).unique(maintain_order=True).iter_rows():
        part = effects.filter(model=model, score=score, probe=probe)
        title = f"{model} on {probe or 'pairs'} ({score}): effects of style"
        name = parts.slug("style_effects", *(value for value in (model, score, probe) if value))
        figures.append(parts.Drawn(name, title, dots.draw(part, title)))
    return figures
