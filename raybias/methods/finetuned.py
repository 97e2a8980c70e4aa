"""What full fine-tuning and LoRA have in common (Kohankhaki2024)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raybias.config.method import StudyText
from raybias.config.profiles import by_profile
from raybias.config.section import Amount, Count
from raybias.methods.tuned import AdamW, EarlyStop, Tuned

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.adapters.base import ClassifierTrainer
    from raybias.engine.context import ModelContext

#: Validation batches of one evaluation in the papers' code.
_PAPER_BATCHES = 51


class FinetunedStop(EarlyStop):
    """When full fine-tuning and LoRA stop before their last step."""

    rule: Literal["exceeds_max_of_last", "patience"] = by_profile(
        paper="exceeds_max_of_last", strict="patience"
    )
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: Amount = Field(0, ge=0)
    """Nothing stops at or before this step."""
    stored: Count = by_profile(
        paper=lambda fields: fields["window"] + 1,
        strict=lambda fields: fields["window"],
        shown="paper window + 1, strict window",
        ge=1,
    )
    """How many losses must have been seen before the newest, as the paper's code has it."""


def _paper_rows(fields: Mapping[str, Any]) -> int:
    return int(_PAPER_BATCHES * fields["batch_size"])


class Finetuned(Tuned):
    """What full fine-tuning and LoRA have in common (Kohankhaki2024)."""

    head: Literal["classification", "label_tokens"] = "classification"
    """A new head with three outputs, or the label words' rows of a causal model's LM head."""
    template: str = "{text}"
    """What the model reads; `{text}` stands for the sentence."""
    label_words: tuple[str, str, str] | None = None
    """For label_tokens: the words in label order, instead of the study's verbalizer."""
    epochs: Count | None = Field(None, ge=1)
    """Stop after so many passes over the training set, where that comes before max_steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps; cosine falls to 0 at the last one."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    clip: float | None = Field(None, gt=0)
    """Largest norm of a run's gradient."""
    eval_every: Amount = by_profile(paper=5, strict=125, ge=1)
    """Steps between evaluations."""
    validation_rows: Amount = by_profile(
        paper=_paper_rows, strict=0, shown=f"paper {_PAPER_BATCHES} batches, strict 0", ge=0
    )
    """Rows of one evaluation, drawn anew each time; 0 takes them all."""
    early_stop: FinetunedStop = Field(default_factory=FinetunedStop)
    """The stopping rule."""
    select: Literal["validation", "test"] = by_profile(paper="test", strict="validation")
    """By which accuracy runs are kept; `test` (Kohankhaki2024) flatters its accuracies."""

    shares_backbone: ClassVar[bool] = False
    loads_as: ClassVar[str | None] = None
    """The dtype of loaded weights; None for the backbone's."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if "{text}" not in self.template:
            raise ValueError(f"template {self.template!r} has no {{text}}")
        if self.schedule == "cosine" and self.max_steps is None and self.epochs is None:
            raise ValueError("schedule: cosine needs max_steps or epochs, to know its end")
        return self

    @property
    def adamw(self) -> AdamW:
        """Options of AdamW beside the learning rate and the decay."""
        return AdamW(self.betas, self.eps, self.clip)

    def last_step(self, rows: int) -> int | None:
        """Return the step after which tuning on so many rows ends; None where nothing says."""
        ends = [] if self.max_steps is None else [self.max_steps]
        if self.epochs is not None:
            ends.append(self.epochs * -(-rows // self.batch_size))
        return min(ends, default=None)

    def rate_share(self, step: int, end: int | None) -> float:
        """Return the share of the learning rate that `step` (from 0) takes of `end` steps."""
        if end is None:
            return 1.0
        rising = round(self.warmup * end)
        if step < rising:
            return step / rising
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, end - rising)))

    def written(self, texts: Sequence[str]) -> list[str]:
        """Return texts in the method's template."""
        return [self.template.replace("{text}", text) for text in texts]

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse a head that the model cannot have, label words that share a token, long texts."""
        from raybias.engine.classifier import check_classifier

        check_classifier(text.encoder, self, text.words)
        self.check_lengths(text)

    @abstractmethod
    def trainer_type(self) -> type[ClassifierTrainer]:
        """Import the class that tunes the method's weights."""

    def trainer(self, context: ModelContext) -> ClassifierTrainer:
        """Load the backbone as a classifier with what tunes it or its adapters."""
        from raybias.engine.classifier import load_classifier

        classifier = load_classifier(context.spec, self, context.words, context.execution)
        return self.trainer_type()(classifier, self)
