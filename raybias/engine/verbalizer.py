"""Choose the tokens that stand for each label: the first of its word after a blank.

A word that a tokenizer splits is known by its first piece (Tian2023 section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def verbalizer_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> tuple[int, ...]:
    """Return the token id of each label word, in label order; raises as `distinct` does."""
    return distinct(first_ids(tokenizer, words), words, tokenizer=tokenizer.name_or_path)


def first_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[int | None]:
    """Return the first token of each word after a blank; None where it is unknown."""

    def first_id(word: str) -> int | None:
        # Byte-level tokenizers need the blank for the word-initial piece; SentencePiece ones add
        # a word mark themselves, and where they keep both, the blank alone is skipped.
        ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        if len(ids) > 1 and pieces[0] in ("▁", "Ġ"):
            ids = ids[1:]
        return int(ids[0]) if ids and ids[0] != tokenizer.unk_token_id else None

    return [first_id(word) for word in words]


def first_token_groups(
    ids_of: Callable[[Sequence[str]], list[int | None]], words: Sequence[str], *, tokenizer: str
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens that each label word may begin with: in its own case and in the other.

    The other case is left out for all words where it would give two labels one token. `ids_of`:
    returns the first token of each word where the answer stands; None where it is unknown.
    Raises ModelError: a word that is unknown, or two that begin with the same token.
    """
    own = distinct(ids_of(words), words, tokenizer=tokenizer)
    other = ids_of([word[:1].swapcase() + word[1:] for word in words])
    groups = [
        (one,) if two in (None, one) else (one, two) for one, two in zip(own, other, strict=True)
    ]
    tokens = [token for group in groups for token in group]
    return tuple(groups) if len({*tokens}) == len(tokens) else tuple((one,) for one in own)


def summed(log_probs: Sequence[float], groups: Sequence[Sequence[object]]) -> tuple[float, ...]:
    """Add up the probabilities of each group of tokens; takes and returns natural logarithms.

    `log_probs` are of the tokens of all groups, group by group.
    """
    values = iter(log_probs)
    return tuple(float(np.logaddexp.reduce([next(values) for _ in group])) for group in groups)


def distinct(ids: Sequence[int | None], words: Sequence[str], *, tokenizer: str) -> tuple[int, ...]:
    """Return the ids of label words; ModelError for an unknown word (None), or two with one id."""
    where = f"verbalizer, with the tokenizer of {tokenizer}"
    found: dict[int, str] = {}
    for token_id, word in zip(ids, words, strict=True):
        if token_id is None:
            raise ModelError(
                f"the tokenizer does not know the word {word!r}",
                where=where,
                cure="choose another word for this label",
            )
        if token_id in found:
            raise ModelError(
                f"{found[token_id]!r} and {word!r} both begin with token {token_id}",
                where=where,
                cure="choose words whose first tokens differ",
            )
        found[token_id] = word
    return tuple(found)
