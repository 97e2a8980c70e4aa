"""Packed low-rank adaptation of a frozen backbone (Kohankhaki2024), and what is like it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, model_validator

from raybias.config.section import Amount, Count, Rate
from raybias.engine.memory import TRAINING_COPIES
from raybias.methods.base import Inputs, method
from raybias.methods.full import Finetuned
from raybias.methods.tuned import options_for
from raybias.methods.work import Held

if TYPE_CHECKING:
    from raybias.engine.adapters.lora import LoraTrainer
    from raybias.engine.adapters.packed_layers import PackedLayerTrainer

#: Kohankhaki2024's released configuration (vectorlm), where a study does not say otherwise. The
#: separator before the label is ours: theirs is not published.
_VECTORLM: Final = {
    "target": "peft_default",
    "head": "label_tokens",
    "label_words": ("0", "1", "2"),
    "template": "instruction: classify the following text as negative (0), neutral (1), or "
    "positive (2)\n{text}\nlabel:",
    "epochs": 3,
    "batch_size": 32,
    "betas": (0.9, 0.95),
    "eps": 1e-5,
    "schedule": "cosine",
    "warmup": 0.05,
    "clip": 1.0,
}
# Copies of the factors beside those of any method: the runs' stacked for a pass, what its gradient
# adds to those of earlier passes, and the stack in the model's dtype.
_COPIES_OF_PASSES: Final = 3


class LayerAdapter(Finetuned):
    """What methods have in common that adapt layers of a frozen classifier."""

    @abstractmethod
    def trainer_type(self) -> type[PackedLayerTrainer]:
        """Import the class that tunes the adapters."""

    def packs(self, inputs: Inputs) -> bool:
        """Tell whether rows share sequences, as those of causal models do."""
        from raybias.engine.backbone import is_encoder

        return not is_encoder(inputs.backbone)

    def tuning(self) -> dict[str, Any]:
        """Say how many kernels the adapters launch."""
        return {"launches": (3.5, 0.3)}

    def check(self, inputs: Inputs) -> None:
        """Refuse also target names that match no layer."""
        from raybias.engine.adapters.packed_layers import check_targets

        check_targets(inputs.backbone, options_for(self.trainer_type().options, self))
        super().check(inputs)


@method
class Lora(LayerAdapter):
    """Packed low-rank adaptation of a frozen backbone (Kohankhaki2024)."""

    kind: Literal["lora"] = "lora"
    """Names the kind of method."""
    preset: Literal["paper_text", "vectorlm"] = "paper_text"
    """paper_text: all linear layers, classification head; vectorlm: the released configuration."""
    rank: Count = Field(8, ge=1)
    """Rank of the factors."""
    alpha: float = Field(32, gt=0)
    """The product of the factors is scaled by alpha / rank."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout before the factors; the frozen backbone itself runs without."""
    target: Literal["all_linear", "peft_default"] | tuple[str, ...] = "all_linear"
    """Which layers: all linear ones but embeddings and head, PEFT's choice for the
    architecture (query and value mostly), or names such as [q_proj, v_proj]."""
    learning_rates: tuple[Rate, ...] = Field((1e-4,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-4, ge=0)
    """AdamW decay of the factors and the head."""
    max_steps: Amount | None = Field(30_000, ge=1)
    """The last step."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("preset") == "vectorlm":
            data = {**_VECTORLM, **data}
        return data

    def trainer_type(self) -> type[LoraTrainer]:
        """Import the class that tunes the factors."""
        from raybias.engine.adapters.lora import LoraTrainer

        return LoraTrainer

    def held(self) -> tuple[Held, ...]:
        """List the factors, and their inputs."""
        widths = "linear_widths", "{:,} inputs and outputs"
        copies = TRAINING_COPIES + _COPIES_OF_PASSES
        return (
            Held("inputs of the factors, kept too", ("tokens", "{:,} tokens"), widths,
                 lambda shape: (shape.item + 1, "({} bytes, the mask's included)")),
            Held("factors, gradients, AdamW, best", "pack", (self.rank, "rank {}"), widths,
                 (4, "{} bytes"), copies),
        )  # fmt: skip
