"""Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raybias.config.section import Count, Rate, by_profile
from raybias.engine.memory import TRAINING_COPIES
from raybias.methods.base import Inputs, method
from raybias.methods.tuned import Tuned, options_for
from raybias.methods.work import Held

if TYPE_CHECKING:
    from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
    from raybias.engine.backbone import ModelContext


@method
class SoftPrompt(Tuned):
    """Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

    kind: Literal["soft_prompt"] = "soft_prompt"
    """Names the kind of method."""
    prompt_length: Count = Field(8, ge=1)
    """Number P of prompt vectors."""
    init: Literal["normal", "zeros"] = "normal"
    """Initial delta: Normal(0, init_std), keyed by the seed, or zeros."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial delta."""
    learning_rates: tuple[Rate, ...] = by_profile(paper=(1e-3,), strict=(3e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    append_eos: bool = False
    """Put EOS after the text, so that the label is read there."""

    small_state: ClassVar[bool] = True

    @property
    def context_vectors(self) -> int:
        """Positions of the context that the prompt takes."""
        return self.prompt_length

    @property
    def ends_with_eos(self) -> bool:
        """Whether EOS stands behind a text."""
        return self.append_eos

    def check(self, inputs: Inputs) -> None:
        """Refuse an encoder, label words that share a token, and texts that are too long."""
        from raybias.engine.verbalizer import verbalizer_ids

        inputs.refuse_encoder(self.name)
        _ = inputs.encoder.prompt_token_id  # raises where there is none
        verbalizer_ids(inputs.encoder.tokenizer, inputs.words)
        super().check(inputs)

    def trainer(self, context: ModelContext) -> SoftPromptTrainer:
        """Load the frozen backbone with the trainer of its prompts."""
        from raybias.engine.adapters.soft_prompt import PromptOptions, SoftPromptTrainer
        from raybias.engine.backbone import load_backbone
        from raybias.engine.scoring.causal import LabelScorer
        from raybias.engine.verbalizer import verbalizer_ids

        backbone = context.kept(load_backbone)
        scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, context.words))
        return SoftPromptTrainer(scorer, options_for(PromptOptions, self))

    def held(self) -> tuple[Held, ...]:
        """List the prompts, with their keys and values."""
        length = self.prompt_length
        return (
            Held("keys and values of the prompts", "pack", (length, "{} vectors"),
                 ("layers", "{} layers"), 2, "keys", ("item", "{} bytes")),
            Held("prompts, gradients, AdamW, best", "pack", length, "width", (4, "{} bytes"),
                 TRAINING_COPIES),
        )  # fmt: skip
