"""Count the tokens of a study's texts once, for checks, costs and tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from raybias.engine.backbone import TextEncoder

#: Rows that a mean length is taken from.
_SAMPLE: Final = 200
#: Texts that are tokenised at a time, so that a large probe is never held in tokens.
_AT_ONCE: Final = 10_000


@dataclass(frozen=True)
class TokenCounts:
    """Tokenises texts for one backbone and keeps their lengths, so that asking again is free.

    Attributes
    ----------
    encoder: the backbone's tokenizer.
    """

    encoder: TextEncoder
    _lengths: dict[Any, npt.NDArray[np.int32]] = field(default_factory=dict, repr=False)
    _tokens: dict[Any, npt.NDArray[np.int32]] = field(default_factory=dict, repr=False)

    @cached_property
    def for_chat(self) -> TokenCounts:
        """Counts of prompts in the tokenizer's chat template."""
        return TokenCounts(self.encoder.for_chat)

    def lengths(self, texts: Sequence[str], *, append_eos: bool = False) -> npt.NDArray[np.int32]:
        """Return the number of tokens of each text.

        Raises
        ------
        ModelError: a text without any token, or an EOS asked for that is not there.
        """
        mark = _mark(texts, append_eos)
        if mark not in self._lengths:
            self._tokenise(mark, texts, append_eos=append_eos, keep=False)
        return self._lengths[mark]

    def rows(self, texts: Sequence[str], *, append_eos: bool = False) -> list[list[int]]:
        """Return the token ids of each text; they are kept too, unlike those of `lengths`.

        Raises
        ------
        ModelError: as `lengths` says.
        """
        mark = _mark(texts, append_eos)
        if mark not in self._tokens:
            self._tokenise(mark, texts, append_eos=append_eos, keep=True)
        ends = np.cumsum(self._lengths[mark])
        return [row.tolist() for row in np.split(self._tokens[mark], ends[:-1])][: len(texts)]

    def _tokenise(self, mark: Any, texts: Sequence[str], *, append_eos: bool, keep: bool) -> None:
        lengths, tokens = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for first in range(0, len(texts), _AT_ONCE):
            rows = self.encoder.encode(texts[first : first + _AT_ONCE], append_eos=append_eos)
            lengths.append(np.fromiter(map(len, rows), np.int32, len(rows)))
            if keep:
                tokens.append(np.concatenate(rows, dtype=np.int32))
        self._lengths[mark] = np.concatenate(lengths)
        if keep:
            self._tokens[mark] = np.concatenate(tokens)


def _mark(texts: Sequence[str], append_eos: bool) -> tuple[bytes, bool]:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest(), append_eos


def mean_of_sample(lengths: npt.NDArray[np.int32]) -> float:
    """Return the mean of some 200 rows' lengths, evenly spread; 0 of no rows.

    Parameters
    ----------
    lengths: [rows], or [rows, texts] where a row has several texts.
    """
    taken = lengths[:: max(1, len(lengths) // _SAMPLE)]
    return int(taken.sum(dtype=np.int64)) / max(1, taken.size)


def sample(texts: Sequence[str]) -> list[str]:
    """Take some 200 texts, evenly spread."""
    return list(texts[:: max(1, len(texts) // _SAMPLE)])
