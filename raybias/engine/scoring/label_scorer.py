"""Label logits of many token rows, with or without soft prompts.

Rows are packed, batched under a token budget and read in order. It knows nothing of
training or of what rows mean.

Shapes: S prompts, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.batching import Batcher, Collective
from raybias.engine.packing import Batch, PackedSequence, Placed, Row, pack
from raybias.engine.scoring.label_logits import make_reader


class LabelScorer:
    """Reads label logits from one backbone.

    Parameters
    ----------
    label_ids: the verbalizer's token ids, in label order.
    tokens_per_batch: token budget of one forward pass, prompt vectors counted.
    group: the ranks that share a sharded backbone.
    """

    def __init__(
        self,
        backbone: LoadedBackbone,
        label_ids: Sequence[int],
        *,
        tokens_per_batch: int = 4096,
        group: Collective | None = None,
    ) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.batcher = Batcher(
            where=backbone.spec.id,
            device=backbone.device,
            tokens_per_batch=tokens_per_batch,
            group=group,
        )
        self.reader = make_reader(backbone, label_ids)

    def pack(self, rows: Sequence[Row]) -> list[PackedSequence]:
        """The rows as sequences that this backbone reads."""
        return pack(rows, max_tokens=self.reader.max_tokens)

    def score(
        self,
        rows: Sequence[Row],
        *,
        prompts_SPD: Tensor | None = None,
        prompt_of_row: Sequence[int] | None = None,
    ) -> Tensor:
        """Label logits [N, L], float32 on the CPU, in the order of `rows`.

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
        members: dict[int, list[int]] = {}
        for n, prompt in enumerate(prompt_of_row or [0] * len(rows)):
            members.setdefault(prompt, []).append(n)
        keyed = [
            Placed(prompt, prompt, sequence)
            for prompt, places in members.items()
            for sequence in self.pack([rows[n] for n in places])
        ]
        logits_NL = torch.zeros(len(rows), len(self.label_ids))
        for batch, found_NL in self._read(keyed, prompts_SPD):
            logits_NL[[members[prompt][row] for prompt, row in batch.rows]] = found_NL
        return self.batcher.sum(logits_NL)

    def score_each(
        self, sequences: Sequence[Sequence[PackedSequence]], prompts_SPD: Tensor
    ) -> list[Tensor]:
        """For each prompt, the label logits [N, L] of all rows of its sequences."""
        keyed = [Placed(s, s, each) for s, own in enumerate(sequences) for each in own]
        counts = [sum(len(each.members) for each in own) for own in sequences]
        starts = list(accumulate(counts, initial=0))
        logits_ML = torch.zeros(starts[-1], len(self.label_ids))
        for batch, found_NL in self._read(keyed, prompts_SPD):
            logits_ML[[starts[s] + row for s, row in batch.rows]] = found_NL
        return list(torch.split(self.batcher.sum(logits_ML), counts))

    def _read(self, keyed: Sequence[Placed], prompts_SPD: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        prompts_SPD = prompts_SPD.to(self.backbone.device)

        def read(batch: Batch) -> Tensor:
            with torch.no_grad():
                return self.reader.logits(batch, prompts_SPD).cpu()

        return self.batcher.each(read, keyed, prompt_length=prompts_SPD.shape[1])
