"""Draw "is this bias, or the template?": marking effects beside gaps.

One figure per probe, attribute and classifier, a panel per rate; the band is the effect of a
neutral word.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from raybias import schema
from raybias.report import figure_parts as parts
from raybias.report import wording
from raybias.report.figure_style import FAINT, INK, WIDTH, drawing, mark

#: Effect, its place in a group's row, its colour and marker, and how the legend has it.
_SHOWN: Final = (
    ("marking_effect", -0.16, 1, "named, against not named"),
    ("gap", 0.16, 0, "gap, against the groups' mean"),
)
_BAND: Final = 0.16


def marked_figures(markedness: pl.DataFrame, *, level: float) -> dict[tuple[str, ...], parts.Drawn]:
    """Draw one figure per (model, method, dataset, probe, style, attribute).

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
        style = () if row["style"] in (None, "original") else (row["style"],)
        name = parts.slug("markedness", *values[:4], *style, row["attribute"])
        figures[values] = parts.Drawn(name, title, _figure(part, title, level))
    return figures


def _figure(part: pl.DataFrame, title: str, level: float) -> str:
    rates = part["rate"].unique(maintain_order=True).to_list()
    marking = part.filter(effect="marking_effect")
    effects = marking.group_by("group").agg(pl.col("estimate").mean())
    groups = effects.sort("estimate", "group", descending=[True, False])["group"].to_list()
    neutral = part.filter(effect="neutral_effect")
    with drawing(2 * WIDTH, 1.9 + 0.42 * len(groups)) as figure:
        drawn = parts.panels(
            figure,
            {rate: wording.rate_title(rate) for rate in rates},
            [wording.shortened(group, 28) for group in groups],
            axis=f"difference of rates with {100 * level:g}% interval",
        )
        for row in neutral.iter_rows(named=True):
            axes = drawn[row["rate"]]
            if row["low"] is not None and row["high"] is not None:
                axes.axvspan(row["low"], row["high"], color=FAINT, alpha=_BAND, linewidth=0)
            axes.axvline(row["estimate"], color=FAINT, linewidth=1.2, linestyle="--")
        for effect, below, index, _ in _SHOWN:
            for row in part.filter(effect=effect).iter_rows(named=True):
                y = groups.index(row["group"]) + below
                parts.estimate(drawn[row["rate"]], row, "estimate", y, mark(index))
        axes = drawn[rates[0]]
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(parts.signed_tick)
        parts.headed(figure, title)
        keys: list[Any] = [parts.legend_key(mark(index), text) for _, _, index, text in _SHOWN]
        shown = part.filter(pl.col("effect").is_in([effect for effect, *_ in _SHOWN]))
        for text, verdict in parts.meanings(shown["survives"]).items():
            if not verdict:
                keys.append(parts.legend_key((INK, "o"), text, verdict))
        if neutral.height:
            keys.append(Patch(color=FAINT, alpha=2 * _BAND, label="a neutral word, against none"))
        described = (
            f"{row['group']} {row['rate']} {row['effect'].replace('_', ' ')} "
            f"{wording.signed(row['estimate'])} {wording.span(row['low'], row['high'])}"
            for row in part.iter_rows(named=True)
        )
        return parts.finished(figure, title, keys, described, columns=4)
