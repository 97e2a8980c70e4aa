"""Tune soft prompts of many runs together on one frozen backbone (Tian2023 section 3).

A run's weights are a delta to the embedding of BOS; their sum, the prompt before a text, is saved
in PEFT's format. Shapes: S runs, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from raybias.config import Backbone
from raybias.engine.adapters import base as files
from raybias.engine.adapters.base import AdapterTrainer, Training, Weights
from raybias.engine.adapters.options import PromptOptions
from raybias.engine.packing import Batch, PackedSequence
from raybias.engine.scoring.causal import LabelScorer
from raybias.errors import ModelError
from raybias.seeding import generator
from raybias.storage import Store

#: PEFT's name of the vectors of a prompt.
_KEY: Final = "prompt_embeddings"


class SoftPromptTrainer(AdapterTrainer):
    """Tune soft prompts; the weights of a run are its `delta` [P, D]."""

    def __init__(self, scorer: LabelScorer, options: PromptOptions) -> None:
        self.scorer, self.options, self.encoder = scorer, options, scorer.backbone.encoder
        self.label_ids = scorer.label_ids
        self.device = scorer.backbone.device
        self.batcher = scorer.batcher
        self.prompt_length = options.prompt_length
        self.prompt_token_id = self.encoder.prompt_token_id
        token = torch.tensor([[self.prompt_token_id]], device=self.device)
        with torch.no_grad():
            self._start_D = scorer.backbone.embed(token)[0, 0].float()

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        delta_PD = initial_delta(seed, self.options, self.scorer.backbone.width)
        return {"delta": delta_PD.to(self.device)}

    def prompt(self, weights: Weights) -> Tensor:
        """Return the prompt before a text: BOS embedding + delta [P, D], float32."""
        return self._start_D + weights["delta"].detach()

    def prepare(
        self, rows: Sequence[Sequence[int]], *, dropout: bool = False
    ) -> list[PackedSequence]:
        """Pack rows as prefix trees; a prompt has no dropout."""
        return self.scorer.pack(rows)

    def forward(self, batch: Batch, stacked: Weights, training: Training = None) -> Tensor:
        """Compute the label logits [N, L] of a batch's rows after their runs' prompts."""
        return self.scorer.logits(batch, self._start_D + stacked["delta"])

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the prompt for `PeftModel.from_pretrained`."""
        spec = self.scorer.backbone.spec
        save_soft_prompt(store, folder, self.prompt(weights), spec=spec, record=record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        width, length = self.scorer.backbone.width, self.prompt_length
        prompt_PD = load_soft_prompt(store, folder, width=width, length=length)
        return {"delta": prompt_PD.to(self.device) - self._start_D}


def initial_delta(seed: int, options: PromptOptions, width: int) -> Tensor:
    """Draw the initial delta [P, D] of a run, float32, the same on every device."""
    shape = (options.prompt_length, width)
    if options.init == "zeros":
        return torch.zeros(shape)
    drawn = generator(seed, "delta").normal(0.0, options.init_std, shape)
    return torch.from_numpy(drawn.astype(np.float32))


def save_soft_prompt(
    store: Store, folder: str, prompt_PD: Tensor, *, spec: Backbone, record: Mapping[str, object]
) -> None:
    """Write a soft prompt for `PeftModel.from_pretrained`."""
    from peft import PromptTuningConfig

    length, width = prompt_PD.shape
    config = PromptTuningConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=spec.id,
        revision=spec.revision,
        inference_mode=True,
        num_virtual_tokens=length,
        token_dim=width,
        num_transformer_submodules=1,
    )
    tensors = {_KEY: prompt_PD.float()}
    files.write_folder(store, folder, tensors, file=files.ADAPTER, parts=[config], record=record)


def load_soft_prompt(store: Store, folder: str, *, width: int, length: int | None = None) -> Tensor:
    """Load a soft prompt [P, D] float32; ModelError: missing, no prompt, or of another shape."""
    prompt_PD = files.read_tensors(store, folder, {_KEY: None}, file=files.ADAPTER)[_KEY]
    shape = tuple(prompt_PD.shape)
    wanted = (shape[0] if length is None else length, width)
    if shape != wanted:
        raise ModelError(
            f"the prompt is {shape[0]} vectors of width {shape[-1]}, "
            f"but the backbone takes {wanted[0]} of width {width}",
            where=store.uri_of(f"{folder}/{files.ADAPTER}"),
            cure="use the backbone and prompt length that it was tuned with",
        )
    return prompt_PD
