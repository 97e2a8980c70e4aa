"""Draw gaps with intervals, and their spans (Tian2023, figures 2-7; Kohankhaki2024, figures 1-6).

A filled marker is a significant gap, a hollow one is not, so that the figures do not
rest on colour. They show derived tables and compute nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybias.report import figure_style, wording

_ROOM: Final = 1.12


@dataclass(frozen=True)
class Drawn:
    """One finished figure."""

    name: str
    """Its file name in OUT/figures, without suffix."""
    title: str
    svg: str


def gap_figures(gaps: pl.DataFrame, *, level: float) -> dict[tuple[str, str, str], Drawn]:
    """One figure per probe, attribute and rate: a dot and interval per group and classifier.

    Parameters
    ----------
    gaps: schema.GAPS.
    level: confidence level of its intervals, for the axis label.

    Returns
    -------
    Figures by (probe, attribute, rate). The rates of an attribute share order and scale.
    """
    figures = {}
    for probe, attribute in wording.probe_order(gaps):
        part = gaps.filter(probe=probe, attribute=attribute)
        reach = _reach(part)
        for rate in part["rate"].unique(maintain_order=True):
            title = f"{attribute}: {wording.rate_title(rate)}"
            figures[probe, attribute, rate] = Drawn(
                slug("gaps", probe, attribute, rate),
                title,
                _gap_figure(part, rate, reach=reach, title=title, level=level),
            )
    return figures


def span_figures(spans: pl.DataFrame) -> dict[str, Drawn]:
    """Draw each classifier's span on every probe and their mean, one figure per attribute.

    Parameters
    ----------
    spans: of `stats.spans`.

    Returns
    -------
    Figures by attribute, a panel per rate. Classifiers stand in the order of their mean.
    """
    figures = {}
    for attribute in spans["attribute"].unique().sort().to_list():
        part = spans.filter(attribute=attribute)
        title = f"{attribute}: gap spans"
        svg = _span_figure(part, title)
        figures[attribute] = Drawn(slug("spans", attribute), title, svg)
    return figures


def group_order(part: pl.DataFrame) -> list[str]:
    """The groups of one attribute: those that are harmed most first."""
    harmful = [rate for rate in part["rate"].unique() if wording.effect(rate, 1) == "harm"]
    ordered = (
        part.group_by("group")
        .agg(
            worst=pl.col("gap").filter(pl.col("rate").is_in(harmful)).mean(),
            other=pl.col("gap").mean(),
        )
        .sort("worst", "other", "group", descending=[True, True, False], nulls_last=True)
    )
    return [str(group) for group in ordered["group"]]


def slug(*parts: str) -> str:
    """A file name of the parts; parts that are no file names keep apart by a hash."""
    text = ".".join(parts)
    safe = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).strip(".-")[:120]
    if safe == text:
        return safe
    return f"{safe}.{hashlib.blake2b(text.encode('utf-8'), digest_size=4).hexdigest()}"


def _reach(part: pl.DataFrame) -> float:
    ends = part.select(pl.max_horizontal(pl.col("gap", "low", "high").abs().max()))
    largest = ends.item()
    return _ROOM * float(largest) if largest else 0.05


def _gap_figure(part: pl.DataFrame, rate: str, *, reach: float, title: str, level: float) -> str:
    keys = wording.shortest_keys(part)
    series = part.select(keys).unique(maintain_order=True).to_dicts()
    groups = group_order(part)
    step = min(0.8 / len(series), 0.24)
    row_inches = max(0.36, 0.17 * len(series) + 0.12)
    legend_inches = 0.22 * (len(series) + 1) // 2 if len(series) > 1 else 0.25
    with figure_style.drawing(
        figure_style.WIDTH, 1.45 + row_inches * len(groups) + legend_inches
    ) as figure:
        axes = figure.subplots()
        figure_style.quiet_axes(axes, grid="x")
        axes.axvline(0, color=figure_style.INK, linewidth=1.0)
        for index, names in enumerate(series):
            offset = (index - (len(series) - 1) / 2) * step
            rows = part.filter(rate=rate, **names).iter_rows(named=True)
            for row in rows:
                if row["gap"] is not None:
                    _dot(axes, row, groups.index(row["group"]) + offset, index)
        labels = [_group_label(part, group) for group in groups]
        axes.set_yticks(range(len(groups)), labels, parse_math=False)
        axes.set_ylim(len(groups) - 0.45, -0.55)
        axes.set_xlim(-reach, reach)
        axes.xaxis.set_major_locator(MaxNLocator(6, symmetric=True))
        axes.xaxis.set_major_formatter(FuncFormatter(signed_tick))
        axes.set_xlabel(f"← less often · more often →\ngap with {100 * level:g}% interval")
        axes.set_title(title, parse_math=False)
        _gap_legend(figure, [wording.classifier_name(names, keys) for names in series])
        return figure_style.to_svg(figure, title=title, description=_described(part, rate, groups))


def _dot(axes: Axes, row: Mapping[str, Any], y: float, index: int) -> None:
    colour, marker = figure_style.mark(index)
    strong = bool(row["survives"])
    if row["low"] is not None and row["high"] is not None:
        ends = [row["low"], row["high"]]
        axes.plot(ends, [y, y], color=colour, linewidth=2.4 if strong else 1.3,
                  solid_capstyle="butt", zorder=2)  # fmt: skip
    axes.plot(
        [row["gap"]], [y], marker, color=colour,
        markerfacecolor=colour if strong else figure_style.PAPER, markersize=7, markeredgewidth=1.5,
        zorder=3,
    )  # fmt: skip


def _gap_legend(figure: Figure, names: Sequence[str]) -> None:
    several = len(names) > 1
    handles = [key(*figure_style.mark(i), name) for i, name in enumerate(names) if several]
    colour = figure_style.INK if several else figure_style.COLOURS[0]
    handles += [
        key(colour, "o", "significant"),
        key(colour, "o", "not significant", hollow=True),
    ]
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=2)
    for text in legend.get_texts():
        text.set_parse_math(False)


def key(colour: str, marker: str, label: str, *, hollow: bool = False) -> Line2D:
    """One entry of a legend: a marker, filled or hollow, on its interval."""
    return Line2D(
        [], [], color=colour, marker=marker, label=label, markersize=7, markeredgewidth=1.5,
        linewidth=1.3 if hollow else 2.4, markerfacecolor=figure_style.PAPER if hollow else colour,
    )  # fmt: skip


def _group_label(part: pl.DataFrame, group: str) -> str:
    inside = part.filter(pl.col("group") == group)["in_mean"].all()
    short = group if len(group) <= 28 else f"{group[:27]}…"
    return short if inside else f"{short} (not in mean)"


def signed_tick(value: float, _: int | None) -> str:
    """A tick label with its sign, for matplotlib's `FuncFormatter`."""
    text = f"{value:+.3f}".rstrip("0").rstrip(".")
    return "0" if text in ("+0", "-0") else text.replace("-", "\N{MINUS SIGN}")


def _described(part: pl.DataFrame, rate: str, groups: Sequence[str]) -> str:
    rows = sorted(
        part.filter(rate=rate).iter_rows(named=True), key=lambda row: groups.index(row["group"])
    )
    return "; ".join(
        f"{row['model']} {row['group']} {wording.signed(row['gap'])} "
        f"{wording.span(row['low'], row['high'])} {wording.verdict(row)}"
        for row in rows
    )


def _span_figure(part: pl.DataFrame, title: str) -> str:
    keys = wording.shortest_keys(part)
    rates = part["rate"].unique(maintain_order=True).to_list()
    probes = part["probe"].unique().sort().to_list()
    mean = part.group_by(keys, maintain_order=True).agg(pl.col("span").mean())
    order = mean.sort("span", *keys, descending=[True] + [False] * len(keys)).select(keys)
    names = [wording.classifier_name(row, keys) for row in order.iter_rows(named=True)]
    with figure_style.drawing(2 * figure_style.WIDTH, 1.4 + 0.3 * len(names)) as figure:
        panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
        for axes, rate in zip(panels, rates, strict=True):
            figure_style.quiet_axes(axes, grid="x")
            for place, row in enumerate(order.iter_rows(named=True)):
                mine = part.filter(rate=rate, **row)
                for probe, span in mine.select("probe", "span").iter_rows():
                    colour, marker = figure_style.mark(probes.index(probe))
                    axes.plot([span], [place], marker, color=colour, markersize=6,
                              markerfacecolor=figure_style.PAPER, markeredgewidth=1.4)  # fmt: skip
                if len(probes) > 1 and mine.height:
                    axes.plot([mine["span"].mean()], [place], "|", color=figure_style.INK,
                              markersize=13, markeredgewidth=2.2)  # fmt: skip
            axes.set_yticks(range(len(names)), [_shortened(n) for n in names], parse_math=False)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_xlim(left=0)
            axes.set_title(wording.rate_title(rate))
            axes.set_xlabel("highest minus lowest gap")
        _span_legend(figure, [str(probe) or "probe" for probe in probes])
        described = "; ".join(
            f"{wording.classifier_name(row, keys)} {row['probe']} {row['rate']} {row['span']:.3f}"
            for row in part.iter_rows(named=True)
        )
        return figure_style.to_svg(figure, title=title, description=described)


def _span_legend(figure: Figure, probes: Sequence[str]) -> None:
    handles = [
        Line2D([], [], linestyle="", color=colour, marker=marker, label=probe,
               markerfacecolor=figure_style.PAPER, markeredgewidth=1.4)
        for probe, (colour, marker) in ((p, figure_style.mark(i)) for i, p in enumerate(probes))
    ]  # fmt: skip
    if len(probes) > 1:
        handles.append(Line2D([], [], linestyle="", color=figure_style.INK, marker="|",
                              markersize=13, markeredgewidth=2.2, label="mean over probes"))  # fmt: skip
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=4)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _shortened(name: str, longest: int = 40) -> str:
    return name if len(name) <= longest else f"…{name[1 - longest :]}"
