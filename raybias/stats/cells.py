"""Count predictions: a cell is how many one run has of an item's kind and predicted label.

Every statistic of counts is arithmetic on cells.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias import schema

#: What names one run of one classifier on one probe.
RUN_KEYS: Final = (*schema.KEYS, "run_id")

#: Ends the method name of the second reading of a prompted classifier.
LIKELIHOOD: Final = "+likelihood"


def cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions per run, attribute, group, template, gold and predicted label.

    Parameters
    ----------
    predictions: schema.PREDICTIONS; a null `pred` (no label could be read) stays a count
        of its own: it is wrong, and a false positive of no label.

    Returns
    -------
    schema.CELLS, one row per cell that occurs.
    """
    return _counted(predictions.lazy(), pl.Schema(schema.CELLS))


def term_cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions per run, attribute, group, term, gold and predicted label.

    Returns
    -------
    schema.TERM_CELLS, without the predictions whose term is not known.
    """
    known = predictions.lazy().filter(pl.col("term").is_not_null())
    return _counted(known, pl.Schema(schema.TERM_CELLS))


def without_extras(cells: pl.DataFrame) -> pl.DataFrame:
    """Drop the rows of schema.EXTRA_GROUPS, which are no protected groups."""
    extra = cells["group"].is_in(schema.EXTRA_GROUPS)
    return cells.filter(~extra) if extra.any() else cells


def _counted(predictions: pl.LazyFrame, types: pl.Schema) -> pl.DataFrame:
    by = [name for name in types if name != "n"]
    return predictions.group_by(by, maintain_order=True).agg(n=pl.len()).cast(types).collect()
