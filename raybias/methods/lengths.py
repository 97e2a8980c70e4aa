"""Count the tokens of a study's texts once, for checks, costs and tuning."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    from raybias.engine.backbone import TextEncoder

T = TypeVar("T")

#: Rows that a mean length is taken from.
_SAMPLE: Final = 200
#: Most tokens of one ASCII character, and those that stand beside a text: a blank that a tokenizer
#: writes as three bytes, each a token, is the worst known.
_PER_CHARACTER, _BESIDE = 4, 16
#: Without any such character a text may have no token at all.
_VISIBLE: Final = "[!-~]"
#: Texts that are tokenised at a time, so that a large probe is never held in tokens.
_AT_ONCE: Final = 10_000
#: Shares of the widths that packed sequences have, of which rows are cut into equal ones.
_PACKED: Final = (0.25,) * 4


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

    def bounds(
        self,
        texts: Sequence[str],
        *,
        taken: int = 0,
        append_eos: bool = False,
        write: Callable[[str], str] = str,
    ) -> npt.NDArray[np.int32]:
        """Return upper bounds of the lengths, exact for every text that may not fit the context.

        Most texts are too short to be worth tokenising; those in other scripts than ASCII, which
        a tokenizer may write out in many characters, are tokenised whatever their length.

        Parameters
        ----------
        taken: tokens of the context that are needed beside a text.
        write: makes a prompt of a text, which stands in it once or more; prompts are measured, and
            only those that are tokenised are written.

        Raises
        ------
        ModelError: as `lengths` says, of a text that was tokenised.
        """
        written = pl.Series(texts, dtype=pl.String)
        characters = written.str.len_chars()
        plain = (characters == written.str.len_bytes()) & written.str.contains(_VISIBLE)
        one, two = write("x"), write("xx")
        beside, times = 2 * len(one) - len(two), len(two) - len(one)
        longest = beside + times * characters.to_numpy().astype(np.int32)
        bounds = _PER_CHARACTER * longest + _BESIDE
        room = math.inf if self.encoder.context is None else self.encoder.context - taken
        unsure = np.flatnonzero((bounds > room) | ~(plain & one.isascii()).to_numpy())
        asked = [write(texts[n]) for n in unsure.tolist()]
        bounds[unsure] = self.lengths(asked, append_eos=append_eos)
        return bounds

    def mean(self, texts: Sequence[str], *, append_eos: bool = False) -> float:
        """Return the mean length of texts; 0 of none.

        Raises
        ------
        ModelError: as `lengths` says.
        """
        lengths = self.lengths(texts, append_eos=append_eos)
        return float(lengths.sum(dtype=np.int64)) / max(1, len(lengths))

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


@dataclass(frozen=True)
class Widths:
    """How the sequences of some rows spread over the widths of batches, which hold one width each.

    Attributes
    ----------
    of_row: sequences of a row; less than 1 where rows share them.
    shares: of the sequences that have each width.
    """

    of_row: float
    shares: tuple[float, ...]

    @classmethod
    def of(cls, lengths: Sequence[int] | npt.NDArray[np.int32]) -> Widths:
        """Count rows that are sequences of their own, by a sample of their lengths."""
        from raybias.engine.packing import shared_width

        counts = Counter(shared_width(int(length)) for length in lengths)
        return cls(1.0, tuple(count / counts.total() for count in counts.values()))

    @classmethod
    def packed(cls, mean_length: float) -> Widths:
        """Count rows that share sequences, nearly all of them as long as sequences can be."""
        from raybias.engine.packing import MAX_TOKENS

        return cls(mean_length / MAX_TOKENS, _PACKED)

    def batches(self, rows: float) -> float:
        """Return the expected number of batches of so many rows, if none of them fills one."""
        return math.fsum(1 - (1 - share) ** (rows * self.of_row) for share in self.shares)


def _mark(texts: Sequence[str], append_eos: bool) -> tuple[bytes, bool]:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest(), append_eos


def sample(rows: Sequence[T]) -> list[T]:
    """Take some 200 rows, evenly spread."""
    return list(rows[:: max(1, len(rows) // _SAMPLE)])
