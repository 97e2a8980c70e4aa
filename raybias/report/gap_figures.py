"""Draw gaps with intervals, and their spans (Tian2023, figures 2-7; Kohankhaki2024, figures 1-6).

They show derived tables and compute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
from matplotlib.lines import Line2D

from raybias import schema
from raybias.report import figure_parts as parts
from raybias.report import wording
from raybias.report.figure_style import COLOURS, INK, WIDTH, drawing, mark
from raybias.stats.scopes import SCOPES

_ROOM: Final = 1.12
_MEAN: Final[Any] = {
    "linestyle": "",
    "color": INK,
    "marker": "|",
    "markersize": 13,
    "markeredgewidth": 2.2,
}
#: Most gaps in one figure of nested intervals.
_MOST: Final = 16
#: How the interval of each scope is drawn, so that narrower ones are seen inside wider ones.
_NESTED: Final[Mapping[str, dict[str, Any]]] = {
    "runs": {"linewidth": 9.0, "alpha": 0.9, "solid_capstyle": "butt"},
    "sentences": {"linewidth": 5.0, "alpha": 0.55, "solid_capstyle": "butt"},
    "wording": {"linewidth": 1.6, "solid_capstyle": "butt"},
}
_TRUTH: Final[Any] = {
    "linestyle": "",
    "color": COLOURS[1],
    "marker": "D",
    "markersize": 6,
    "markeredgewidth": 1.6,
    "markerfacecolor": "none",
}


def gap_figures(gaps: pl.DataFrame, *, level: float) -> dict[tuple[str, str, str], parts.Drawn]:
    """Draw one figure per probe, attribute and rate: a dot and interval per group and classifier.

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
        for rate in part["rate"].unique(maintain_order=True):
            title = f"{attribute}: {wording.rate_title(rate)}"
            svg = _gap_figure(part, rate, title, level)
            name = parts.slug("gaps", probe, attribute, rate)
            figures[probe, attribute, rate] = parts.Drawn(name, title, svg)
    return figures


def nested_figure(
    scopes: pl.DataFrame, *, level: float, truth: pl.DataFrame | None = None
) -> parts.Drawn | None:
    """Draw the clearest gaps with the interval of each scope inside the next wider one.

    Parameters
    ----------
    scopes: schema.SCOPES.
    level: confidence level of its intervals, for the axis label.
    truth: rate, group and `truth`, where the gaps are known.

    Returns
    -------
    At most `_MOST` gaps, the least likely by chance under their widest scope; None without any.
    """
    judged = scopes.filter(pl.col("low").is_not_null())
    shown = clearest(scopes, most=_MOST, truth=truth)
    if shown.is_empty():
        return None
    title, names = "The clearest gaps, and what intervals draw anew", gap_names(shown)
    with drawing(2 * WIDTH, 1.35 + 0.3 * shown.height) as figure:
        axis = f"← less often · more often →\ngap with {100 * level:g}% intervals"
        axes = parts.panels(figure, {title: title}, names, axis=axis)[title]
        for y, row in enumerate(shown.iter_rows(named=True)):
            for each in row["intervals"]:
                axes.plot(each["ends"], [y, y], color=COLOURS[0], **_NESTED[each["scope"]])
            parts.dot(axes, row["gap"], y, (INK, "o"), verdict=row["survives"], size=6)
            if truth is not None:
                axes.plot([row["truth"]], [y], zorder=4, **_TRUTH)
        axes.xaxis.set_major_formatter(parts.signed_tick)
        keys = [
            Line2D([], [], color=COLOURS[0], label=wording.SCOPES[scope], **_NESTED[scope])
            for scope in SCOPES
            if (judged["scope"] == scope).any()
        ]
        strong = "significant by the widest, after any correction"
        for text, verdict in parts.meanings(shown["survives"], strong=strong).items():
            keys.append(parts.legend_key((INK, "o"), text, verdict))
        if truth is not None:
            keys.append(Line2D([], [], label="truth", **_TRUTH))
        told = map(_told, names, shown["gap"], shown["intervals"])
        svg = parts.finished(figure, title, keys, told, columns=len(keys))
        return parts.Drawn("answer", title, svg)


def _told(name: str, gap: float, intervals: Sequence[Mapping[str, Any]]) -> str:
    spans = (f"{wording.SCOPES[each['scope']]} {wording.span(*each['ends'])}" for each in intervals)
    return f"{name}: {wording.signed(gap)}, {', '.join(spans)}"


def clearest(scopes: pl.DataFrame, *, most: int, truth: pl.DataFrame | None = None) -> pl.DataFrame:
    """Choose the gaps least likely by chance under their widest scope, the highest first.

    Returns
    -------
    The columns of the widest scope, `intervals` (scope and ends of each, narrowest first), and
    `truth` where it is given.
    """
    gap = [*schema.KEYS, "attribute", "group", "rate"]
    place = pl.col("scope").replace_strict({scope: n for n, scope in enumerate(SCOPES)})
    ends = pl.struct("scope", ends=pl.concat_list("low", "high"))
    shown = (
        scopes.filter(pl.col("low").is_not_null())
        .sort(place, maintain_order=True)
        .group_by(gap, maintain_order=True)
        .agg(pl.col("gap", "p_value", "survives").last(), intervals=ends)
        .sort("p_value", maintain_order=True)
        .head(most)
        .sort("gap", descending=True, maintain_order=True)
    )
    if truth is None:
        return shown
    return shown.join(truth, on=["rate", "group"], how="left", maintain_order="left")


def span_figures(spans: pl.DataFrame) -> dict[str, parts.Drawn]:
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
        title = f"{attribute}: gap spans"
        svg = _span_figure(spans.filter(attribute=attribute), title)
        figures[attribute] = parts.Drawn(parts.slug("spans", attribute), title, svg)
    return figures


def group_order(part: pl.DataFrame) -> list[str]:
    """Order the groups of one attribute: those that are harmed most first."""
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


def _gap_figure(part: pl.DataFrame, rate: str, title: str, level: float) -> str:
    keys = wording.shortest_keys(part)
    names = part.select(keys).unique(maintain_order=True).rows()
    groups = group_order(part)
    rows = sorted(
        part.filter(rate=rate).iter_rows(named=True), key=lambda row: groups.index(row["group"])
    )
    row_inches = max(0.36, 0.17 * len(names) + 0.12)
    verdicts = parts.meanings(part.filter(rate=rate)["survives"])
    entries = parts.series_keys([", ".join(map(str, name)) for name in names], verdicts)
    legend_inches = 0.25 * math.ceil(len(entries) / 2)
    with drawing(WIDTH, 1.45 + row_inches * len(groups) + legend_inches) as figure:
        axis = f"← less often · more often →\ngap with {100 * level:g}% interval"
        labels = [_group_label(part, group) for group in groups]
        axes = parts.panels(figure, {rate: title}, labels, axis=axis)[rate]
        for row in rows:
            index = names.index(tuple(row[key] for key in keys))
            y = groups.index(row["group"]) + parts.offset(index, len(names))
            name = ", ".join([row["group"], *map(str, names[index])])
            parts.estimate(axes, row, "gap", y, mark(index), name=name)
        parts.centre(axes, _ROOM * parts.reach(part, "gap", "low", "high") or 0.05, ticks=6)
        described = (
            f"{row['model']} {row['group']} {wording.signed(row['gap'])} "
            f"{wording.span(row['low'], row['high'])} {wording.verdict(row)}"
            for row in rows
        )
        return parts.finished(figure, title, entries, described, columns=2)


def _group_label(part: pl.DataFrame, group: str) -> str:
    inside = part.filter(pl.col("group") == group)["in_mean"].all()
    short = wording.shortened(group, 28)
    return short if inside else f"{short} (not in mean)"


def gap_names(table: pl.DataFrame) -> list[str]:
    """Name each row: group, rate, and what else varies."""
    several = table["model"].n_unique() > 1
    keys = wording.shortest_keys(table)[0 if several else 1 :]
    keys += [key for key in ("probe", "attribute") if table[key].n_unique() > 1]
    names = []
    for row in table.iter_rows(named=True):
        known = wording.RATES.get(row["rate"])
        about = [row["group"], known.words if known else row["rate"], *(row[key] for key in keys)]
        names.append(wording.shortened(", ".join(map(str, about)), 60))
    return names


def _span_figure(part: pl.DataFrame, title: str) -> str:
    keys = wording.shortest_keys(part)
    rates = part["rate"].unique(maintain_order=True).to_list()
    probes = part["probe"].unique().sort().to_list()
    mean = part.group_by(keys, maintain_order=True).agg(pl.col("span").mean())
    order = mean.sort("span", *keys, descending=[True] + [False] * len(keys)).select(keys)
    names = [wording.classifier_name(row, keys) for row in order.iter_rows(named=True)]
    labels = [name if len(name) <= 40 else f"…{name[-39:]}" for name in names]
    titles = {rate: wording.rate_title(rate) for rate in rates}
    with drawing(2 * WIDTH, 1.4 + 0.3 * len(names)) as figure:
        drawn = parts.panels(
            figure, titles, labels, axis="highest minus lowest gap", neutral=None, margin=0.5
        )
        for rate, axes in drawn.items():
            for place, row in enumerate(order.iter_rows(named=True)):
                mine = part.filter(rate=rate, **row)
                for probe, span in mine.select("probe", "span").iter_rows():
                    parts.dot(axes, span, place, mark(probes.index(probe)), verdict=False, size=6)
                if len(probes) > 1 and mine.height:
                    axes.plot(mine.select(pl.mean("span")).row(0), [place], **_MEAN)
        # Panels share the scale, which is fixed by its first limit: only when all are drawn.
        drawn[rates[0]].set_xlim(left=0)
        keys_shown = [parts.legend_key(mark(i), p or "probe", False) for i, p in enumerate(probes)]
        if len(probes) > 1:
            keys_shown.append(Line2D([], [], label="mean over probes", **_MEAN))
        for entry in keys_shown:
            entry.set_linestyle("")
        described = (
            f"{wording.classifier_name(row, keys)} {row['probe']} {row['rate']} {row['span']:.3f}"
            for row in part.iter_rows(named=True)
        )
        return parts.finished(figure, title, keys_shown, described, columns=4)
