"""Write prompts for a model whose tokenizer is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from raybias.engine.backbone import TextEncoder

#: Bytes of a token in English text, as a rule of thumb.
_BYTES: Final = 4


@dataclass(frozen=True)
class RoughEncoder(TextEncoder):
    """Writes messages as they are sent, and counts tokens roughly: one for four bytes."""

    knows_tokens: ClassVar[bool] = False

    @property
    def has_chat_template(self) -> bool:
        """Whether the model answers to chats."""
        return "chat" in self.spec.abilities

    @property
    def for_chat(self) -> TextEncoder:
        """Itself: what a chat takes beside its messages is not known."""
        return self

    def chat(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Write messages as JSON, as an endpoint is sent them."""
        return json.dumps([dict(each) for each in messages], ensure_ascii=False)

    def encode(self, texts: Sequence[str], *, append_eos: bool = False) -> list[list[int]]:
        """Return as many tokens, without a meaning, as each text has roughly."""
        return [[0] * (len(text.encode()) // _BYTES + 1) for text in texts]
