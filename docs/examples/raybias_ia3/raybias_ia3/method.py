"""Tune vectors that rescale keys, values and feed-forward activations: (IA)3 (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raybias.config.section import Amount, Rate
from raybias.engine.memory import TRAINING_COPIES, MemoryTerm, of_bytes, term
from raybias.methods import LayerAdapter, method

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape
    from raybias_ia3.trainer import Ia3Trainer


@method
class Ia3(LayerAdapter):
    """Packed (IA)3: vectors that rescale keys, values and feed-forward activations."""

    kind: Literal["ia3"] = "ia3"
    """Names the kind of method."""
    target: Literal["peft_default"] | tuple[str, ...] = "peft_default"
    """Which linear layers: PEFT's choice for the architecture (keys, values and the second
    feed-forward layer mostly), or names such as [k_proj, v_proj, fc2]."""
    feed_forward: tuple[str, ...] = ()
    """Names in target of layers whose input is rescaled instead of their output."""
    learning_rates: tuple[Rate, ...] = Field((3e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW decay of the vectors, towards 0 and not 1, and of the head."""
    max_steps: Amount | None = Field(30_000, ge=1)
    """The last step."""

    launches: ClassVar[tuple[float, float]] = (1.5, 0.1)

    @model_validator(mode="after")
    def _feeds_targets(self) -> Self:
        if wrong := sorted({*self.feed_forward} - {*self.target}):
            raise ValueError(f"feed_forward names {wrong[0]}, which is not in target; add it there")
        return self

    def peft_names(self, architecture: str) -> Sequence[str]:
        """Return PEFT's choice of layers for an architecture."""
        from peft.utils import constants

        names: Sequence[str] = constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING.get(
            architecture, ()
        )
        return names

    def feed_forward_names(self, architecture: str) -> Sequence[str]:
        """Return how the paths of layers end whose input is rescaled."""
        if self.target != "peft_default":
            return self.feed_forward
        from peft.utils import constants

        names: Sequence[str] = constants.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING.get(
            architecture, ()
        )
        return names

    def trainer_type(self) -> type[Ia3Trainer]:
        """Import the class that tunes the vectors."""
        from raybias_ia3.trainer import Ia3Trainer

        return Ia3Trainer

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        """Count the vectors, and the activations that they rescale."""
        # PEFT's targets: at most three outputs of the model's width, and the feed-forward one.
        widths = shape.layers * (3 * shape.hidden + shape.feed_forward)
        known = widths if self.target == "peft_default" else shape.linear_widths
        rescaled, each = (known, "up to {:,} inputs and outputs"), of_bytes(4)
        return (
            term("rescaled activations, kept too", (tokens, "{:,} tokens"), rescaled, each),
            term("vectors, gradients, AdamW, best", pack, rescaled, each, TRAINING_COPIES),
        )
