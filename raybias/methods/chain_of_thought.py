"""Have a backbone reason about a text before it is asked for the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from raybias.config.section import Count
from raybias.methods import prompts
from raybias.methods.base import method
from raybias.methods.prompted import CLOSED_QUESTION, Prompted, cue_of

#: Most tokens of the reasoning: in a chat, and after plain text as Kohankhaki2024 has it.
_REASONING: Final = {True: 256, False: 64}


@method
class ChainOfThought(Prompted):
    """Reasoning first, then an answer to it."""

    kind: Literal["cot"] = "cot"
    """Names the kind of method."""
    # The paper prints a period at its end and its code has none; the code is followed.
    template: str = CLOSED_QUESTION
    """The question, with `{text}` and `{choices}`."""
    cue: str = cue_of(CLOSED_QUESTION, "Reasoning: Let's think step by step")
    """What the reasoning begins with."""
    conclusion: str = "{reasoning}\nAnswer: Therefore, from {choices}, the sentiment is"
    """What follows the cue when the label is asked for, with `{reasoning}` and, if need be,
    `{text}` and `{choices}`; in a chat it belongs to the same turn of the model's."""
    reasoning_tokens: Count | None = Field(None, ge=1)
    """Most tokens of the reasoning: 256 in a chat, 64 after plain text by default."""

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return f"its own reasoning, at most {self.reasoning_room} tokens"

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ: the reasoning is sampled."""
        return self.temperature > 0 or super().draws

    def rooms(self, chat: bool) -> dict[str, int]:
        """Return the most tokens of what is written, by option, in a chat or after plain text."""
        own = {"reasoning_tokens": self.reasoning_tokens or _REASONING[chat]}
        return super().rooms(chat) | own

    @property
    def reasoning_room(self) -> int:
        """Most tokens of the reasoning."""
        return self.rooms(self.prompt_format != "raw")["reasoning_tokens"]

    @model_validator(mode="after")
    def _concludes_from_the_reasoning(self) -> Self:
        prompts.check_placeholders(
            "conclusion", self.conclusion, needed=("reasoning",), others=("text", "choices")
        )
        return self

    def concluded(self, text: str, words: Sequence[str], reasoning: str) -> str:
        """Write the reasoning, and the question about it."""
        return prompts.filled(
            self.conclusion, text=text, choices=prompts.choices(words), reasoning=reasoning
        )

    @property
    def asked_in_a_chat(self) -> str:
        """What asks for reasoning where a chat's answer cannot be given its begin."""
        return self.cue
