"""Sentences that probes and training sets are made of, and their labels."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import pyarrow as pa


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
