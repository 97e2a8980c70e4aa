"""Full fine-tuning of an encoder or a causal model, one run at a time (Kohankhaki2024)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raybias.config.method import StudyText
from raybias.config.profiles import by_profile
from raybias.config.section import Amount, Count, Rate
from raybias.methods.finetuned import Finetuned, FinetunedStop
from raybias.methods.lengths import Widths
from raybias.registry import method

if TYPE_CHECKING:
    import polars as pl

    from raybias.config import Backbone
    from raybias.config.method import StudyText
    from raybias.engine.adapters.full import FullTrainer
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape

#: Bytes of a weight: full fine-tuning needs float32.
_FLOAT32 = 4


class FullStop(FinetunedStop):
    """When full fine-tuning stops before its last step."""

    window: Count = Field(7, ge=1)
    """How many evaluation losses the rule looks back on."""


@method
class Full(Finetuned):
    """Full fine-tuning of an encoder or a causal model, one run at a time (Kohankhaki2024)."""

    kind: Literal["full"] = "full"
    """Names the kind of method."""
    learning_rates: tuple[Rate, ...] = Field((1e-5,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-5, ge=0)
    """AdamW decay of all weights."""
    early_stop: FullStop = Field(default_factory=FullStop)
    """The stopping rule."""
    max_steps: Amount | None = Field(30_000, ge=1)
    """The last step."""
    dropout_after_first_eval: bool = by_profile(paper=False, strict=True)
    """Whether dropout goes on after the first evaluation; lost in Kohankhaki2024's code."""

    loads_as: ClassVar[str | None] = "float32"
    can_shard: ClassVar[bool] = False
    max_pack: ClassVar[int | None] = 1
    work_per_parameter: ClassVar[int] = 6
    # functional_call, dropout by counter, autocast; the weight, its gradient and two moments, read
    # and written.
    launches: ClassVar[tuple[float, float]] = (5.0, 0.0)
    moved_per_parameter: ClassVar[int] = 8 * _FLOAT32
    runs_per_replica: ClassVar[int] = 2

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse quantised weights, and what a classifier cannot have or read."""
        from raybias.engine.quantised import check_trainable

        check_trainable(backbone, f"method {self.name}")
        super().check(backbone, text)

    def drops_out(self, *, evaluated: bool) -> bool:
        """Say whether a step has dropout, after a first evaluation or before."""
        return self.dropout_after_first_eval or not evaluated

    def step_widths(self, text: StudyText, texts: pl.Series) -> Widths:
        """Return that a step is one batch, whatever its rows."""
        return Widths(math.inf, (1.0,))

    def trainer_type(self) -> type[FullTrainer]:
        """Import the class that tunes whole models."""
        from raybias.engine.adapters.full import FullTrainer

        return FullTrainer

    def bytes_per_weight(self, shape: ModelShape) -> int:
        """Return the bytes of one weight, which is float32."""
        return _FLOAT32

    def training_memory(
        self, shape: ModelShape, *, pack: int, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a worker, which tunes one run at a time."""
        from raybias.engine import memory

        # A step is one pass over its batch, which the token budget does not cut.
        longest = min(shape.context or memory.LONGEST, memory.LONGEST)
        step = max(tokens, self.batch_size * longest)
        return (
            memory.weights(
                "pretrained weights, the run's, gradients, AdamW, best",
                shape.parameters,
                _FLOAT32,
                copies=memory.TRAINING_COPIES + 1,
            ),
            *memory.training_activations(shape, step, _FLOAT32, device, frozen=False),
            memory.process(device),
        )

    def inference_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a replica, which keeps tuned models beside the backbone."""
        from raybias.engine import memory

        return (
            memory.weights(
                "weights of the backbone and of tuned models",
                shape.parameters,
                _FLOAT32,
                copies=1 + self.runs_per_replica,
            ),
            memory.activations(shape, tokens, _FLOAT32, "activations of the forward pass"),
            memory.keys_and_values(shape, tokens, _FLOAT32),
            memory.process(device),
        )
