"""Compute label logits of many token rows, with or without soft prompts.

Rows are packed, batched under a token budget and read in order. A forward pass over a packed batch
goes down to the few logits that are needed: the hidden state is read at each row's last token only
and multiplied by the label rows of the LM head in float32; no [batch, tokens, vocabulary] tensor
exists (see `causal_logprobs.CausalReader`).

Shapes: S prompts, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.devices import to_device
from raybias.engine.packing import Batch, PackedSequence, Row, pack
from raybias.engine.scoring.causal_logprobs import LabelRows, make_reader


class LabelScorer:
    """Compute label logits of token rows with one backbone.

    Parameters
    ----------
    label_ids: the verbalizer's token ids, in label order.
    """

    def __init__(self, backbone: LoadedBackbone, label_ids: Sequence[int]) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.label_rows = LabelRows.of(backbone, self.label_ids)
        self.batcher = backbone.batcher(side_by_side=True)
        self.reader = make_reader(backbone, "labels")

    def pack(self, rows: Sequence[Row]) -> list[PackedSequence]:
        """Pack rows into the sequences that this backbone reads."""
        return pack(rows, max_tokens=self.reader.max_tokens)

    def logits(self, batch: Batch, prompts_SPD: Tensor) -> Tensor:
        """Compute the label logits [N, L] of a batch's rows; see `CausalReader.labels`."""
        return self.reader.labels(batch, prompts_SPD, self.label_ids, self.label_rows)

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
            lambda batch: self.logits(batch, prompts_SPD),
            [self.pack([rows[n] for n in numbers]) for numbers in members],
            labels=len(self.label_ids),
            prompt_length=prompts_SPD.shape[1],
        )
        logits_NL = torch.zeros(len(rows), len(self.label_ids))
        for numbers, found_NL in zip(members, each, strict=True):
            logits_NL[numbers] = found_NL
        return logits_NL
