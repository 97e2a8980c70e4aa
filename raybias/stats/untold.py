"""Sentences whose right label their classifier never gives: it is neither right nor wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from raybias.table_files import read_frame

#: The metric of what such sentences are called.
OUTCOME: Final = "outcome_positive"

if TYPE_CHECKING:
    from raybias.stats.predictions import Source


def untold_labels(files: Sequence[Source]) -> list[tuple[str, str, int]]:
    """List the labels that classifiers never give, each as its model, method and number."""
    found = set[tuple[str, str, int]]()
    for source in files:
        if source.never:
            pairs = read_frame(source.store, source.name, ["model", "method"]).unique().iter_rows()
            found |= {(str(model), str(method), n) for model, method in pairs for n in source.never}
    return sorted(found)


def without_untold(table: pl.DataFrame, untold: Sequence[tuple[str, str, int]]) -> pl.DataFrame:
    """Replace by null the labels of sentences whose right label their classifier never gives."""
    if not untold:
        return table
    of_one = [
        (pl.col("model").cast(pl.String) == model)
        & (pl.col("method").cast(pl.String) == method)
        & (pl.col("label") == number)
        for model, method, number in untold
    ]
    return table.with_columns(
        label=pl.when(~pl.any_horizontal(of_one).fill_null(False)).then("label")
    )
