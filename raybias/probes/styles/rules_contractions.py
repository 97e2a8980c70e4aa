"""Sentences with the contractions of spoken English."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raybias.probes.registries import StyledPair, style

#: Words and what becomes of them; longer ones come first. None changes what is said.
_SHORT: Final = {
    "can not": "can't", "cannot": "can't", "will not": "won't", "shall not": "shan't",
    **{
        f"{verb} not": f"{verb}n't"
        for verb in (
            "is", "are", "was", "were", "do", "does", "did", "has", "have", "had", "could",
            "should", "would", "must",
        )
    },
    "i am": "i'm", "you are": "you're", "we are": "we're", "they are": "they're",
    "he is": "he's", "she is": "she's", "it is": "it's", "that is": "that's",
    **{f"{who} will": f"{who}'ll" for who in ("i", "you", "he", "she", "it", "we", "they")},
}  # fmt: skip
_LONG: Final = re.compile(rf"\b(?:{'|'.join(map(re.escape, _SHORT))})\b(?! not\b)", re.I)


@style("contractions")
def _contractions(texts: Sequence[str], pair: StyledPair) -> list[str]:
    return [_LONG.sub(_short, text) for text in texts]


def _short(match: re.Match[str]) -> str:
    """Return the contraction with the first letter as it was."""
    return match[0][0] + _SHORT[match[0].lower()][1:]
