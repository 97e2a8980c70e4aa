"""What methods have in common that adapt layers of a frozen classifier: LoRA and (IA)3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from raybias.config.method import StudyText
from raybias.methods.finetuned import Finetuned

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.adapters.packed_layers import PackedLayerTrainer
    from raybias.engine.context import ModelContext


class LayerAdapter(Finetuned):
    """What methods have in common that adapt layers of a frozen classifier."""

    @abstractmethod
    def target_names(self, architecture: str) -> Sequence[str] | None:
        """Return how the paths of adapted layers end; None for all linear layers.

        Parameters
        ----------
        architecture: transformers' `model_type`, such as "opt".
        """

    @abstractmethod
    def trainer_type(self) -> type[PackedLayerTrainer]:
        """Import the class that tunes the adapters."""

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse also target names that match no layer."""
        from raybias.engine.adapters.packed_layers import check_targets

        check_targets(backbone, self)
        super().check(backbone, text)

    def trainer(self, context: ModelContext) -> PackedLayerTrainer:
        """Load the frozen backbone as a classifier with what tunes adapters of its layers."""
        from raybias.engine.classifier import load_classifier

        sharding = context.sharding
        with nullcontext() if sharding is None else sharding.loading():
            classifier = load_classifier(
                context.spec,
                self,
                context.words,
                device=context.device,
                dtype=context.spec.dtype,
                begin=None if sharding is None else sharding.begin,
            )
        return self.trainer_type()(
            classifier, self, tokens_per_batch=context.tokens_per_batch, group=context.group
        )
