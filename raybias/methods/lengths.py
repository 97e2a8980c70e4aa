"""Token counts of texts, for costs and for checks against a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

#: Rows that a mean length is taken from.
_SAMPLE: Final = 200


def thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep some 200 rows, evenly spread."""
    return frame.gather_every(max(1, len(frame) // _SAMPLE))


def sample(texts: pl.Series) -> list[str]:
    """Take some 200 texts, evenly spread."""
    return thinned(texts.to_frame()).to_series().to_list()


def mean_length(rows: Sequence[Sequence[int]]) -> float:
    """Return the mean number of tokens; 0 of no rows."""
    return sum(map(len, rows)) / max(1, len(rows))
