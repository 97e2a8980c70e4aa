"""Tune low-rank adapters of many runs on one frozen classifier (Kohankhaki2024; Hu et al. 2022).

Every target layer adds scaling * B A x to its output, with the factors of its row's run.
Shapes: R rows, T tokens, I and O layer widths, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybias.engine.adapters.base import TrainingBatch
from raybias.engine.adapters.options import LoraOptions
from raybias.engine.adapters.packed_layers import (
    Masks,
    PackedLayer,
    PackedLayerTrainer,
    RowAdapters,
    together,
)
from raybias.engine.classifier import Classifier, initial_head
from raybias.engine.devices import to_device
from raybias.engine.keyed_draws import joined, kept, keys
from raybias.engine.packing import Batch, token_rows
from raybias.seeding import generator, key


class _LoraLayer(PackedLayer):
    def __init__(
        self, base: torch.nn.Module, path: str, adapters: RowAdapters, options: LoraOptions
    ) -> None:
        super().__init__(base, path, adapters)
        self.scaling, self.kept = options.alpha / options.rank, 1 - options.dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer's output plus the adapters', which is summed in float32."""
        output: Tensor = self.base(inputs)
        adapters, scaling = self.adapters, self.scaling
        rows_RTI, base_RTO = adapters.by_row(inputs), adapters.by_row(output)
        if adapters.masks is not None:
            rows_RTI = rows_RTI * adapters.masks(self.path, rows_RTI)
            scaling = scaling / self.kept
        parts = []
        pairs = zip(
            adapters.by_run(rows_RTI, f"{self.path}.lora_A"),
            adapters.by_run(base_RTO, f"{self.path}.lora_B"),
            strict=True,
        )
        for (mine_UNI, factor_UKI), (base_UNO, factor_UOK) in pairs:
            inner_UNK = mine_UNI @ factor_UKI.to(output.dtype).mT
            factor_UKO = factor_UOK.to(output.dtype).mT
            parts.append(torch.baddbmm(base_UNO, inner_UNK, factor_UKO, alpha=scaling))
        return together(parts).view_as(output)


class LoraTrainer(PackedLayerTrainer):
    """Tune LoRA factors and heads: `PATH.lora_A`, `PATH.lora_B`, `PATH.weight`.

    The frozen backbone runs without dropout; LoRA's own, before the factors, is keyed by (seed,
    step, row, place, layer), so it does not depend on the rest of a pass.
    Raises ModelError: as `PackedLayerTrainer`.
    """

    suffix = ".weight"
    pads_left = False  # Dropout is drawn from each row's first place on.

    def __init__(self, classifier: Classifier, options: LoraOptions) -> None:
        self.lora, self.drops_out = options, options.dropout > 0
        super().__init__(classifier, options)

    def packed_layer(self, base: torch.nn.Module, path: str) -> PackedLayer:
        return _LoraLayer(base, path, self.adapters, self.lora)

    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for path, (inner, outer) in self.widths.items():
            shapes[f"{path}.lora_A"] = (self.lora.rank, inner)
            shapes[f"{path}.lora_B"] = (outer, self.lora.rank)
        return shapes

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Draw uniform A as PEFT does, zero B, and a head, all keyed by the seed."""
        weights: dict[str, Tensor] = {}
        for path, (inner, outer) in self.widths.items():
            shape = (self.lora.rank, inner)
            drawn = generator(seed, "lora", path).uniform(-1, 1, shape) / math.sqrt(inner)
            factor_KI = torch.from_numpy(drawn.astype(np.float32))
            weights[f"{path}.lora_A"] = factor_KI.to(self.device)
            weights[f"{path}.lora_B"] = torch.zeros(outer, self.lora.rank, device=self.device)
        return weights | initial_head(self.classifier, seed)

    def peft_config(self, **options: Any) -> Any:
        from peft import LoraConfig

        own = self.lora
        return LoraConfig(r=own.rank, lora_alpha=own.alpha, lora_dropout=own.dropout, **options)

    def masks(self, training: Sequence[TrainingBatch], batch: Batch) -> Masks | None:
        lost = self.lora.dropout
        if not lost:
            return None
        steps_S2 = self._keys([key(each.seed, "lora dropout", each.step) for each in training])
        runs_R12 = steps_S2[self.adapters.run_R][:, None]
        rows_RT2 = joined(runs_R12, to_device(token_rows(batch).int()[..., None], self.device))
        places_RT1 = to_device(batch.depths_RT.int()[..., None], self.device)
        tokens_N2 = joined(rows_RT2, places_RT1).flatten(0, 1)
        layers = dict(
            zip(self.widths, self._keys([key(path) for path in self.widths]), strict=True)
        )

        def mask(path: str, rows_RTI: Tensor) -> Tensor:
            # A layer may be on another device than the first.
            device = rows_RTI.device
            keys_N2 = joined(tokens_N2.to(device), layers[path].to(device))
            return kept(keys_N2, rows_RTI.shape[-1:], lost).view(rows_RTI.shape)

        return mask

    def _keys(self, numbers: Sequence[int]) -> Tensor:
        return keys(numbers, self.device)
