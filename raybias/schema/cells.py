"""Counts of predictions, of which every statistic is made."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: The columns that identify a classifier on a probe in every derived table.
KEYS: Final = ("model", "method", "dataset", "probe", "style")

#: Counts of (run, attribute, group, template, gold, predicted).
CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)

#: Counts of (run, attribute, group, term, gold, predicted); no templates, so it stays small.
TERM_CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("term", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)

#: Counts of (attribute, group, template, term, gold, predicted) over all runs of a classifier.
WORD_CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)
