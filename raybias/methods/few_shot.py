"""Show a backbone labelled texts before it is asked for a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raybias.config.section import Count, by_profile
from raybias.methods import prompts
from raybias.methods.asking import Message
from raybias.methods.base import method
from raybias.methods.prompted import OPEN_QUESTION, Prompted, Shot, cue_of
from raybias.probes.slots import capital
from raybias.schema import LABELS

if TYPE_CHECKING:
    import polars as pl


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
        """Demonstrations in a prompt."""
        return len(LABELS) * self.shots_per_label

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return f"{self.shots_per_label} demonstrations per label, order: {self.shot_order}"

    def shown(self, words: Sequence[str], shots: Sequence[Shot]) -> tuple[str, list[Message]]:
        """Write each demonstration behind the other, or as a question and its reply."""
        label = "{Label}" if "{Label}" in self.demonstration else "{label}"
        asked = self.demonstration.partition(label)[0].rstrip().removesuffix(self.cue)
        plain, messages = "", list[Message]()
        for shot, number in shots:
            whole, content = (
                self._filled(each, shot, words, number) for each in (self.demonstration, asked)
            )
            plain += whole
            messages += [
                Message(role="user", content=content.strip()),
                Message(role="assistant", content=whole[len(content) :].strip()),
            ]
        return plain, messages

    @staticmethod
    def _filled(template: str, shot: str, words: Sequence[str], label: int) -> str:
        word = words[label].strip()
        return prompts.filled(
            template,
            text=shot,
            choices=prompts.choices(words),
            label=word,
            Label=capital(word),
        )

    def answer_words(self, words: Sequence[str]) -> list[str]:
        """Return the label words as the demonstrations write them, for their tokens."""
        if "{Label}" not in self.demonstration:
            return list(words)
        return [capital(word) for word in words]

    def draw_shots(
        self, sentences: Mapping[str, Mapping[str, pl.DataFrame]], training: str, seed: int
    ) -> list[Shot]:
        """Draw the demonstrations of one run."""
        return prompts.draw_shots(
            sentences[training]["train"],
            seed=seed,
            shots_per_label=self.shots_per_label,
            order=self.shot_order,
            where=f"training set {training}",
        )
