"""Register the probe of the embedded calibration."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from raybias.probes.planted import planted_items
from raybias.probes.registries import probe


@probe("planted", about="embedded calibration over invented groups")
def _items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    return planted_items()
