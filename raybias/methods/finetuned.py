"""What full fine-tuning and LoRA have in common (Kohankhaki2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raybias.config.method import StudyText
from raybias.config.section import Profile
from raybias.methods.tuned import ALL_ROWS, AdamW, Tuned

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.backbone import TextEncoder

#: Validation batches of one evaluation in the papers' code.
_PAPER_BATCHES = 51


class Finetuned(Tuned):
    """What full fine-tuning and LoRA have in common (Kohankhaki2024)."""

    head: Literal["classification", "label_tokens"] = "classification"
    """A new head with three outputs, or the label words' rows of a causal model's LM head."""
    template: str = "{text}"
    """What the model reads; `{text}` stands for the sentence."""
    label_words: tuple[str, str, str] | None = None
    """For label_tokens: the words in label order, instead of the study's verbalizer."""
    epochs: int | None = Field(None, ge=1)
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

    shares_backbone: ClassVar[bool] = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if "{text}" not in self.template:
            raise ValueError(f"template {self.template!r} has no {{text}}")
        if self.schedule == "cosine" and self.max_steps is None and self.epochs is None:
            raise ValueError("schedule: cosine needs max_steps or epochs, to know its end")
        return self

    def _resolved(self, profile: Profile, *, window: int) -> Self:
        strict = profile == "strict"
        rows = ALL_ROWS if strict else _PAPER_BATCHES * self.batch_size
        early_stop = self.early_stop.filled(
            rule="patience" if strict else "exceeds_max_of_last",
            after_step=0,
            window=window,
            one_more=not strict,
        )
        decided = {
            "early_stop": early_stop,
            "eval_every": self.eval_every or (125 if strict else 5),
            "validation_rows": rows if self.validation_rows is None else self.validation_rows,
            "select": self.select or ("validation" if strict else "test"),
        }
        return super().resolve(profile).model_copy(update=decided)

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

    def encode(self, encoder: TextEncoder, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts in the method's template."""
        return encoder.encode([self.template.replace("{text}", text) for text in texts])

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse a head that the model cannot have, label words that share a token, long texts."""
        from raybias.engine.classifier import check_classifier

        check_classifier(backbone, self, text.words)
        self.check_lengths(text)
