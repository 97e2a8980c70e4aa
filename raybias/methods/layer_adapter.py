"""What methods have in common that adapt layers of a frozen classifier: LoRA and (IA)3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from raybias.config.method import StudyText
from raybias.methods.finetuned import Finetuned
from raybias.methods.lengths import Widths

if TYPE_CHECKING:
    import polars as pl

    from raybias.config import Backbone


class LayerAdapter(Finetuned):
    """What methods have in common that adapt layers of a frozen classifier."""

    launches: ClassVar[tuple[float, float]] = (3.5, 0.3)

    @abstractmethod
    def target_names(self, architecture: str) -> Sequence[str] | None:
        """Return how the paths of adapted layers end; None for all linear layers.

        Parameters
        ----------
        architecture: transformers' `model_type`, such as "opt".
        """

    def widths(self, text: StudyText, texts: pl.Series) -> Widths:
        """Return how sequences spread over the widths of batches: packed, but for encoders."""
        from raybias.engine.backbone import is_encoder

        if is_encoder(text.encoder.spec):
            return super().widths(text, texts)
        return Widths.packed(self.mean_length(text, texts))

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse also target names that match no layer."""
        from raybias.engine.adapters.packed_layers import check_targets

        check_targets(backbone, self)
        super().check(backbone, text)
