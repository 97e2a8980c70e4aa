"""Draw a comparison, and write its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from raybias.report import figure_parts as parts
from raybias.report import wording
from raybias.report.figure_style import FAINT, WIDTH, drawing, mark
from raybias.report.rendering import rendered

if TYPE_CHECKING:
    from raybias.report.compare import Comparison

_FIGURE = ("model", "method", "dataset", "probe", "style", "attribute")
_ROOM = 1.12


def page(found: Comparison) -> str:
    """Return compare.html: the verdict, a figure per attribute, all changes and what they cover."""
    return rendered(
        "compare.html.j2",
        {
            "title": f"Comparison: {found.candidate} against {found.base}",
            "base": found.base,
            "candidate": found.candidate,
            "verdict": found.verdict,
            "headline": found.headline,
            "figures": parts.inlined(change_figures(found), "c"),
            "all_tables": found.tables,
            "notes": found.notes,
        },
    )


def change_figures(found: Comparison) -> list[parts.Drawn]:
    """Draw the change of every gap with its band, a figure per attribute and a panel per rate."""
    figures = []
    for names, part in found.changes.group_by(_FIGURE, maintain_order=True):
        named = dict(zip(_FIGURE, map(str, names), strict=True))
        others = [named[key] for key in _FIGURE[:-1] if found.changes[key].n_unique() > 1]
        title = ": ".join([named["attribute"], "changes of gaps", *others])
        svg = _figure(part, title, found)
        figures.append(parts.Drawn(parts.slug("compare", *named.values()), title, svg))
    return figures


def _figure(part: pl.DataFrame, title: str, found: Comparison) -> str:
    groups = part["group"].unique(maintain_order=True).to_list()
    titles = {rate: wording.rate_title(rate) for rate in part["rate"].unique(maintain_order=True)}
    width, rows = parts.grid_size(len(titles))
    told = part.select(pl.when(pl.col("low").is_not_null()).then(True)).to_series()
    keys = parts.series_keys([""], parts.meanings(told, strong="changed", weak="change not shown"))
    with drawing(max(width, 1.5 * WIDTH), 1.6 + rows * (0.3 + 0.36 * len(groups))) as figure:
        axis = f"change of the gap\nshaded: within {found.margin:g}"
        drawn = parts.panels(figure, titles, groups, axis=axis)
        parts.headed(figure, title)
        for rate, axes in drawn.items():
            axes.axvspan(-found.margin, found.margin, color=FAINT, alpha=0.2, linewidth=0)
            for row in part.filter(rate=rate).iter_rows(named=True):
                low, high = row["low"], row["high"]
                moved = None if low is None else bool(low > 0 or high < 0)
                parts.dot(axes, row["change"], groups.index(row["group"]), mark(0),
                          verdict=moved, interval=(low, high))  # fmt: skip
        limit = _ROOM * max(parts.reach(part, "change", "low", "high"), 1.5 * found.margin)
        parts.centre(next(iter(drawn.values())), limit, ticks=6)
        described = (
            f"{row['group']} {row['rate']} {wording.signed(row['change'])} "
            f"{wording.span(row['low'], row['high'])} {row['verdict']}"
            for row in part.iter_rows(named=True)
        )
        return parts.finished(figure, title, keys, described, columns=3)
