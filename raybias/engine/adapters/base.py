"""What tuning asks of a kind of adapter, so that one loop tunes them all.

A trainer holds a backbone and the options of its method, but no run: a run's weights are
a dictionary of tensors that is handed in. So runs can share a step, stop, be saved and be
taken up again without the trainer knowing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from raybias.engine.packing import PackedSequence
from raybias.storage import Store

#: The trainable tensors of one run by name, float32.
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class TrainingBatch:
    """One run's share of a step.

    Attributes
    ----------
    weights: the run's tensors; left unchanged.
    rows, labels: its batch.
    seed, step: what its dropout is keyed by.
    dropout: whether there is any.
    """

    weights: Weights
    rows: Sequence[Sequence[int]]
    labels: Sequence[int]
    seed: int
    step: int
    dropout: bool


class AdapterTrainer(Protocol):
    """Gradients and label logits of one kind of adapter on one backbone."""

    @property
    def max_packed(self) -> int | None:
        """Runs that can share a step; None for any number."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens that the backbone reads for each text."""

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """The weights that a run begins with, keyed by its seed."""

    def gradients(self, shares: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """The gradient of each share's mean loss by name, and the losses [S]."""

    def prepare(self, rows: Sequence[Sequence[int]]) -> list[PackedSequence]:
        """Rows as sequences that `logits` reads."""

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Per run, the label logits [N, L] of its sequences' rows, float32 on the CPU."""

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write an adapter; `raybias.json`, which holds `record`, comes last."""

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """The weights of an adapter that `save` wrote."""

    def label_metadata(self) -> dict[str, Any]:
        """What a run's record says of the labels: `verbalizer_ids`, `prompt_token_id`."""
