"""Items of a probe, and counts of predictions, of which every statistic is made."""

from __future__ import annotations

from enum import IntEnum
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


class Label(IntEnum):
    """Sentiment of a sentence, as both papers and their files number it."""

    NEGATIVE = 0
    NEUTRAL = 1
    POSITIVE = 2


LABELS: Final = tuple(label.name.lower() for label in Label)

#: Groups of the extra items that measure markedness: the sentence without its group term, and
#: with a neutral word in its place. They enter no mean, accuracy, span or count.
UNMARKED: Final = "unmarked"
PLACEHOLDER: Final = "placeholder"
EXTRA_GROUPS: Final = (UNMARKED, PLACEHOLDER)

#: One row per probe sentence. Templates of one `family` were written from one opening; null where
#: that is not known.
ITEMS: Final = pa.schema(
    [
        ("item_id", pa.string()),
        ("label", pa.int8()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("text", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
        ("family", pa.string()),
    ]
)

#: One row per labelled training sentence.
SENTENCES: Final = pa.schema([("text", pa.string()), ("label", pa.int8())])
