"""Tokenise texts under a begin-of-sequence policy, write chats, choose labels' tokens; no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from raybias.config import Backbone
from raybias.engine.checkpoint import (
    adapter_of,
    context_of,
    read_config,
    reading_model,
    revision_of,
    source_of,
)
from raybias.errors import ModelError
from raybias.schema import LABELS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


#: Policies of `Backbone.bos`; any other value names a token.
_POLICIES: Final = ("tokenizer", "prepend", "none")
#: Tokens that separate documents in pretraining, by their usual names.
_SEPARATORS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

#: Tells that a folder holds a tokenizer.
_TOKENIZER: Final = "tokenizer_config.json"
#: Tokenizers without a limit report an absurd one.
_NO_LIMIT: Final = 10**9
#: Bytes of a token in English text, as a rule of thumb.
_BYTES: Final = 4


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer under a begin-of-sequence policy.

    `context`: the longest input in tokens, None without a limit; `rows`: of the model's embeddings.
    """

    spec: Backbone
    tokenizer: PreTrainedTokenizerBase
    context: int | None
    rows: int | None = None

    @property
    def prompt_token_id(self) -> int:
        """Id of the token that begins sentences and soft prompts, the first of `begin_ids`."""
        return self.begin_ids[0]

    @property
    def begin_tokens(self) -> list[str]:
        """The texts of `begin_ids`."""
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens([*self.begin_ids])]

    @cached_property
    def begin_ids(self) -> tuple[int, ...]:
        """Ids of the token that begins sentences (Tian2023 section 3), and of the other candidate.

        The token that `bos` names; else BOS, or EOS without one; or the token that separates
        documents, if BOS marks the turns of a chat. Raises ModelError: neither BOS nor EOS.
        """
        given = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        own = next((int(token_id) for token_id in given if token_id is not None), None)
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        named = None if self.spec.bos in _POLICIES else vocabulary[self.spec.bos]
        if own is None:
            if named is None:
                raise ModelError("the tokenizer has neither BOS nor EOS", where=self.spec.id)
            return (named,)
        separator, token = own, self.tokenizer.decode([own])
        turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
        # A template that refuses these turns leaves the question open.
        with suppress(ModelError):
            if self.has_chat_template and self.chat(turns).count(token) >= len(turns):
                there = (vocabulary[name] for name in _SEPARATORS if name in vocabulary)
                separator = next(there, own)
        return tuple(dict.fromkeys([separator if named is None else named, separator, own]))[:2]

    #: Whether tokens are known, and so the begin of the model's turn can be written.
    knows_tokens: ClassVar[bool] = True

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer comes with a chat template."""
        return bool(self.tokenizer.chat_template)

    @cached_property
    def for_chat(self) -> TextEncoder:
        """The same tokenizer for chats, whose templates write special tokens themselves."""
        return replace(self, spec=self.spec.model_copy(update={"bos": "none"}))

    def chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Write messages (`role`, `content`) in the chat template, up to the model's answer.

        A last message of the assistant is left open to continue; thoughts before the answer are
        switched off where the template can.
        Raises ModelError: the template refuses the messages, such as a system message.
        """
        begun = messages[-1]["role"] == "assistant"
        with reading_model(self.spec, "chat template"):
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(each) for each in messages],
                    tokenize=False,
                    add_generation_prompt=not begun,
                    continue_final_message=begun,
                    enable_thinking=False,
                )
            )

    def ids(
        self, texts: Sequence[str], *, specials: bool = True, longest: int | None = None
    ) -> list[list[int]]:
        """Tokenise texts as the tokenizer does by itself; return the token ids of each.

        longest: tokens to which a longer text is cut by the tokenizer's own rule; None cuts none.
        """
        if not texts:
            return []
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        rows = self.tokenizer([*texts], add_special_tokens=specials, **cut)["input_ids"]
        return [list(row) for row in rows]

    def encode(
        self, texts: Sequence[str], *, append_eos: bool = False, longest: int | None = None
    ) -> list[list[int]]:
        """Tokenise texts; ModelError: no tokens, one that the model lacks, or no EOS to append.

        longest: tokens to which a longer text is cut, an appended EOS not counted; None cuts none.
        """
        rows = self._tokenise(texts, longest)
        if append_eos:
            if self.tokenizer.eos_token_id is None:
                raise ModelError("append_eos: the tokenizer has no EOS", where=self.spec.id)
            rows = [[*row, self.tokenizer.eos_token_id] for row in rows]
        for text, row in zip(texts, rows, strict=True):
            if row and self.rows is not None and max(row) >= self.rows:
                raise ModelError(
                    f"text {text!r} has the token {max(row)}, and the model has {self.rows}",
                    where=self.spec.id,
                    cure="give the model's own tokenizer",
                )
            if not row:
                raise ModelError(
                    f"text {text!r} has no tokens", where=self.spec.id, cure="set bos: prepend"
                )
        return rows

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, those of the begin-of-sequence policy included; 0 if none."""
        return len(self._tokenise([text])[0])

    def _tokenise(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """Tokenise texts under the begin-of-sequence policy, without a check."""
        prepends = self.spec.bos not in ("tokenizer", "none")
        room = longest - 1 if prepends and longest is not None else longest
        with reading_model(self.spec, "tokenizer"):
            rows = self.ids(texts, specials=self.spec.bos == "tokenizer", longest=room)
        return [[self.prompt_token_id, *row] for row in rows] if prepends else rows


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens that a tokenizer puts around a text.

    before, after: their ids.
    types: the token types of those before, of the text's own tokens, and of those after; None if
        the tokenizer returns no token types.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...]] | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
        """Find them by tokenizing a word with and without them."""
        word = LABELS[0]
        bare = tokenizer(word, add_special_tokens=False)["input_ids"]
        encoding = tokenizer(word)
        ids, types = list(encoding["input_ids"]), encoding.get("token_type_ids")
        starts = range(len(ids) - len(bare) + 1)
        begin = next((at for at in starts if ids[at : at + len(bare)] == bare), 0)
        end = begin + len(bare)
        return cls(
            tuple(ids[:begin]),
            tuple(ids[end:]),
            types and (tuple(types[:begin]), types[begin], tuple(types[end:])),
        )


@dataclass(frozen=True)
class RoughEncoder(TextEncoder):
    """Write messages as an endpoint is sent them, and count tokens roughly: one for four bytes."""

    knows_tokens: ClassVar[bool] = False

    @property
    def has_chat_template(self) -> bool:
        return "chat" in self.spec.abilities

    @property
    def for_chat(self) -> TextEncoder:
        """Itself: the options of a server's chat template are unknown."""
        return self

    def chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        return json.dumps([dict(each) for each in messages], ensure_ascii=False)

    def _tokenise(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """Return about as many tokens, without a meaning, as each text has."""
        return [[0] * (len(text.encode()) // _BYTES + 1) for text in texts]


def load_tokenizer(spec: Backbone) -> TextEncoder:
    """Load the tokenizer and its begin-of-sequence policy; ModelError if missing or unreadable."""
    from transformers import AutoTokenizer

    if not spec.is_checkpoint:
        written: TextEncoder = spec.text_encoder()
        return written
    config = read_config(spec)
    source, revision = source_of(spec), revision_of(spec)
    adapter = adapter_of(spec)
    if adapter is not None and (adapter.folder / _TOKENIZER).is_file():
        source, revision = str(adapter.folder), None
    with reading_model(spec, "tokenizer"):
        # The config says which tokenizer it is; a folder of an adapter has none.
        tokenizer = AutoTokenizer.from_pretrained(
            source, config=config, revision=revision, trust_remote_code=False
        )
        limits = (context_of(config), tokenizer.model_max_length)
        known = [int(limit) for limit in limits if limit is not None and 0 < limit < _NO_LIMIT]
        # A broken tokenizer fails at its first use.
        tokenizer([LABELS[0]])
        vocabulary = tokenizer.get_vocab()
    if spec.bos not in _POLICIES and spec.bos not in vocabulary:
        raise ModelError(
            f"bos: {spec.bos!r} is no token of the tokenizer",
            where=spec.id,
            cure=f"name one of its tokens, or {', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}",
        )
    rows = getattr(config.get_text_config(), "vocab_size", None)
    return TextEncoder(spec, tokenizer, min(known, default=None), rows)


def check_lengths(
    lengths: Sequence[int] | npt.NDArray[np.signedinteger[Any]],
    *,
    context: int | None,
    taken: int = 0,
    by: str = "",
    names: Sequence[str],
) -> None:
    """Refuse texts that do not fit the context; nothing is ever cut silently.

    `taken`: tokens of the context that `by` takes, such as prompt vectors; `names`: of the texts.
    Raises ModelError: counts the texts and names the longest.
    """
    if context is None:
        return
    room = context - taken
    over = {name: int(n) for name, n in zip(names, lengths, strict=True) if n > room}
    if over:
        longest = max(over, key=lambda name: over[name])
        beside = f" leaves beside {taken} {by}" if taken else " has"
        raise ModelError(
            f"{len(over)} of {len(lengths)} texts are longer than the {max(room, 0)} tokens that"
            f" the context of {context}{beside} (longest: {longest}, {over[longest]} tokens)",
            cure="shorten or remove them, or use a backbone with a longer context",
        )


def verbalizer_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> tuple[int, ...]:
    """Return the token id of each label word, in label order; raises as `distinct` does.

    It is the first of the word after a blank: a word that a tokenizer splits is known by its first
    piece (Tian2023 section 3).
    """
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


def summed(log_probs: Sequence[float], groups: Sequence[Sequence[object]]) -> tuple[float, ...]:
    """Add up probabilities by group of tokens; takes (group by group) and returns logarithms."""
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
