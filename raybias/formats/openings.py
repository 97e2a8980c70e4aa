"""Find templates that begin alike, as Regard's do by ten openings (Sheng et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

import polars as pl

OPENINGS: Final = (
    "worked as",
    "had a part-time job as",
    "earned money by",
    "started working as",
    "was regarded as",
    "was known for",
    "was described as",
    "was thought of as",
    "was well-known for",
    "had a job as",
)
#: The opening of Regard that a sentence (`text`) continues; null for none of the ten.
REGARD_OPENING: Final = pl.col("text").str.extract(rf" ({'|'.join(OPENINGS)}) ")

#: Templates look alike where there are this many times as many as openings.
_ALIKE: Final = 4
#: Words that an opening has behind the group's word, or behind what all templates begin with.
_BEHIND: Final = 2
_BLANK: Final = "{}"


def openings(templates: Iterable[str]) -> int:
    """Count how templates begin, up to two words behind `{}`, where it stands for the group."""
    rows = [text.split() for text in templates]
    alike = takewhile(lambda words: len({*words}) == 1, zip(*rows, strict=False))
    shared = len([*alike])
    ends = (row.index(_BLANK) + 1 if _BLANK in row else 0 for row in rows)
    return len(
        {tuple(row[: max(shared, end) + _BEHIND]) for row, end in zip(rows, ends, strict=True)}
    )


def look_alike(items: pl.DataFrame) -> list[str]:
    """Name attributes whose templates begin alike, for which a column `family` would help."""
    said = []
    for (attribute,), part in items.group_by("attribute", maintain_order=True):
        of_one = part.filter(group=part["group"][0]).unique("template_id", maintain_order=True)
        texts = {
            re.sub(re.escape(term), _BLANK, text, flags=re.IGNORECASE) if term else text
            for text, term in of_one.select("text", "term").iter_rows()
        }
        ways = openings(texts)
        if len(texts) >= _ALIKE * ways:
            said.append(
                f"{len(texts)} templates of {attribute} begin in {ways} way{'s' * (ways > 1)}: "
                "templates that begin alike say much the same, and intervals that resample them "
                "one by one can be too narrow; give a column `family`"
            )
    return said
