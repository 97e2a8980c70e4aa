"""Label logits of many token rows, with or without soft prompts.

Rows are packed, batched under a token budget and read in order; running out of memory
halves the budget and goes on. Ranks that share a sharded backbone share the batches
too. It knows nothing of training or of what rows mean.

Shapes: S prompts, P prompt vectors, D input width, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import Tensor

from raybias.engine.backbone import Backbone
from raybias.engine.forward import make_reader
from raybias.engine.packing import (
    FULL,
    Batch,
    Keyed,
    PackedSequence,
    Row,
    fitting,
    longest_first,
    pack,
    stack,
)
from raybias.errors import WorkFailed

Result = TypeVar("Result")


class Collective(Protocol):
    """Ranks that hold one backbone together and therefore walk in step."""

    rank: int
    world: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, the same on each of them."""


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
        backbone: Backbone,
        label_ids: Sequence[int],
        *,
        tokens_per_batch: int = 4096,
        group: Collective | None = None,
    ) -> None:
        self.backbone = backbone
        self.label_ids = tuple(label_ids)
        self.tokens_per_batch = tokens_per_batch
        self.group = group
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
            Keyed(prompt, prompt, sequence)
            for prompt, places in members.items()
            for sequence in self.pack([rows[n] for n in places])
        ]
        logits_NL = torch.zeros(len(rows), len(self.label_ids))
        for batch, found_NL in self._read(keyed, prompts_SPD):
            logits_NL[[members[prompt][row] for prompt, row in batch.rows]] = found_NL
        return logits_NL if self.group is None else self.group.sum(logits_NL)

    def score_each(self, sequences: Sequence[PackedSequence], prompts_SPD: Tensor) -> Tensor:
        """Label logits [S, N, L] of all rows of `sequences` behind every prompt."""
        count = sum(len(sequence.members) for sequence in sequences)
        keyed = [Keyed(s, s, each) for s in range(len(prompts_SPD)) for each in sequences]
        logits_SNL = torch.zeros(len(prompts_SPD), count, len(self.label_ids))
        for batch, found_NL in self._read(keyed, prompts_SPD):
            at_S, at_N = zip(*batch.rows, strict=True)
            logits_SNL[list(at_S), list(at_N)] = found_NL
        return logits_SNL if self.group is None else self.group.sum(logits_SNL)

    def each(
        self, work: Callable[[Batch], Result], keyed: Sequence[Keyed], *, prompt_length: int
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on each batch of the sequences, or on this rank's share of them."""
        waiting = longest_first(keyed)
        if self.group is not None:
            yield from self._share(self.group, work, waiting, prompt_length)
            return
        while waiting:
            count = self._fitting(waiting, prompt_length)
            batch = stack(waiting[:count])
            try:
                result = work(batch)
            except RuntimeError as error:
                if not should_reduce_batch_size(error):
                    raise
                self._halve(batch, error)
                continue
            yield batch, result
            waiting = waiting[count:]

    def _share(
        self,
        group: Collective,
        work: Callable[[Batch], Result],
        waiting: list[Keyed],
        prompt_length: int,
    ) -> Iterator[tuple[Batch, Result]]:
        # Every pass gathers weights from all ranks, so all make equally many of them: a
        # rank without a batch of its own repeats one and drops the result. That also makes
        # a pass dearer than any padding.
        stacks: list[list[Keyed]] = []
        fair = -(-len(waiting) // group.world)
        while waiting:
            count = min(fair, self._fitting(waiting, prompt_length, full=0))
            stacks.append(waiting[:count])
            waiting = waiting[count:]
        for first in range(0, len(stacks), group.world):
            mine = first + group.rank
            batch = stack(stacks[min(mine, len(stacks) - 1)])
            result = work(batch)
            if mine < len(stacks):
                yield batch, result

    def _read(self, keyed: Sequence[Keyed], prompts_SPD: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        prompts_SPD = prompts_SPD.to(self.backbone.device)

        def read(batch: Batch) -> Tensor:
            with torch.no_grad():
                return self.reader.logits(batch, prompts_SPD).cpu()

        return self.each(read, keyed, prompt_length=prompts_SPD.shape[1])

    def _fitting(self, waiting: Sequence[Keyed], prompt_length: int, *, full: float = FULL) -> int:
        budget = self.tokens_per_batch
        return fitting(waiting, tokens_per_batch=budget, prompt_length=prompt_length, full=full)

    def _halve(self, batch: Batch, error: RuntimeError) -> None:
        count, width = batch.tokens_RT.shape
        if count == 1:
            raise WorkFailed(
                f"a sequence of {width} tokens does not fit the memory of {self.backbone.device}",
                where=self.backbone.spec.id,
                cure="use a device with more memory, or shard the backbone",
            ) from error
        self.tokens_per_batch //= 2
        clear_device_cache(garbage_collection=True)
