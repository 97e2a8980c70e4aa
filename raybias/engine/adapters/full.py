"""Fine-tune a classifier fully (Kohankhaki2024): every weight of a run is its own.

One model serves all runs: it is called with a run's weights in place, one run at a time.
Shapes: R rows, T tokens, N rows, L labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from raybias.engine.adapters import base as files
from raybias.engine.adapters.base import (
    ClassifierTrainer,
    Training,
    TrainingBatch,
    Weights,
    unscaled,
)
from raybias.engine.classifier import initial_head
from raybias.engine.devices import to_device
from raybias.engine.keyed_draws import KeyedDropout
from raybias.engine.model_files import dtype_of
from raybias.engine.packing import Batch, PackedSequence, Placed, stack
from raybias.schema import LABELS
from raybias.storage import Store


class FullTrainer(ClassifierTrainer):
    """Tune whole models; the weights of a run are all the model's, float32.

    A backbone in half precision computes under autocast. Only evaluation obeys the token budget: a
    training step is one padded pass over its batch.
    """

    max_packed = 1

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the pretrained weights, with a head keyed by the seed."""
        model = self.classifier.model
        weights = {name: tensor.float() for name, tensor in model.named_parameters()}
        head = initial_head(self.classifier, seed)
        return {name: head.get(name, tensor).clone() for name, tensor in weights.items()}

    def gradients(self, batches: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Compute each run's gradient, of what the loss depends on, and the losses [S]."""
        made = [self._gradient(each) for each in batches]
        return [gradient for gradient, _ in made], torch.stack([loss for _, loss in made])

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        # Run by run: stacking would copy whole models.
        return [
            self.batcher.logits(partial(self.forward, stacked=each), [rows], labels=len(LABELS))[0]
            for each, rows in zip(weights, sequences, strict=True)
        ]

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [R, L] of a batch's rows, all of the one run `stacked`."""
        named = {f"model.{name}": tensor for name, tensor in stacked.items()}
        dtype = dtype_of(self.encoder.spec)
        half = dtype is not torch.float32
        with torch.autocast(self.device.type, dtype=dtype if half else None, enabled=half):
            logits_RL: Tensor = functional_call(
                self.classifier, named, self.classifier.read(batch), tie_weights=True
            )
        return logits_RL.float()

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write a checkpoint for transformers' `from_pretrained`."""
        # `save_pretrained` writes on the first rank only; here every rank has its own runs.
        model = self.classifier.model
        names = dict(model.named_parameters())
        tied = {each.data_ptr() for each in names.values()}
        tensors = {
            name: weights.get(name, tensor)
            for name, tensor in model.state_dict().items()
            if name in names or tensor.data_ptr() not in tied
        }
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        parts = [config, self.encoder.tokenizer]
        files.write_folder(store, folder, tensors, file=files.MODEL, parts=parts, record=record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        shapes = {name: each.shape for name, each in self.classifier.model.named_parameters()}
        tensors = files.read_tensors(store, folder, shapes, file=files.MODEL)
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _gradient(self, training: TrainingBatch) -> tuple[dict[str, Tensor], Tensor]:
        in_order = sorted(self.prepare(training.rows), key=lambda each: each.members)
        batch = stack([Placed(0, each) for each in in_order])
        target_N = to_device([training.labels[row] for _, row in batch.rows], self.device)
        leaves = {name: each.detach().requires_grad_() for name, each in training.weights.items()}
        with KeyedDropout(training.seed, "dropout", training.step), torch.enable_grad():
            self.classifier.train(training.dropout)
            try:
                loss = cross_entropy(self.forward(batch, leaves), target_N)
            finally:
                self.classifier.eval()
            # A pooler that no head reads, and XLNet's `mask_emb`, have no gradient.
            scaled = loss * training.loss_scale
            parts = torch.autograd.grad(scaled, list(leaves.values()), allow_unused=True)
        gradient = {
            name: part for name, part in zip(leaves, parts, strict=True) if part is not None
        }
        return unscaled(gradient, training.loss_scale), loss.detach()
