"""Have a backbone reason about a text before it is asked for the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from raybias.config.method import Asks, StudyText
from raybias.config.provider import Second, preparing
from raybias.config.section import Count
from raybias.methods.asking import Message
from raybias.methods.prediction import Prepared
from raybias.methods.prompted import CLOSED_QUESTION, Prompted, cue_of
from raybias.methods.prompted_predictor import PromptedPredictor, PromptedRun, Shot
from raybias.probes import prompts
from raybias.registry import method

if TYPE_CHECKING:
    from raybias.config.provider import Written

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

    key_copies: ClassVar[int] = 3

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return f"its own reasoning, at most {self._reasoning_room} tokens"

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ: the reasoning is sampled."""
        return self.temperature > 0 or super().draws

    def rooms(self, chat: bool) -> dict[str, int]:
        """Return the most tokens of what is written, by option, in a chat or after plain text."""
        own = {"reasoning_tokens": self.reasoning_tokens or _REASONING[chat]}
        return super().rooms(chat) | own

    @property
    def _reasoning_room(self) -> int:
        return self.rooms(self.prompt_format != "raw")["reasoning_tokens"]

    @model_validator(mode="after")
    def _concludes_from_the_reasoning(self) -> Self:
        prompts.check_placeholders(
            "conclusion", self.conclusion, needed=("reasoning",), others=("text", "choices")
        )
        return self

    def answered_prompt(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> str:
        """Write the first prompt, its reasoning and the question about it."""
        return self.prompt(text, words, shots) + prompts.filled(
            self.conclusion, text=text, choices=prompts.choices(words), reasoning=reasoning
        )

    def answered_messages(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> list[Message]:
        """Write the question, its reasoning as the reply, and the question about it."""
        *before, question = self.messages(text, words, shots)
        asked = f"{question['content']}\n{self.asked_in_a_chat}"
        concluded = prompts.filled(
            self.conclusion, text=text, choices=prompts.choices(words), reasoning=""
        )
        return [
            *before,
            Message(role=question["role"], content=asked.strip()),
            Message(role="assistant", content=reasoning.strip()),
            Message(role="user", content=concluded.strip()),
        ]

    def answered_cue(self, text: str, words: Sequence[str], *, reasoning: str = "") -> str:
        """Write the reasoning with its cue, and what asks for the label behind it."""
        return self.opening(text, words) + prompts.filled(
            self.conclusion, text=text, choices=prompts.choices(words), reasoning=reasoning
        )

    @property
    def asked_in_a_chat(self) -> str:
        """What asks for reasoning where a chat's answer cannot be given its begin."""
        return self.cue

    def prompt_record(self, words: Sequence[str], shots: Sequence[Shot]) -> dict[str, str]:
        """Write both prompts for the record, with placeholders for what varies."""
        second = self.answered_prompt("{text}", words, shots, reasoning="{reasoning}")
        return {**super().prompt_record(words, shots), "second_prompt": second}

    def ask(
        self,
        predictor: PromptedPredictor,
        run: PromptedRun,
        item_ids: Sequence[str],
        texts: Sequence[str],
        asked: list[str],
    ) -> Prepared[tuple[list[Written], list[Written]]]:
        """Prepare prompts; return what samples reasonings and answers to what follows each."""

        def conclusion(number: int, reasoning: str) -> str:
            return predictor.asking.last(texts[number], predictor.words, reasoning=reasoning)

        return preparing(predictor.answers).prepare_write_twice(
            asked,
            run.keys(item_ids, "reasoning"),
            predictor.writing(self._reasoning_room),
            Second(conclusion, run.keys(item_ids, "answer"), self.answer_room),
        )

    def asks(self, text: StudyText, probe: str) -> Asks:
        """Return what one run asks of a provider for an item: two prompts."""
        asking = self.asking(text.encoder)
        read = self._read(text, probe, asking.first) + self._read(text, probe, asking.last)
        times = self._with_calibration(text, probe)
        read += self._reasoning_room
        return Asks(2.0 * times, read * times, self.new_tokens * times)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_room + self._reasoning_room
