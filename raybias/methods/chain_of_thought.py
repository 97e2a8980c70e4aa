"""Have a backbone reason about a text before it is asked for the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raybias.config.method import Asks, StudyText
from raybias.config.provider import Second, preparing
from raybias.config.section import Count
from raybias.methods.prediction import Prepared
from raybias.methods.prompted import CLOSED_QUESTION, Message, Prompted
from raybias.methods.prompted_predictor import PromptedPredictor, PromptedRun, Shot
from raybias.probes import prompts
from raybias.registry import method

if TYPE_CHECKING:
    from raybias.config.provider import Written


@method
class ChainOfThought(Prompted):
    """Reasoning first, then an answer to it."""

    kind: Literal["cot"] = "cot"
    """Names the kind of method."""
    # The paper prints a period at its end and its code has none; the code is followed.
    template: str = f"{CLOSED_QUESTION}Reasoning: Let's think step by step"
    """The first prompt, which is answered by the reasoning, with `{text}` and `{choices}`."""
    conclusion: str = "{reasoning}\nAnswer: Therefore, from {choices}, the sentiment is"
    """What follows the first prompt in the second one, with `{reasoning}` and, if need be, `{text}`
    and `{choices}`."""
    reasoning_tokens: Count = Field(64, ge=1)
    """Most tokens of the reasoning."""

    key_copies: ClassVar[int] = 3

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return f"its own reasoning, at most {self.reasoning_tokens} tokens"

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
        concluded = prompts.filled(
            self.conclusion, text=text, choices=prompts.choices(words), reasoning=""
        )
        return [
            *self.messages(text, words, shots),
            Message(role="assistant", content=reasoning.strip()),
            Message(role="user", content=concluded.strip()),
        ]

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
            predictor.writing(self.reasoning_tokens),
            Second(conclusion, run.keys(item_ids, "answer"), self.answer_tokens),
        )

    def asks(self, text: StudyText, probe: str) -> Asks:
        """Return what one run asks of a provider for an item: two prompts."""
        asking = self.asking(text.encoder)
        read = self._read(text, probe, asking.first) + self._read(text, probe, asking.last)
        return Asks(2.0, read + self.reasoning_tokens, self.new_tokens)

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_tokens + self.reasoning_tokens
