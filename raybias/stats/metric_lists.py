"""Say which metrics there are, and what their intervals cover."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.stats.metric_table import DEFAULT_BACKGROUND
from raybias.stats.metric_types import metrics
from raybias.stats.scopes import REDRAWN

_ITEMS: Final = "seeds and items are redrawn (no templates are known)"
_TURNED: Final = (
    "`corrected` is the value less what noise adds to it, or with what noise takes off a ratio of"
    " the lowest to the highest"
)


def listed_metrics() -> pl.DataFrame:
    """List the metrics: metric, formula, background, needs, interval, source."""
    rows = []
    for name, entry in metrics.items():
        parts = entry.contrast
        needs = "counts"
        if parts is not None:
            needs = "versions of source examples" if parts.within == "source" else parts.needs
        rows.append(
            {
                "metric": name,
                "formula": entry.formula or entry.about,
                "background": DEFAULT_BACKGROUND if parts is None else parts.against,
                "needs": needs,
                "interval": "t" if parts is None or parts.within == "source" else "bootstrap",
                "source": entry.source,
            }
        )
    return pl.DataFrame(rows)


def covered(table: pl.DataFrame) -> list[str]:
    """Say in a line for each scope of schema.METRICS what its intervals redraw."""
    redrawn: dict[str, str] = {**dict(REDRAWN.items()), "items": _ITEMS}
    scopes = table["scope"].drop_nulls().unique().to_list()
    said = [f"{scope}: {text}" for scope, text in redrawn.items() if scope in scopes]
    if table["corrected"].count():
        said.append(_TURNED)
    classes = table["positive"].drop_nulls().unique().sort().to_list()
    return [*said, *(f"metrics of one class: {one} against the rest" for one in classes)]
