"""Compute label logits of many token rows, with or without soft prompts.

Rows are packed, batched under a token budget and read in order.

Shapes: S prompts, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.packing import PackedSequence, Row, pack
from raybias.engine.scoring.label_logits import make_reader
from raybias.engine.transfers import to_device


class LabelScorer:
    """Compute label logits of token rows with one backbone.

    Parameters
    ----------
    label_ids: the verbalizer's token ids, in label order.
    """

    def __init__(self, backbone: LoadedBackbone, label_ids: Sequence[int]) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.batcher = backbone.batcher(side_by_side=True)
        self.reader = make_reader(backbone, label_ids)

    def pack(self, rows: Sequence[Row]) -> list[PackedSequence]:
        """Pack rows into the sequences that this backbone reads."""
        return pack(rows, max_tokens=self.reader.max_tokens)

    def score(
        self,
        rows: Sequence[Row],
        *,
        prompts_SPD: Tensor | None = None,
        prompt_of_row: Sequence[int] | None = None,
    ) -> Tensor:
        """Compute the label logits [N, L], float32 on the CPU, in the order of `rows`.

        Parameters
        ----------
        rows: token ids.
        prompts_SPD: soft prompts, or None for none.
        prompt_of_row: which prompt precedes each row; the first by default.

        Raises
        ------
        WorkFailed: a single sequence does not fit the device's memory.
        """
        if prompts_SPD is None:
            prompts_SPD = torch.empty(1, 0, self.backbone.width)
        adapters = prompt_of_row or [0] * len(rows)
        members = [[n for n, s in enumerate(adapters) if s == p] for p in range(len(prompts_SPD))]
        prompts_SPD = to_device(prompts_SPD, self.backbone.device)
        each = self.batcher.logits(
            lambda batch: self.reader.logits(batch, prompts_SPD),
            [self.pack([rows[n] for n in numbers]) for numbers in members],
            labels=len(self.label_ids),
            prompt_length=prompts_SPD.shape[1],
        )
        logits_NL = torch.zeros(len(rows), len(self.label_ids))
        for numbers, found_NL in zip(members, each, strict=True):
            logits_NL[numbers] = found_NL
        return logits_NL
