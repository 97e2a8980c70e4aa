"""A tokenizer of whole words, for random models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast


def word_tokenizer(
    words: Sequence[str], *, unknown: str = "<pad>", **specials: Any
) -> PreTrainedTokenizerFast:
    """Ids are places in `words`, `unknown` is read for all others; `specials` as transformers'."""
    ids = {word: place for place, word in enumerate(words)}
    core = Tokenizer(WordLevel(ids, unk_token=unknown))
    core.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, **specials)
