"""Ask a backbone for a text's label by Kohankhaki2024's prompts: zero-shot, few-shot, CoT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from raybias.config.section import Count, by_profile
from raybias.methods import prompts
from raybias.methods.asking import Message
from raybias.methods.base import method
from raybias.methods.prompted import CLOSED_QUESTION, OPEN_QUESTION, Prompted, Shot, cue_of
from raybias.probes.templates import capital
from raybias.schema import LABELS

#: Most tokens of the reasoning: in a chat, and after plain text as Kohankhaki2024 has it.
_REASONING: Final = {True: 256, False: 64}


@method
class ZeroShot(Prompted):
    """The question alone."""

    kind: Literal["zero_shot"] = "zero_shot"
    """Names the kind of method."""
    template: str = CLOSED_QUESTION
    """The question, with `{text}` and, if it lists the label words, `{choices}`."""
    cue: str = cue_of(CLOSED_QUESTION, "Answer: The sentiment is")
    """What the answer begins with."""


@method
class FewShot(Prompted):
    """Demonstrations from a training set before the question."""

    kind: Literal["few_shot"] = "few_shot"
    """Names the kind of method."""
    template: str = OPEN_QUESTION
    """The question after the demonstrations, with `{text}` and, if need be, `{choices}`."""
    cue: str = cue_of(OPEN_QUESTION, "Answer:")
    """What the answer begins with, also in the demonstrations."""
    demonstration: str = OPEN_QUESTION + "Answer: {Label}.\n\n"
    """One demonstration, with `{text}` and its label word: `{label}`, or `{Label}` with a capital,
    which the likelihood of the labels is then read with too."""
    shots_per_label: Count = Field(3, ge=1)
    """Demonstrations of each label, drawn anew in each run."""
    shot_order: Literal["pool", "shuffled"] = by_profile(paper="pool", strict="shuffled")
    """By their row in the training set (pool), or shuffled in each run."""

    needs_training_set: ClassVar[bool] = True

    @model_validator(mode="after")
    def _shows_texts_and_labels(self) -> Self:
        label = "label" if "{label}" in self.demonstration else "Label"
        prompts.check_placeholders(
            "demonstration", self.demonstration, needed=("text", label), others=("choices", "Label")
        )
        return self

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ: each draws its demonstrations."""
        return True

    @property
    def shots(self) -> int:
        return len(LABELS) * self.shots_per_label

    @property
    def shown_first(self) -> str:
        return f"{self.shots_per_label} demonstrations per label, order: {self.shot_order}"

    def shown(self, words: Sequence[str], shots: Sequence[Shot]) -> tuple[str, list[Message]]:
        """Write the demonstrations one after the other, or as questions and replies."""
        label = "{Label}" if "{Label}" in self.demonstration else "{label}"
        asked = self.demonstration.partition(label)[0].rstrip().removesuffix(self.cue)
        plain, messages = "", list[Message]()
        for shot, number in shots:
            word = words[number].strip()
            whole, content = (
                prompts.about(each, shot, words, label=word, Label=capital(word))
                for each in (self.demonstration, asked)
            )
            plain += whole
            messages += [
                Message(role="user", content=content.strip()),
                Message(role="assistant", content=whole[len(content) :].strip()),
            ]
        return plain, messages

    def answer_words(self, words: Sequence[str]) -> list[str]:
        if "{Label}" not in self.demonstration:
            return list(words)
        return [capital(word) for word in words]

    def draw_shots(
        self, sentences: Mapping[str, Mapping[str, pl.DataFrame]], training: str, seed: int
    ) -> list[Shot]:
        return prompts.draw_shots(
            sentences[training]["train"],
            seed=seed,
            shots_per_label=self.shots_per_label,
            order=self.shot_order,
            where=f"training set {training}",
        )


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
        return f"its own reasoning, at most {self.reasoning_room} tokens"

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ: the reasoning is sampled."""
        return self.temperature > 0 or super().draws

    def rooms(self, chat: bool) -> dict[str, int]:
        own = {"reasoning_tokens": self.reasoning_tokens or _REASONING[chat]}
        return super().rooms(chat) | own

    @property
    def reasoning_room(self) -> int:
        return self.rooms(self.prompt_format != "raw")["reasoning_tokens"]

    @model_validator(mode="after")
    def _concludes_from_the_reasoning(self) -> Self:
        prompts.check_placeholders(
            "conclusion", self.conclusion, needed=("reasoning",), others=("text", "choices")
        )
        return self

    def concluded(self, text: str, words: Sequence[str], reasoning: str) -> str:
        return prompts.about(self.conclusion, text, words, reasoning=reasoning)

    @property
    def asked_in_a_chat(self) -> str:
        """The request for reasoning where a chat's answer cannot be given its begin."""
        return self.cue
