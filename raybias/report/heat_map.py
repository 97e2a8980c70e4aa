"""Set the groups of an attribute against classifiers: a gap in each cell, shaded by its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.report import wording
from raybias.report.gap_forests import group_order

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
