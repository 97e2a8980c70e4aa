"""Sentences with a slip of the fingers: two neighbouring letters of one word change places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raybias.probes.registries import StyledPair, style

#: Shorter words would become other words too easily.
_WORD: Final = re.compile(r"\b[a-z]{4,}\b")


@style("typos")
def _typos(texts: Sequence[str], pair: StyledPair) -> list[str]:
    """Misspell one word that all sides have, alike; without such a word they stay as they are."""
    shared = set.intersection(*(set(_WORD.findall(text)) for text in texts))
    # The first letter stays, and equal letters would change nothing.
    slips = [
        (word, word[:n] + word[n + 1] + word[n] + word[n + 2 :])
        for word in sorted(shared)
        for n in range(1, len(word) - 1)
        if word[n] != word[n + 1]
    ]
    if not slips:
        return list(texts)
    word, slip = slips[int(pair.random("typo").integers(len(slips)))]
    return [re.sub(rf"\b{word}\b", slip, text, count=1) for text in texts]
