"""Tune low-rank adapters of many runs on one frozen classifier (Kohankhaki2024; Hu et al. 2022).

Every target layer adds scaling * B A x to its output, with the factors of the run that a row
belongs to.

Shapes: R rows, T tokens, I and O layer widths, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raybias.engine.adapters.base import Training, TrainingBatch, Weights
from raybias.engine.adapters.packed_layers import (
    Masks,
    PackedLayer,
    PackedLayerTrainer,
    RowAdapters,
)
from raybias.engine.classifier import initial_head
from raybias.engine.packing import Batch
from raybias.seeding import generator, key

if TYPE_CHECKING:
    from raybias.methods import Lora


class _LoraLayer(PackedLayer):
    """A frozen linear layer with the factors of many runs."""

    def __init__(
        self, base: torch.nn.Module, path: str, adapters: RowAdapters, method: Lora
    ) -> None:
        super().__init__(base, path, adapters)
        self.scaling, self.kept = method.alpha / method.rank, 1 - method.dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer's output, each row's own product of factors added."""
        output: Tensor = self.base(inputs)
        adapters, scaling = self.adapters, self.scaling
        rows_RTI = adapters.by_row(inputs).float()
        if adapters.masks is not None:
            rows_RTI = rows_RTI * adapters.masks(self.path, rows_RTI)
            scaling = scaling / self.kept
        inner_RTK = rows_RTI @ adapters.of_rows(f"{self.path}.lora_A").transpose(1, 2)
        summed_RTO = torch.baddbmm(
            adapters.by_row(output).float(),
            inner_RTK,
            adapters.of_rows(f"{self.path}.lora_B").transpose(1, 2),
            alpha=scaling,
        )
        return summed_RTO.view_as(output).to(output.dtype)


class LoraTrainer(PackedLayerTrainer):
    """Tune LoRA factors and heads: `PATH.lora_A`, `PATH.lora_B`, `PATH.weight`.

    The frozen backbone runs without dropout; LoRA's own falls before the factors, keyed by
    (seed, step, layer, row), so it does not depend on what shares a pass.

    Raises
    ------
    ModelError: a target that matches no layer, or a model whose rows are padded at the left.
    """

    suffix = ".weight"
    pads_left = False  # Dropout is drawn from each row's first place on.

    method: Lora

    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        """Wrap a layer of the frozen model."""
        return _LoraLayer(base, path, self.adapters, self.method)

    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each factor by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for path, (inner, outer) in self.widths.items():
            shapes[f"{path}.lora_A"] = (self.method.rank, inner)
            shapes[f"{path}.lora_B"] = (outer, self.method.rank)
        return shapes

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Draw uniform A as PEFT does, zero B, and a head, all keyed by the seed."""
        weights: dict[str, Tensor] = {}
        for path, (inner, outer) in self.widths.items():
            shape = (self.method.rank, inner)
            drawn = generator(seed, "lora", path).uniform(-1, 1, shape) / math.sqrt(inner)
            factor_KI = torch.from_numpy(drawn.astype(np.float32))
            weights[f"{path}.lora_A"] = factor_KI.to(self.device)
            weights[f"{path}.lora_B"] = torch.zeros(outer, self.method.rank, device=self.device)
        return weights | initial_head(self.classifier, seed)

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [R, L] of a batch's rows, with dropout in training."""
        self.adapters.masks = None if training is None else self._masks(training, batch)
        return super().forward(batch, stacked, training)

    def peft_config(self, **options: Any) -> Any:
        """Build PEFT's configuration of the adapter."""
        from peft import LoraConfig

        method = self.method
        return LoraConfig(
            r=method.rank, lora_alpha=method.alpha, lora_dropout=method.dropout, **options
        )

    def _masks(self, training: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        kept = 1 - self.method.dropout
        if kept == 1:
            return None
        lengths = (batch.at_T + 1).tolist()

        def masks(path: str, rows_RTI: Tensor) -> Tensor:
            mask_RTI = torch.zeros_like(rows_RTI)
            for r, (s, row) in enumerate(batch.rows):
                run, mask_TI = training[s], mask_RTI[r, : lengths[r]]
                state = torch.Generator(self.device)
                state.manual_seed(key(run.seed, "lora dropout", run.step, path, row))
                mask_TI.bernoulli_(kept, generator=state)
            return mask_RTI

        return masks
