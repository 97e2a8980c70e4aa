"""Choose the token that stands for each label.

The token is the first one of the word as it stands after a blank; a word that a
tokenizer splits is known by its first piece (Tian2023 section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def verbalizer_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> tuple[int, ...]:
    """Return the token id of each label word, in label order.

    Raises
    ------
    ModelError: a word without a token, an unknown word, or two words with one id.
    """
    ids = [_first_id(tokenizer, word) for word in words]
    return distinct(ids, words, tokenizer=tokenizer.name_or_path)


def distinct(ids: Sequence[int], words: Sequence[str], *, tokenizer: str) -> tuple[int, ...]:
    """Return the ids of label words.

    Parameters
    ----------
    tokenizer: named where two have one id.

    Raises
    ------
    ModelError: two words have one id.
    """
    for place, token_id in enumerate(ids):
        first = ids.index(token_id)
        if first != place:
            raise ModelError(
                f"{words[first]!r} and {words[place]!r} both begin with token {token_id}",
                where=_where(tokenizer),
                cure="choose words whose first tokens differ",
            )
    return tuple(ids)


def _first_id(tokenizer: PreTrainedTokenizerBase, word: str) -> int:
    # Byte-level tokenizers need the blank to reach the word-initial piece, and
    # SentencePiece ones add the word mark by themselves: the blank alone is the piece
    # to skip where they keep both.
    ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    if len(ids) > 1 and pieces[0] in ("▁", "Ġ"):
        ids = ids[1:]
    if not ids or ids[0] == tokenizer.unk_token_id:
        raise ModelError(
            f"the tokenizer does not know the word {word!r}",
            where=_where(tokenizer.name_or_path),
            cure="choose another word for this label",
        )
    return int(ids[0])


def _where(tokenizer: str) -> str:
    return f"verbalizer, with the tokenizer of {tokenizer}"
