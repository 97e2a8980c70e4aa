"""Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raybias.config.method import StudyText
from raybias.config.profiles import by_profile
from raybias.config.section import Count, Rate
from raybias.methods.lengths import Widths
from raybias.methods.tuned import Tuned
from raybias.registry import method

if TYPE_CHECKING:
    import polars as pl

    from raybias.config import Backbone
    from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
    from raybias.engine.context import ModelContext
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape


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

    def widths(self, text: StudyText, texts: pl.Series) -> Widths:
        """Return how packed sequences spread over the widths of batches."""
        return Widths.packed(self.mean_length(text, texts))

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, label words that share a token, and texts that are too long."""
        from raybias.engine.backbone import check_causal
        from raybias.engine.verbalizer import verbalizer_ids

        check_causal(backbone, f"method {self.name}")
        _ = text.encoder.prompt_token_id  # raises where there is none
        verbalizer_ids(text.encoder.tokenizer, text.words)
        self.check_lengths(text)

    def trainer(self, context: ModelContext) -> SoftPromptTrainer:
        """Load the frozen backbone with what tunes prompts on it."""
        from raybias.engine.adapters.soft_prompt import SoftPromptTrainer
        from raybias.engine.scoring.label_scorer import LabelScorer
        from raybias.engine.verbalizer import verbalizer_ids

        backbone = context.backbone()
        scorer = LabelScorer(backbone, verbalizer_ids(backbone.tokenizer, context.words))
        return SoftPromptTrainer(scorer, self)

    def training_memory(
        self, shape: ModelShape, *, pack: int, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a worker that tunes `pack` prompts together."""
        from raybias.engine import memory

        item, length = memory.of_bytes(shape.item), self.prompt_length
        return (
            *memory.training_weights(shape, partitions),
            *memory.training_activations(shape, tokens, shape.item, device),
            memory.term(
                "keys and values of the prompts",
                pack,
                (length, "{} vectors"),
                (shape.layers, "{} layers"),
                2,
                shape.keys,
                item,
            ),
            memory.term(
                "prompts, gradients, AdamW, best",
                pack,
                length,
                shape.width,
                memory.of_bytes(4),
                memory.TRAINING_COPIES,
            ),
            memory.process(device),
        )
