"""Soft prompts of many runs read and tuned together on one frozen backbone (Tian2023 section 3).

What is tuned is a run's delta; the prompt that precedes a text is the embedding of BOS
plus it. Shapes: S runs, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.base import TrainingBatch, Weights
from raybias.engine.adapters.prompt_files import load_soft_prompt, save_soft_prompt
from raybias.engine.packing import Batch, PackedSequence, Placed
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.seeding import generator
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.methods import SoftPrompt


def initial_delta(seed: int, method: SoftPrompt, width: int) -> Tensor:
    """The delta [P, D] that a run starts from, float32, the same on every device."""
    shape = (method.prompt_length, width)
    if method.init == "zeros":
        return torch.zeros(shape)
    drawn = generator(seed, "delta").normal(0.0, method.init_std, shape)
    return torch.from_numpy(drawn.astype(np.float32))


class SoftPromptTrainer:
    """A `trainer` of soft prompts; the weights of a run are its `delta` [P, D]."""

    max_packed: int | None = None

    def __init__(self, scorer: LabelScorer, method: SoftPrompt) -> None:
        self.scorer = scorer
        self.method = method
        self.device = scorer.backbone.device
        backbone = scorer.backbone
        token = torch.tensor([[backbone.prompt_token_id]], device=self.device)
        with torch.no_grad():
            self._start_D = backbone.embed(token)[0, 0].float()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return self.scorer.backbone.encode(texts, append_eos=self.method.append_eos)

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """The initial delta, keyed by the seed."""
        delta_PD = initial_delta(seed, self.method, self.scorer.backbone.width)
        return {"delta": delta_PD.to(self.device)}

    def prompt(self, weights: Weights) -> Tensor:
        """What precedes a text: BOS embedding + delta [P, D], float32."""
        return self._start_D + weights["delta"].detach()

    def prepare(self, rows: Sequence[Sequence[int]]) -> list[PackedSequence]:
        """Rows as prefix trees."""
        return self.scorer.pack(rows)

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Per run, the label logits [N, L] of its sequences' rows."""
        return self.scorer.score_each(sequences, self._prompts(weights))

    def gradients(self, shares: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """The gradient of each share's mean loss, and the losses [S]."""
        prompts_SPD = self._prompts([share.weights for share in shares]).requires_grad_()
        gradient_SPD = torch.zeros_like(prompts_SPD, requires_grad=False)
        loss_S = torch.zeros(len(shares), device=self.device)

        def work(batch: Batch) -> tuple[Tensor, Tensor]:
            run_N = torch.tensor([s for s, _ in batch.rows], device=self.device)
            target_N = torch.tensor([shares[s].labels[row] for s, row in batch.rows])
            share_N = torch.tensor([1 / len(shares[s].labels) for s, _ in batch.rows])
            with torch.enable_grad():
                logits_NL = self.scorer.reader.logits(batch, prompts_SPD)
                loss_N = cross_entropy(logits_NL, target_N.to(self.device), reduction="none")
                loss_N = loss_N * share_N.to(self.device)
                (part_SPD,) = torch.autograd.grad(loss_N.sum(), prompts_SPD)
            return part_SPD, torch.zeros_like(loss_S).index_add(0, run_N, loss_N.detach())

        keyed = [
            Placed(s, s, sequence)
            for s, share in enumerate(shares)
            for sequence in self.prepare(share.rows)
        ]
        length, batcher = self.method.prompt_length, self.scorer.batcher
        for _, (part_SPD, part_S) in batcher.each(work, keyed, prompt_length=length):
            gradient_SPD += part_SPD
            loss_S += part_S
        gradients = [{"delta": part_PD} for part_PD in batcher.sum(gradient_SPD)]
        return gradients, batcher.sum(loss_S)

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write the prompt as `PeftModel.from_pretrained` opens it."""
        spec = self.scorer.backbone.spec
        save_soft_prompt(store, folder, self.prompt(weights), spec=spec, record=record)

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """The delta of a prompt that `save` wrote."""
        prompt_PD = load_soft_prompt(
            store,
            folder,
            width=self.scorer.backbone.width,
            length=self.method.prompt_length,
        )
        return {"delta": prompt_PD.to(self.device) - self._start_D}

    def label_metadata(self) -> dict[str, Any]:
        """The label tokens, and the token that prompts start from."""
        return {
            "verbalizer_ids": list(self.scorer.label_ids),
            "prompt_token_id": self.scorer.backbone.prompt_token_id,
        }

    def _prompts(self, weights: Sequence[Weights]) -> Tensor:
        return torch.stack([self.prompt(each) for each in weights])
