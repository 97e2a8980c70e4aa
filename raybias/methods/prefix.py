"""Prefix tuning (Li and Liang 2021), which goes beyond the papers: in the format of PEFT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import Field

from raybias.config.section import Rate
from raybias.engine.adapters.options import PrefixOptions
from raybias.engine.memory import TRAINING_COPIES, MemoryTerm, of_bytes, term
from raybias.methods.base import Inputs, method
from raybias.methods.finetuned import VectorTuned
from raybias.methods.work import Work

if TYPE_CHECKING:
    from raybias.engine.adapters.vectors import VectorTrainer
    from raybias.engine.model_shape import ModelShape

#: Tokens of the narrowest rows of a pass (`packing.shared_width`).
_NARROWEST: Final = 16
#: Copies of a row's prefix in a step: its run's, joined with the keys and values of the text, and
#: the gradients of both.
_COPIES_OF_ROWS: Final = 4


@method
class Prefix(PrefixOptions, VectorTuned):
    """Packed prefix tuning of a frozen backbone: keys and values in every layer."""

    kind: Literal["prefix"] = "prefix"
    learning_rates: tuple[Rate, ...] = Field((3e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-2, ge=0)
    """AdamW decay of the keys and values."""

    vectors: ClassVar[str] = "prefix"
    # Each layer joins the prefix's keys and values with the text's; estimated.
    launches: ClassVar[tuple[float, float]] = (1.2, 0.0)

    @property
    def computed_vectors(self) -> int:
        """Positions that a pass computes for the prefix: none, its keys and values are given."""
        return 0

    def check_model(self, inputs: Inputs) -> None:
        """Refuse a backbone without keys and values of one size in every layer."""
        from raybias.engine.adapters.prefix import check_prefixes

        check_prefixes(inputs.backbone)

    def trainer_type(self) -> type[VectorTrainer]:
        """Import the trainer of prefixes."""
        from raybias.engine.adapters.prefix import PrefixTrainer

        return PrefixTrainer

    def packs(self, inputs: Inputs) -> bool:
        """Say that rows share no sequence."""
        return False

    def work(self, inputs: Inputs) -> Work:
        """Describe runs whose rows each hold their prefix beside the keys and values of a pass."""
        length = self.longest_prompt
        held = 1 + length / (_NARROWEST + length)
        return replace(super().work(inputs), can_shard=False, held_tokens=held)

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        """Count the memory of the runs' prefixes, their gradients and moments."""
        length = self.longest_prompt
        sizes = (length, "{} vectors"), (shape.layers, "{} layers"), 2, shape.keys
        rows = tokens // (_NARROWEST + length), "{:,} rows"
        return (
            term(
                "keys and values of the rows' prefixes",
                rows,
                *sizes,
                of_bytes(shape.item),
                _COPIES_OF_ROWS,
            ),
            term("prefixes, gradients, AdamW, best", pack, *sizes, of_bytes(4), TRAINING_COPIES),
        )
