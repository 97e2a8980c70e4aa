"""Classifiers made by prompting: what is asked, and how an answer is sampled and counted.

The default templates are those of "The Impact of Unstated Norms in Bias Analysis of Language
Models" (arXiv 2404.03471), to the character. In a template, `{text}` stands for the sentence and
`{choices}` for the study's label words ("negative, neutral, or positive"); other braces stay.
"""

from __future__ import annotations

import re
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from raybias.config.section import Named, Profile

#: A placeholder of a template; its name is the first group.
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")

_CLOSED: Final = "Text: {text}\nQuestion: Is the sentiment of the text {choices}?\n"
_OPEN: Final = "Text: {text}\nQuestion: What is the sentiment of the text?\nAnswer:"


class Prompted(Named):
    """What every prompted classifier has in common: nothing is tuned, answers are sampled."""

    template: str
    """The prompt for one sentence, without a blank at its end."""
    seeds: tuple[int, ...] = Field(tuple(range(2024, 2029)), min_length=1)
    """One run per seed; a seed rules what is sampled and which demonstrations are shown."""
    temperature: float = Field(0.8, ge=0)
    """Of sampling, 0 takes the likeliest token; top-k and the rest are the model's own."""
    answer_tokens: int = Field(3, ge=1)
    """Most tokens of an answer."""
    unparsed: Literal["random", "likelihood", "invalid"] | None = None
    """What an answer without a label word counts as: a random label (paper), the label with
    the highest likelihood (strict), or none. How many there are is reported in any case, and
    where most are, nothing is called significant."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if repeated := sorted({s for s in self.seeds if self.seeds.count(s) > 1}):
            raise ValueError(f"seeds repeat: {', '.join(map(str, repeated))}; list each once")
        return self

    @model_validator(mode="after")
    def _asks_about_the_text(self) -> Self:
        _check_placeholders("template", self.template, needed=("text",), others=("choices",))
        return self

    def resolve(self, profile: Profile) -> Self:
        """The same method with what the profile decides filled in."""
        unparsed = self.unparsed or ("likelihood" if profile == "strict" else "random")
        return self.model_copy(update={"unparsed": unparsed})


class ZeroShot(Prompted):
    """The question alone."""

    kind: Literal["zero_shot"] = "zero_shot"
    """Names the kind of method."""
    template: str = f"{_CLOSED}Answer: The sentiment is"
    """The prompt for one sentence, with `{text}` and, if it lists the label words, `{choices}`."""


class FewShot(Prompted):
    """Demonstrations from a training set before the question."""

    kind: Literal["few_shot"] = "few_shot"
    """Names the kind of method."""
    template: str = _OPEN
    """The question after the demonstrations, with `{text}` and, if need be, `{choices}`."""
    demonstration: str = _OPEN + " {Label}.\n\n"
    """One demonstration, with `{text}` and its label word: `{label}`, or `{Label}` with a capital,
    which the likelihood of the labels is then read with too."""
    shots_per_label: int = Field(3, ge=1)
    """Demonstrations of each label, drawn anew in each run."""
    shot_order: Literal["pool", "shuffled"] | None = None
    """By their row in the training set (paper), or shuffled in each run (strict)."""

    @model_validator(mode="after")
    def _shows_texts_and_labels(self) -> Self:
        label = "label" if "{label}" in self.demonstration else "Label"
        _check_placeholders(
            "demonstration", self.demonstration, needed=("text", label), others=("choices", "Label")
        )
        return self

    def resolve(self, profile: Profile) -> Self:
        """The same method with what the profile decides filled in."""
        order = self.shot_order or ("shuffled" if profile == "strict" else "pool")
        return super().resolve(profile).model_copy(update={"shot_order": order})


class ChainOfThought(Prompted):
    """Reasoning first, then an answer to it."""

    kind: Literal["cot"] = "cot"
    """Names the kind of method."""
    # The paper prints a period at its end and its code has none; the code is followed.
    template: str = f"{_CLOSED}Reasoning: Let's think step by step"
    """The first prompt, which is answered by the reasoning, with `{text}` and `{choices}`."""
    conclusion: str = "{reasoning}\nAnswer: Therefore, from {choices}, the sentiment is"
    """What follows the first prompt in the second one, with `{reasoning}` and, if need be, `{text}`
    and `{choices}`."""
    reasoning_tokens: int = Field(64, ge=1)
    """Most tokens of the reasoning."""

    @model_validator(mode="after")
    def _concludes_from_the_reasoning(self) -> Self:
        _check_placeholders(
            "conclusion", self.conclusion, needed=("reasoning",), others=("text", "choices")
        )
        return self


def _check_placeholders(
    field: str, template: str, *, needed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    found = PLACEHOLDER.findall(template)
    for name in needed:
        if name not in found:
            raise ValueError(f"{field} {template!r} has no {{{name}}}")
    known = dict.fromkeys((*needed, *others))
    for name in found:
        if name not in known:
            listed = ", ".join(f"{{{each}}}" for each in known)
            raise ValueError(f"{field} has {{{name}}}, which stands for nothing; use {listed}")
