"""Write a method's prompts as one backbone reads them: as plain text, or in its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from raybias.errors import ConfigError

if TYPE_CHECKING:
    from raybias.config.data import Ability
    from raybias.engine.backbone import TextEncoder
    from raybias.methods.lengths import TokenCounts
    from raybias.methods.prompted import Prompted
    from raybias.methods.prompted_predictor import Shot


class Formatted(Protocol):
    """A method whose prompts may be chats."""

    @property
    def name(self) -> str:
        """Its name in a study."""

    @property
    def prompt_format(self) -> Literal["raw", "chat", "auto"]:
        """Whether prompts are chats; auto where the tokenizer has a template for them."""

    @property
    def system(self) -> str:
        """The system message of a chat; none where empty."""


@dataclass(frozen=True)
class PromptFormat:
    """The form of a method's prompts on one backbone.

    Attributes
    ----------
    own: the backbone's tokenizer under its begin-of-sequence policy.
    """

    method: Formatted
    own: TextEncoder

    @cached_property
    def chat(self) -> bool:
        """Whether prompts are messages in the tokenizer's chat template.

        Raises
        ------
        ConfigError: a chat or system message is asked for, and there is no template.
        """
        asked = self.method.prompt_format
        if asked == "raw" or self.own.has_chat_template:
            return asked != "raw"
        if asked == "chat" or self.method.system:
            wanted = "prompt_format: chat" if asked == "chat" else "a system message"
            raise ConfigError(
                f"method {self.method.name!r} asks for {wanted}, and the tokenizer of "
                f"{self.own.spec.id} has no chat template",
                cure="take prompt_format: raw without a system message, or a model for chats",
            )
        return False

    @staticmethod
    def needed(method: Formatted, offered: frozenset[Ability]) -> dict[Ability, str]:
        """Return what a method's prompts need of a backbone, and what to do where it lacks that."""
        chat = method.prompt_format == "chat" or (
            method.prompt_format == "auto" and ("chat" in offered or bool(method.system))
        )
        return {"chat": "set prompt_format: raw"} if chat else {"text": "set prompt_format: chat"}

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer for prompts; chat templates write special tokens by themselves."""
        return self.own.for_chat if self.chat else self.own

    def written(self, prompt: str, system: str) -> str:
        """Write a prompt as the only message of the user, behind the system's, in a chat."""
        if not self.chat:
            return prompt
        before = [{"role": "system", "content": system}] if system else []
        return self.own.chat([*before, {"role": "user", "content": prompt}])

    def counts(self, tokens: TokenCounts) -> TokenCounts:
        """Return what counts the tokens of prompts, of what counts those of texts."""
        return tokens.for_chat if self.chat else tokens


@dataclass(frozen=True)
class Asking(PromptFormat):
    """A prompted method on one backbone."""

    method: Prompted

    def first(self, text: str, words: Sequence[str], shots: Sequence[Shot] = ()) -> str:
        """Write the prompt of one text, behind its demonstrations where it shows any."""
        if self.chat:
            return self.own.chat(self.method.messages(text, words, shots))
        return self.method.prompt(text, words, shots)

    def last(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> str:
        """Write the prompt that the answer follows; see `Prompted.answered_prompt`."""
        if self.chat:
            return self.own.chat(
                self.method.answered_messages(text, words, shots, reasoning=reasoning)
            )
        return self.method.answered_prompt(text, words, shots, reasoning=reasoning)

    def record(self, words: Sequence[str], shots: Sequence[Shot]) -> dict[str, str]:
        """Write the prompts of one run for the record, with placeholders for what varies."""
        plain = self.method.prompt_record(words, shots)
        if not self.chat:
            return plain
        prompts = {"prompt": self.first("{text}", words, shots), "prompt_format": "chat"}
        if "second_prompt" in plain:
            prompts["second_prompt"] = self.last("{text}", words, shots, reasoning="{reasoning}")
        return prompts

    def label_ids(self, words: Sequence[str]) -> tuple[int, ...] | tuple[str, ...]:
        """Return the token that begins each label word where the answer stands, in label order.

        Where tokens are not known these are the words.

        Raises
        ------
        ModelError: a word that the tokenizer does not know, or two with one token.
        """
        from raybias.engine.verbalizer import distinct, verbalizer_ids

        shown = self.method.answer_words(words)
        if not self.own.knows_tokens:
            return tuple(shown)
        if not self.chat:
            return verbalizer_ids(self.own.tokenizer, shown)
        asked = self.method.answered_messages("", words)
        replies = [self.own.chat(asked, reply=word) for word in shown]
        opening, *rows = self.encoder.encode([self.own.chat(asked), *replies])
        if any(row[: len(opening)] != opening or len(row) == len(opening) for row in rows):
            # Where an answer would change how what precedes it is cut, it stands for itself.
            opening, rows = [], self.encoder.encode(shown)
        ids = [row[len(opening)] for row in rows]
        return distinct(ids, shown, tokenizer=self.own.tokenizer.name_or_path)
