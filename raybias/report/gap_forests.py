"""Draw gaps, marking effects and changes of gaps as forests; of many classifiers as heat maps.

They show derived tables and compute nothing (Tian2023, figures 2-7; Kohankhaki2024, figures 1-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias import schema
from raybias.report import wording
from raybias.report.figure_parts import Drawn, slug
from raybias.report.forest import Forest, Row
from raybias.stats.scopes import SCOPES

#: Most gaps in one figure of nested intervals.
_MOST: Final = 12
_MARKED: Final = {"marking_effect": "named, against not named", "gap": "gap, against the mean",
                  "neutral_effect": "a neutral word, against none"}  # fmt: skip


def gap_figures(gaps: pl.DataFrame, *, level: float) -> dict[tuple[str, str, str], Drawn]:
    """Draw one figure per probe, attribute and rate: an interval per group and classifier.

    Parameters
    ----------
    gaps: of schema.ESTIMATES, one row each.
    level: confidence level of its intervals, for the axis.

    Returns
    -------
    Figures by (probe, attribute, rate); with several classifiers, a panel for each group.
    """
    figures = {}
    for probe, attribute in wording.probe_order(gaps):
        part = gaps.filter(probe=probe, attribute=attribute)
        keys = wording.shortest_keys(part)
        several = part.select(keys).n_unique() > 1
        groups = group_order(part)
        for rate in part["score"].unique(maintain_order=True):
            mine = part.filter(score=rate)
            panels: dict[str, list[Row]] = {}
            for group in groups:
                for row in mine.filter(group=group).iter_rows(named=True):
                    label = f"{group} ({row['condition']})" if row["condition"] else group
                    name = wording.classifier_name(row, keys) if several else label
                    if row["value"] is not None:
                        panels.setdefault(label if several else "", []).append(
                            _row(name, row["value"], [(row["low"], row["high"])],
                                 row["survives"], rate=rate)
                        )  # fmt: skip
            figures[probe, attribute, rate] = Forest(
                slug("gaps", probe, attribute, rate),
                f"{attribute}: {wording.rate_title(rate)}",
                f"{_less_or_more(rate)}, {100 * level:g}% intervals",
                tuple((title, tuple(rows)) for title, rows in panels.items()),
            ).drawn()
    return figures


def nested_figure(
    gaps: pl.DataFrame,
    *,
    level: float,
    truth: pl.DataFrame | None = None,
    corrected: bool = True,
) -> Drawn | None:
    """Draw the clearest gaps with the interval of each scope inside the next wider one.

    Parameters
    ----------
    gaps: of schema.ESTIMATES, under every scope.
    level: confidence level of its intervals, for the axis.
    truth: score, group and `truth`, where the gaps are known.
    corrected: whether verdicts are corrected for many tests.

    Returns
    -------
    At most `_MOST` gaps, the least likely by chance under their widest scope; None without any.
    """
    place = pl.col("scope").replace_strict({scope: n for n, scope in enumerate(SCOPES)})
    ends = pl.struct("scope", ends=pl.concat_list("low", "high"))
    shown = (
        gaps.filter(pl.col("low").is_not_null())
        .sort(place, maintain_order=True)
        .group_by(*schema.KEYS, "attribute", "group", "score", maintain_order=True)
        .agg(pl.col("value", "p", "survives").last(), intervals=ends)
        .sort("p", maintain_order=True)
        .head(_MOST)
        .sort("value", descending=True, maintain_order=True)
    )
    if shown.is_empty():
        return None
    if truth is not None:
        shown = shown.join(truth, on=["score", "group"], how="left", maintain_order="left")
    rows = []
    for name, row in zip(_gap_names(shown), shown.iter_rows(named=True), strict=True):
        spans = ", ".join(
            f"{wording.SCOPES[each['scope']]} {wording.span(*each['ends'])}"
            for each in row["intervals"]
        )
        rows.append(_row(name, row["value"], [each["ends"] for each in reversed(row["intervals"])],
                         row["survives"], rate=row["score"], truth=row.get("truth"),
                         told=f"{wording.signed(row['value'])}, {spans}"))  # fmt: skip
    there = [wording.SCOPES[scope] for scope in SCOPES if (gaps["scope"] == scope).any()]
    many = " after correction" if corrected else ""
    marks = f"filled: significant{many}; hollow: not"
    lines = f"redrawn, thickest line first: {', '.join(there)}"
    return Forest(
        "answer",
        "The clearest gaps, and what intervals draw anew",
        f"{_less_or_more(*shown['score'].unique())}, {100 * level:g}% intervals",
        (("", tuple(rows)),),
        keys=(lines, f"{marks}; the bar: truth" if truth is not None else marks),
    ).drawn()


def group_order(part: pl.DataFrame) -> list[str]:
    """Order the groups of one attribute: those that are harmed most first."""
    harmful = [rate for rate in part["score"].unique() if wording.effect(rate, 1) == "harm"]
    ordered = (
        part.group_by("group")
        .agg(
            worst=pl.col("value").filter(pl.col("score").is_in(harmful)).mean(),
            other=pl.col("value").mean(),
        )
        .sort("worst", "other", "group", descending=[True, True, False], nulls_last=True)
    )
    return [str(group) for group in ordered["group"]]


def _gap_names(table: pl.DataFrame) -> list[str]:
    """Name each row: group, rate, and what else varies."""
    several = table["model"].n_unique() > 1
    keys = wording.shortest_keys(table)[0 if several else 1 :]
    keys += [key for key in ("probe", "attribute") if table[key].n_unique() > 1]
    names = []
    for row in table.iter_rows(named=True):
        known = wording.RATES.get(row["score"])
        about = [row["group"], known.words if known else row["score"], *(row[key] for key in keys)]
        names.append(wording.shortened(", ".join(map(str, about)), 60))
    return names


def marked_figures(markedness: pl.DataFrame, *, level: float) -> dict[tuple[str, ...], Drawn]:
    """Draw marking effects beside gaps: "is this bias, or the template?".

    Parameters
    ----------
    markedness: schema.MARKEDNESS.
    level: confidence level of its intervals, for the axis.

    Returns
    -------
    Figures by (model, method, dataset, probe, style, attribute), a panel per rate and effect.
    """
    by = [*schema.KEYS, "attribute"]
    names = wording.shortest_keys(markedness)
    figures = {}
    for values, part in markedness.group_by(by, maintain_order=True):
        row = dict(zip(by, values, strict=True))
        style = () if row["style"] in (None, "original") else (str(row["style"]),)
        effects = part.filter(effect="marking_effect").group_by("group").agg(
            pl.col("estimate").mean()
        )  # fmt: skip
        order = effects.sort("estimate", "group", descending=[True, False])["group"].to_list()
        panels = []
        for rate in part["rate"].unique(maintain_order=True):
            for effect, said in _MARKED.items():
                mine = part.filter(rate=rate, effect=effect)
                place = pl.col("group").replace_strict(
                    {group: n for n, group in enumerate(order)}, default=len(order)
                )
                rows = [
                    _row(each["group"], each["estimate"], [(each["low"], each["high"])],
                         each["survives"], rate=rate)
                    for each in mine.sort(place, maintain_order=True).iter_rows(named=True)
                    if each["estimate"] is not None
                ]  # fmt: skip
                if rows:
                    panels.append((f"{wording.rate_title(rate)}: {said}", tuple(rows)))
        figures[tuple(map(str, values))] = Forest(
            slug("markedness", *map(str, values[:4]), *style, str(row["attribute"])),
            f"{wording.classifier_name(row, names)} on {row['probe']}: {row['attribute']}",
            f"difference of rates; {100 * level:g}% intervals",
            tuple(panels),
        ).drawn()
    return figures


def change_figures(changes: pl.DataFrame, *, margin: float) -> list[Drawn]:
    """Draw the change of every gap with its band, a figure per attribute and a panel per rate.

    Parameters
    ----------
    changes: `measures.compare.COMPARED`.
    margin: the largest change that does not matter, which is shaded.
    """
    by = ("model", "method", "dataset", "probe", "style", "attribute")
    figures = []
    for names, part in changes.group_by(by, maintain_order=True):
        named = dict(zip(by, map(str, names), strict=True))
        others = [named[key] for key in by[:-1] if changes[key].n_unique() > 1]
        panels = []
        for (rate,), mine in part.group_by("score", maintain_order=True):
            rows = []
            for row in mine.drop_nulls("value").iter_rows(named=True):
                low, high = row["low"], row["high"]
                moved = None if low is None else bool(low > 0 or high < 0)
                rows.append(_row(row["group"], row["value"], [(low, high)], moved))
            panels.append((wording.rate_title(str(rate)), tuple(rows)))
        title = ": ".join([named["attribute"], "changes of gaps", *others])
        figures.append(
            Forest(
                slug("compare", *named.values()), title,
                f"change of the gap; shaded: within {margin:g}", tuple(panels),
                band=(-margin, margin), keys=("filled: changed; hollow: change not shown",),
            ).drawn()
        )  # fmt: skip
    return figures


def _less_or_more(*rates: str) -> str:
    points = "; percentage points" if all(map(wording.is_share, rates)) else ""
    return f"\N{LEFTWARDS ARROW} less often than average · more often \N{RIGHTWARDS ARROW}{points}"


def _row(
    name: str,
    value: float,
    ends: Sequence[Sequence[float | None]],
    sure: bool | None,
    *,
    rate: str = "",
    told: str = "",
    truth: float | None = None,
    signed: bool = True,
) -> Row:
    """Lay one estimate out; a share's gap is in percentage points."""
    scale, digits = (100.0, 1) if rate and wording.is_share(rate) else (1.0, 3)
    spans = tuple(
        (scale * low, scale * high) for low, high in ends if low is not None and high is not None
    )
    text = wording.estimate(scale * value, spans[0] if spans else (), digits, plus=signed)
    return Row(wording.shortened(name, 60), text, scale * value, spans, sure,
               None if truth is None else scale * truth, told)  # fmt: skip


#: Shades on either side of none.
_SHADES: Final = 5


@dataclass(frozen=True)
class Cell:
    """One gap of a heat map."""

    text: str
    """The gap: percentage points of a share, with a star where it survives."""
    shade: str
    """A class: `above3` of five; nothing without a gap."""
    told: str
    """Interval and verdict."""


@dataclass(frozen=True)
class HeatMap:
    """Groups in rows, classifiers in columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def heat_map(part: pl.DataFrame, rate: str) -> HeatMap:
    """Arrange the gaps of one probe, attribute and rate.

    Parameters
    ----------
    part: gaps of one probe and attribute, one row each.
    """
    keys = wording.naming_keys(part)
    mine = part.filter(score=rate)
    cells = {
        (row["group"], wording.classifier_name(row, keys)): row
        for row in mine.iter_rows(named=True)
    }
    names = tuple(dict.fromkeys(name for _, name in cells))
    largest = mine["value"].abs().max()
    scale = float(str(largest)) if largest else 1.0
    shown = tuple(
        (group, tuple(_cell(cells.get((group, name)), scale) for name in names))
        for group in group_order(part)
    )
    unit = ", in percentage points" if wording.is_share(rate) else ""
    return HeatMap(f"{wording.rate_title(rate).capitalize()}{unit}", names, shown)


def _cell(row: dict[str, object] | None, scale: float) -> Cell:
    gap = row["value"] if row else None
    if row is None or not isinstance(gap, float):
        return Cell("", "", "no gap")
    size = round(_SHADES * abs(gap) / scale)
    value = wording.signed(100 * gap, 1) if wording.is_share(str(row["score"])) else f"{gap:+.3f}"
    shade = f"{'above' if gap > 0 else 'below'}{size}" if size else ""
    told = f"{wording.span(row['low'], row['high'])} {wording.verdict(row)}"  # type: ignore[arg-type]
    return Cell(f"{value}{'*' if row['survives'] else ''}", shade, told.strip())
