"""Where the rows of a method are stored."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class OutputSpec:
    """Where the rows that a method makes from items are stored.

    Attributes
    ----------
    folder: of OUT, where its files go.
    schema: of its files.
    per_item: rows of a file for each item.
    items: schema of the pairs or questions that it reads; None for sentences with labels.
    """

    folder: str
    schema: pa.Schema
    per_item: int = 1
    items: pa.Schema | None = None
