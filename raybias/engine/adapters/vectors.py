"""Tune vectors before a text: what all kinds of them share, and soft prompts (Tian2023).

Shapes: S runs, N rows, L labels, P vectors, W their width, D the width of input embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raybias.engine.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PROMPT
from raybias.engine.adapters.base import (
    AdapterTrainer,
    Training,
    TrainingBatch,
    Weights,
    read_tensors,
    write_folder,
)
from raybias.engine.adapters.options import AdapterSize, PromptOptions
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.causal_logits import LabelLogits, make_causal_logits
from raybias.engine.packing import Batch, PackedSequence
from raybias.seeding import generator
from raybias.storage import Store


class VectorTrainer(AdapterTrainer):
    """Tune vectors before a text on one frozen backbone, as many as the size of a run says.

    The weights of a run are one tensor `name` [P, `vector_width`].
    """

    name: ClassVar[str]
    vector_width: int

    def __init__(
        self, backbone: LoadedBackbone, label_ids: Sequence[int], options: PromptOptions
    ) -> None:
        self.backbone, self.options, self.label_ids = backbone, options, tuple(label_ids)
        self.label_count = len(self.label_ids)
        self.encoder, self.device = backbone.encoder, backbone.device
        self.batcher = backbone.batcher()

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """Draw the initial vectors of the first size, keyed by the seed."""
        return self.sized_weights(seed, self.options.adapter_sizes[0])

    def sized_weights(self, seed: int, size: AdapterSize) -> dict[str, Tensor]:
        """Draw the initial vectors of a size, keyed by the seed."""
        options = self.options.model_copy(update={"prompt_length": size.prompt_length})
        vectors_PD = initial_vectors(seed, options, self.vector_width, name=self.name)
        return {self.name: vectors_PD.to(self.device)}

    def gradients(self, batches: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Compute as `AdapterTrainer.gradients`; runs with equally many vectors share passes."""
        gradients: list[dict[str, Tensor]] = [{} for _ in batches]
        loss_S = torch.zeros(len(batches), device=self.device)
        for runs in self._by_length([each.weights for each in batches]):
            own_gradients, losses = super().gradients([batches[s] for s in runs])
            for s, gradient, loss in zip(runs, own_gradients, losses, strict=True):
                gradients[s] = gradient
                loss_S[s] = loss
        return gradients, loss_S

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Compute the label logits per run; runs with equally many vectors share passes."""
        logits: dict[int, Tensor] = {}
        for runs in self._by_length(weights):
            own_logits = super().logits([weights[s] for s in runs], [sequences[s] for s in runs])
            logits |= dict(zip(runs, own_logits, strict=True))
        return [logits[s] for s in range(len(weights))]

    def _by_length(self, weights: Sequence[Weights]) -> list[list[int]]:
        """Group the indices of runs by their number of vectors."""
        runs: dict[int, list[int]] = {}
        for s, each in enumerate(weights):
            runs.setdefault(len(each[self.name]), []).append(s)
        return [*runs.values()]

    def write_vectors(
        self, store: Store, folder: str, vectors_PW: Tensor, config: Any, record: dict[str, Any]
    ) -> None:
        """Write the vectors of a run for `PeftModel.from_pretrained`.

        config: PEFT's configuration, without what all kinds of vectors have.
        """
        spec = self.backbone.spec
        config.task_type, config.inference_mode = "CAUSAL_LM", True
        config.base_model_name_or_path, config.revision = spec.id, spec.revision
        config.num_virtual_tokens, config.num_transformer_submodules = len(vectors_PW), 1
        tensors = {PROMPT: vectors_PW}
        write_folder(store, folder, tensors, file=ADAPTER_WEIGHTS, parts=[config], record=record)

    def read_vectors(self, store: Store, folder: str) -> Tensor:
        """Load the vectors [P, `vector_width`] that PEFT opens; errors as of `read_tensors`."""
        shapes = {PROMPT: (self._length_in(store, folder), self.vector_width)}
        vectors_PW = read_tensors(store, folder, shapes, file=ADAPTER_WEIGHTS)[PROMPT]
        return vectors_PW.to(self.device)

    def _length_in(self, store: Store, folder: str) -> int:
        """Return the length of the sweep that an adapter names, by default the first."""
        lengths = [size.prompt_length for size in self.options.adapter_sizes]
        if store.exists(name := f"{folder}/{ADAPTER_CONFIG}"):
            with store.reading(name, "as PEFT's configuration of an adapter"):
                length = json.loads(store.read_text(name))["num_virtual_tokens"]
            if length in lengths:
                return int(length)
        return int(lengths[0] or 0)


class SoftPromptTrainer(VectorTrainer):
    """Tune soft prompts on one frozen backbone (Tian2023 section 3).

    The weights of a run are its `delta` [P, D] to the embedding of BOS; their sum, the prompt
    before a text, is saved in PEFT's format.
    """

    name = "delta"

    def __init__(
        self, backbone: LoadedBackbone, label_ids: Sequence[int], options: PromptOptions
    ) -> None:
        super().__init__(backbone, label_ids, options)
        self.vector_width = backbone.width
        logits = make_causal_logits(backbone, "labels", prompts=True)
        self.label_logits = LabelLogits.of(logits, label_ids)
        self.prompt_token_id = self.encoder.prompt_token_id
        token = torch.tensor([[self.prompt_token_id]], device=self.device)
        with torch.no_grad():
            self._start_D = backbone.embed(token)[0, 0].float()

    def count_prompt_vectors(self, weights: Weights) -> int:
        """Return the number of vectors of a run's soft prompt."""
        return len(weights["delta"])

    def prompt(self, weights: Weights) -> Tensor:
        """Return the prompt before a text: BOS embedding + delta [P, D], float32."""
        return self._start_D + weights["delta"].detach()

    def prepare(
        self, rows: Sequence[Sequence[int]], *, dropout: bool = False
    ) -> list[PackedSequence]:
        """Pack rows into sequences that leave room for the longest prompt."""
        return self.label_logits.logits.pack(rows, prompt_length=self.options.longest_prompt)

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [N, L] of rows behind the soft prompts of their runs."""
        return self.label_logits(batch, self._start_D + stacked["delta"])

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the prompt for `PeftModel.from_pretrained`."""
        from peft import PromptTuningConfig

        config = PromptTuningConfig(token_dim=self.vector_width)
        self.write_vectors(store, folder, self.prompt(weights), config, record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """Load a soft prompt in PEFT's format, less the embedding of BOS."""
        return {"delta": self.read_vectors(store, folder) - self._start_D}


def initial_vectors(
    seed: int, options: PromptOptions, width: int, *, name: str = "delta"
) -> Tensor:
    """Draw the initial vectors [P, width] of a run, float32, the same on every device.

    name: of the run's tensor, which the random state is keyed by.
    """
    shape = (options.prompt_length, width)
    if options.init == "zeros":
        return torch.zeros(shape)
    noise = generator(seed, name).normal(0.0, options.init_std, shape)
    return torch.from_numpy(noise.astype(np.float32))
