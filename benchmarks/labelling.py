"""Label logits of any rows by the trainer of soft prompts, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raybias.engine.adapters.vectors import SoftPromptTrainer
from raybias.engine.backbone import LoadedBackbone
from raybias.methods import SoftPrompt


def labeller(model: LoadedBackbone, label_ids: Sequence[int]) -> SoftPromptTrainer:
    """Make a trainer that computes the logits of these tokens after any prompt."""
    return SoftPromptTrainer(model, label_ids, SoftPrompt(prompt_length=1))


def label_logits(
    trainer: SoftPromptTrainer, rows: Sequence[Sequence[int]], prompt_PD: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the label logits [N, L] of rows after a prompt, or none."""
    prompt_PD = torch.empty(0, trainer.backbone.width) if prompt_PD is None else prompt_PD
    delta_PD = prompt_PD.to(trainer.device) - trainer._start_D
    (logits_NL,) = trainer.logits([{"delta": delta_PD}], [trainer.prepare(rows)])
    return logits_NL
