"""Tune (IA)3 vectors of many runs on one frozen classifier (Liu et al. 2022).

Every target layer has one vector per run, which starts at ones: it multiplies the layer's output
(keys and values), or its input where the layer is the second of a feed-forward part.

Shapes: R rows, W layer width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from raybias.engine.adapters.base import Weights
from raybias.engine.adapters.packed_layers import PackedLayerTrainer
from raybias.engine.adapters.row_adapters import PackedLayer, RowAdapters
from raybias.engine.adapters.target_layers import names_layer
from raybias.engine.classifier import Classifier, initial_head

if TYPE_CHECKING:
    from raybias_ia3.method import Ia3


class _Ia3Layer(PackedLayer):
    """A frozen linear layer with the vectors of many runs."""

    def __init__(
        self, base: torch.nn.Module, path: str, adapters: RowAdapters, *, feed_forward: bool
    ) -> None:
        super().__init__(base, path, adapters)
        self.feed_forward = feed_forward

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer's output, input or output multiplied by each row's vector."""
        if self.feed_forward:
            return torch.as_tensor(self.base(self._scaled(inputs)))
        return self._scaled(self.base(inputs))

    def _scaled(self, values: Tensor) -> Tensor:
        vector_R1W = self.adapters.of_rows(f"{self.path}.ia3_l", values.device).flatten(1)[:, None]
        scaled_RTW = self.adapters.by_row(values).float() * vector_R1W
        return scaled_RTW.view_as(values).to(values.dtype)


class Ia3Trainer(PackedLayerTrainer):
    """Tune (IA)3 vectors and heads: `PATH.ia3_l`, `PATH.weight`."""

    def __init__(self, classifier: Classifier, options: Ia3) -> None:
        self.ia3 = options
        super().__init__(classifier, options)

    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        """Wrap a layer of the frozen model."""
        return _Ia3Layer(base, path, self.adapters, feed_forward=self._feeds_forward(path))

    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each vector by name, as PEFT has it."""
        return {
            f"{path}.ia3_l": (1, inner) if self._feeds_forward(path) else (outer, 1)
            for path, (inner, outer) in self.widths.items()
        }

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return vectors of ones, and a head keyed by the seed."""
        shapes = self.adapter_shapes()
        ones = {name: torch.ones(shape, device=self.device) for name, shape in shapes.items()}
        return ones | initial_head(self.classifier, seed)

    def peft_config(self, weights: Weights, **options: Any) -> Any:
        """Build PEFT's configuration of the adapter."""
        from peft import IA3Config

        feed_forward = [path for path in self.widths if self._feeds_forward(path)]
        return IA3Config(feedforward_modules=feed_forward, **options)

    def _feeds_forward(self, path: str) -> bool:
        names = self.ia3.feed_forward_names(self.classifier.model.config.model_type)
        return any(names_layer(path, name) for name in names)
