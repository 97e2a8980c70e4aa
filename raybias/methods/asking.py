"""Write a method's prompts as one backbone reads them: as plain text, or in its chat template.

A prompt is a question and a cue, which begins the answer ("Answer: The sentiment is"). Plain text
has one behind the other. In a chat the question is the user's message, and the cue begins the
model's own turn, as `gen_prefix` does in lm-evaluation-harness; written into the user's message it
would be answered with a sentence, not with the word that is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from raybias.errors import ConfigError

if TYPE_CHECKING:
    from raybias.config.data import Ability
    from raybias.engine.backbone import TextEncoder
    from raybias.methods.lengths import TokenCounts
    from raybias.methods.prompted import Prompted
    from raybias.methods.prompted_predictor import Shot


class Message(TypedDict):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


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

    def written(self, prompt: str, cue: str = "", *, system: str = "", instead: str = "") -> str:
        """Write one question, behind the system message in a chat, and the cue of its answer.

        Parameters
        ----------
        instead: stands behind the question where a chat's answer cannot be given its begin.
        """
        if not self.chat:
            return prompt + cue
        before = [Message(role="system", content=system)] if system else []
        return self.begun([*before, Message(role="user", content=prompt)], cue, instead=instead)

    def begun(self, messages: Sequence[Message], cue: str, *, instead: str = "") -> str:
        """Write the messages of a chat, and the cue as the begin of the model's turn.

        An endpoint is sent whole messages, so `instead` stands at the end of the last one there.
        """
        if self.own.knows_tokens:
            turn = [Message(role="assistant", content=cue)] if cue else []
            return self.own.chat([*messages, *turn])
        *before, last = messages
        content = f"{last['content'].rstrip()}\n{instead}" if instead else last["content"]
        return self.own.chat([*before, Message(role=last["role"], content=content)])

    def counts(self, tokens: TokenCounts) -> TokenCounts:
        """Return what counts the tokens of prompts, of what counts those of texts."""
        return tokens.for_chat if self.chat else tokens


@dataclass(frozen=True)
class Asking(PromptFormat):
    """A prompted method on one backbone."""

    method: Prompted

    def first(self, text: str, words: Sequence[str], shots: Sequence[Shot] = ()) -> str:
        """Write the prompt of one text, behind its demonstrations where it shows any."""
        if not self.chat:
            return self.method.prompt(text, words, shots)
        messages = self.method.messages(text, words, shots)
        cue = self.method.opening(text, words)
        return self.begun(messages, cue, instead=self.method.asked_in_a_chat)

    def last(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> str:
        """Write the prompt that the answer follows; see `Prompted.answered_prompt`."""
        if not self.chat:
            return self.method.answered_prompt(text, words, shots, reasoning=reasoning)
        if self.own.knows_tokens:
            cue = self.method.answered_cue(text, words, reasoning=reasoning)
            return self.begun(self.method.messages(text, words, shots), cue)
        return self.own.chat(self.method.answered_messages(text, words, shots, reasoning=reasoning))

    def record(self, words: Sequence[str], shots: Sequence[Shot]) -> dict[str, str]:
        """Write the prompts of one run for the record, with placeholders for what varies."""
        plain = self.method.prompt_record(words, shots)
        if not self.chat:
            return plain
        prompts = {"prompt": self.first("{text}", words, shots), "prompt_format": "chat"}
        if "second_prompt" in plain:
            prompts["second_prompt"] = self.last("{text}", words, shots, reasoning="{reasoning}")
        return prompts

    def label_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...] | tuple[str, ...]:
        """Return by label the tokens that may begin its word where the answer stands.

        Words are taken in lower and upper case. Where tokens are not known these are the words.

        Raises
        ------
        ModelError: a word that the tokenizer does not know, or two with one token.
        """
        from raybias.engine.verbalizer import first_ids, first_token_groups

        shown = self.method.answer_words(words)
        if not self.own.knows_tokens:
            return tuple(shown)

        def ids(variants: Sequence[str]) -> list[int | None]:
            if not self.chat:
                return first_ids(self.own.tokenizer, variants)
            asked = self.last("", words)
            glue = " " if self.method.cue else ""
            opening, *rows = self.encoder.encode([asked, *(asked + glue + x for x in variants)])
            if any(row[: len(opening)] != opening or len(row) == len(opening) for row in rows):
                # Where an answer would change how what precedes it is cut, it stands for itself.
                opening, rows = [], self.encoder.encode(variants)
            unknown = self.own.tokenizer.unk_token_id
            return [None if (x := row[len(opening)]) == unknown else x for row in rows]

        return first_token_groups(ids, shown, tokenizer=self.own.tokenizer.name_or_path)
