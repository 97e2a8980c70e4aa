"""One column of labels or predictions of a table of others: its words, as text and as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from raybias.stats import sentiment
from raybias.stats.classes import BOOLEANS, CODE, class_order, listed, number_of


@dataclass(frozen=True)
class LabelColumn:
    """A column of labels or predictions.

    Attributes
    ----------
    role: `label` or `pred`.
    name: what the table calls the column.
    texts: its values as text, without blanks around them.
    """

    role: str
    name: str
    texts: pl.Series

    @cached_property
    def spellings(self) -> list[str]:
        """The distinct texts, numbers first and by size."""
        texts = self.texts.unique().to_list()
        return sorted(texts, key=class_order)

    @cached_property
    def has_numbers(self) -> bool:
        """Whether all values are numbers or booleans."""
        booleans = BOOLEANS.keys()
        return all(
            text.lower() in booleans or number_of(text) is not None for text in self.spellings
        )

    def word_of(self, text: str) -> str:
        """Return the word that a spelling, or what a user names, is in this column."""
        text = text.strip()
        if not self.has_numbers:
            return text
        number = number_of(text)
        if number is None:
            return BOOLEANS.get(text.lower(), text)
        return str(int(number)) if number.is_integer() else repr(number)

    @cached_property
    def words(self) -> frozenset[str]:
        """The distinct words: `1`, `1.0` and `True` are one in a column of numbers."""
        return frozenset(map(self.word_of, self.spellings))

    @property
    def is_sentiment(self) -> bool:
        """Whether all words are negative, neutral or positive, in any case."""
        return {word.lower() for word in self.words} <= {*sentiment.NAMES}

    @property
    def listed(self) -> str:
        """The words for a message: `decision has approved, denied`."""
        shown = list(dict.fromkeys(map(self.word_of, self.spellings)))
        return f"{self.name} has {listed(shown)}"

    def codes(self, codes: Mapping[str, int]) -> pl.Series:
        """Replace each word by its code."""
        by_text = {text: codes[self.word_of(text)] for text in self.spellings}
        return self.texts.replace_strict(by_text, return_dtype=CODE).alias(self.role)


def fold(word: str) -> str:
    """Write a word without what people do not mean by it: case, blanks, a last dot, `.0`."""
    number = number_of(word)
    return " ".join(word.casefold().split()).rstrip(".") if number is None else repr(number)
