"""Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from raybias.config.section import Rate, by_profile
from raybias.engine.adapters.options import PromptOptions
from raybias.engine.encoder import verbalizer_ids
from raybias.engine.memory import TRAINING_COPIES, MemoryTerm, of_bytes, term
from raybias.methods.base import Inputs, method
from raybias.methods.tuned import Tuned

if TYPE_CHECKING:
    from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
    from raybias.engine.backbone import ModelContext
    from raybias.engine.model_shape import ModelShape


@method
class SoftPrompt(PromptOptions, Tuned):
    """Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

    kind: Literal["soft_prompt"] = "soft_prompt"
    """Names the kind of method."""
    learning_rates: tuple[Rate, ...] = by_profile(paper=(1e-3,), strict=(3e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""

    small_state: ClassVar[bool] = True

    @property
    def context_vectors(self) -> int:
        return self.prompt_length

    @property
    def ends_with_eos(self) -> bool:
        return self.append_eos

    def check(self, inputs: Inputs) -> None:
        """Refuse an encoder, label words that share a token, and texts that are too long."""
        inputs.refuse_encoder(self.name)
        _ = inputs.encoder.prompt_token_id  # raises where there is none
        verbalizer_ids(inputs.encoder.tokenizer, inputs.words)
        super().check(inputs)

    def trainer(self, context: ModelContext) -> SoftPromptTrainer:
        from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
        from raybias.engine.backbone import load_backbone
        from raybias.engine.scoring.causal import LabelScorer

        backbone = context.kept(load_backbone)
        scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, context.words))
        return SoftPromptTrainer(scorer, self)

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        length, item = self.prompt_length, of_bytes(shape.item)
        return (
            term("keys and values of the prompts", pack, (length, "{} vectors"),
                 (shape.layers, "{} layers"), 2, shape.keys, item),
            term("prompts, gradients, AdamW, best", pack, length, shape.width, of_bytes(4),
                 TRAINING_COPIES),
        )  # fmt: skip
