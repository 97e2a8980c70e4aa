"""The figure of "is this bias, or the template?": marking effects beside gaps.

One figure per probe, attribute and classifier, a panel per rate. A filled marker is
significant, a hollow one is not; the band is the effect of a neutral word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybias import schema
from raybias.report import figure_style, wording
from raybias.report.figures import Drawn, key, signed_tick, slug

#: Effect, its place in a group's row, its colour and marker, and how the legend has it.
_SHOWN: Final = (
    ("marking_effect", -0.16, 1, "named, against not named"),
    ("gap", 0.16, 0, "gap, against the groups' mean"),
)
_BAND: Final = 0.16


def marked_figures(markedness: pl.DataFrame, *, level: float) -> dict[tuple[str, ...], Drawn]:
    """One figure per (model, method, dataset, probe, style, attribute).

    Parameters
    ----------
    markedness: schema.MARKEDNESS.
    level: confidence level of its intervals, for the axis label.
    """
    by = [*schema.KEYS, "attribute"]
    names = wording.shortest_keys(markedness)
    figures = {}
    for values in markedness.select(by).unique(maintain_order=True).iter_rows():
        row = dict(zip(by, values, strict=True))
        part = markedness.filter(pl.col(name).eq_missing(value) for name, value in row.items())
        title = f"{wording.classifier_name(row, names)} on {row['probe']}: {row['attribute']}"
        name = slug("markedness", *(row[key] for key in (*schema.KEYS[:3], "probe", "attribute")))
        figures[values] = Drawn(name, title, _figure(part, title, level))
    return figures


def _figure(part: pl.DataFrame, title: str, level: float) -> str:
    rates = part["rate"].unique(maintain_order=True).to_list()
    groups = _order(part)
    with figure_style.drawing(2 * figure_style.WIDTH, 1.9 + 0.42 * len(groups)) as figure:
        panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
        for axes, rate in zip(panels, rates, strict=True):
            _panel(axes, part.filter(rate=rate), groups)
            axes.set_title(wording.rate_title(rate))
            axes.set_xlabel(f"difference of rates with {100 * level:g}% interval")
        figure.suptitle(title, parse_math=False, fontsize=11, x=0.01, ha="left")
        _legend(figure, part)
        return figure_style.to_svg(figure, title=title, description=_described(part))


def _panel(axes: Axes, part: pl.DataFrame, groups: list[str]) -> None:
    figure_style.quiet_axes(axes, grid="x")
    axes.axvline(0, color=figure_style.INK, linewidth=1.0)
    for row in part.filter(effect="neutral_effect").iter_rows(named=True):
        low, high = row["low"], row["high"]
        if low is not None and high is not None:
            axes.axvspan(low, high, color=figure_style.FAINT, alpha=_BAND, linewidth=0)
        axes.axvline(row["estimate"], color=figure_style.FAINT, linewidth=1.2, linestyle="--")
    for effect, offset, index, _ in _SHOWN:
        for row in part.filter(effect=effect).iter_rows(named=True):
            _dot(axes, row, groups.index(row["group"]) + offset, index)
    short = [group if len(group) <= 28 else f"{group[:27]}…" for group in groups]
    axes.set_yticks(range(len(groups)), short, parse_math=False)
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(signed_tick))


def _dot(axes: Axes, row: Mapping[str, Any], y: float, index: int) -> None:
    colour, marker = figure_style.mark(index)
    strong = bool(row["survives"])
    if row["low"] is not None and row["high"] is not None:
        axes.plot([row["low"], row["high"]], [y, y], color=colour,
                  linewidth=2.4 if strong else 1.3, solid_capstyle="butt", zorder=2)  # fmt: skip
    axes.plot([row["estimate"]], [y], marker, color=colour, markersize=7, markeredgewidth=1.5,
              markerfacecolor=colour if strong else figure_style.PAPER, zorder=3)  # fmt: skip


def _legend(figure: Figure, part: pl.DataFrame) -> None:
    handles: list[Any] = [key(*figure_style.mark(index), label) for _, _, index, label in _SHOWN]
    handles.append(key(figure_style.INK, "o", "not significant", hollow=True))
    if part.filter(effect="neutral_effect").height:
        handles.append(
            Patch(color=figure_style.FAINT, alpha=2 * _BAND, label="a neutral word, against none")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


def _order(part: pl.DataFrame) -> list[str]:
    """Groups by their marking effect, the largest first."""
    marking = part.filter(effect="marking_effect")
    order = marking.group_by("group").agg(pl.col("estimate").mean())
    return order.sort("estimate", "group", descending=[True, False])["group"].to_list()


def _described(part: pl.DataFrame) -> str:
    return "; ".join(
        f"{row['group']} {row['rate']} {row['effect'].replace('_', ' ')} "
        f"{wording.signed(row['estimate'])} {wording.span(row['low'], row['high'])}"
        for row in part.iter_rows(named=True)
    )
