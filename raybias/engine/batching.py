"""Sequences walked in batches under a token budget.

Sequences of like length stand together; running out of memory halves the budget and goes
on; ranks that share a sharded backbone share the batches too; a model whose layers are split has
several batches under way.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import Tensor

from raybias.engine.devices import to_device
from raybias.engine.packing import (
    FULL,
    Batch,
    PackedSequence,
    Placed,
    alike,
    fitting,
    longest_first,
    shared_width,
    stack,
)
from raybias.engine.pipelining import Pipeline
from raybias.errors import WorkFailed

Result = TypeVar("Result")


def out_of_memory(error: BaseException) -> bool:
    """Say whether an error is that of a device, or of this machine, whose memory is used up."""
    # What torch's allocator has taken is not there for cuBLAS's own handles and buffers.
    if isinstance(error, RuntimeError) and "CUBLAS_STATUS_ALLOC_FAILED" in str(error):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


class Collective(Protocol):
    """Ranks that hold one backbone together and therefore walk in step."""

    rank: int
    world: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, the same result on each of them."""


class Batcher:
    """Cuts sequences into batches.

    Parameters
    ----------
    where: the backbone's name, for messages.
    tokens_per_batch: token budget of one forward pass, prompt vectors counted.
    context: the longest input that the model takes; None without a limit.
    group: the ranks that share a sharded backbone.
    apart: whether a batch of `each_adapter` holds sequences of one adapter only.
    pipeline: how many batches are under way; `work` is then called in several threads.
    """

    def __init__(
        self,
        *,
        where: str,
        device: torch.device,
        tokens_per_batch: int,
        context: int | None = None,
        group: Collective | None = None,
        apart: bool = False,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.pipeline = pipeline or Pipeline([device])
        self.where = where
        self.device = device
        self.tokens_per_batch = tokens_per_batch
        self.context = context
        self.apart = apart
        self.group = group

    def each(
        self,
        work: Callable[[Batch], Result],
        placed: Sequence[Placed],
        *,
        prompt_length: int = 0,
        full: float = FULL,
        even: bool = False,
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on each batch of the sequences, or on this rank's share of them.

        Parameters
        ----------
        full: sequences shorter than this share of a batch's longest wait for the next one.
        even: whether batches have about equally many sequences, as where each takes many passes.

        Raises
        ------
        WorkFailed: a single sequence does not fit the device's memory.
        """
        waiting = longest_first(placed)
        if self.group is not None:
            yield from self._share(self.group, work, waiting, prompt_length)
            return
        most = len(waiting)
        if even and waiting:
            tokens = most * (len(waiting[0].sequence.tokens) + prompt_length)
            batches = max(self.pipeline.depth, math.ceil(tokens / self.tokens_per_batch))
            most = math.ceil(most / batches)

        def cut(waiting: Sequence[Placed]) -> tuple[Batch, int]:
            count = min(most, self._fitting(waiting, prompt_length, full=full))
            return stack(waiting[:count]), count

        yield from self._walk(work, waiting, cut)

    def each_adapter(
        self,
        work: Callable[[Batch], Result],
        placed: Sequence[Placed],
        *,
        prompt_length: int = 0,
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on each batch of several adapters' sequences, as `each` does.

        What an adapter has in a batch, and how wide it is, does not depend on the others, so that
        it gets the bits on a CPU that it would get alone (see `AdapterTrainer.shares_passes`); on
        a GPU, where batches are `apart`.
        """
        if self.group is not None:
            yield from self.each(work, placed, prompt_length=prompt_length)
            return

        def width(each: Placed) -> int:
            """Count the places of a sequence in its batch, those of the prompt among them."""
            length = prompt_length + len(each.sequence.tokens)
            return max(length, min(shared_width(length), self.context or sys.maxsize))

        in_order = sorted(placed, key=lambda each: (-width(each), each.adapter))
        apart = sorted({each.adapter for each in placed}) if self.apart else [None]
        for adapter in apart:
            waiting = [each for each in in_order if adapter in (None, each.adapter)]

            def cut(waiting: Sequence[Placed]) -> tuple[Batch, int]:
                widths = [width(each) for each in waiting]
                count = alike(waiting, widths, budget=self.tokens_per_batch)
                return stack(waiting[:count], widths[0] - prompt_length), count

            yield from self._walk(work, waiting, cut)

    def by_row(
        self,
        work: Callable[[Batch], Iterable[Result]],
        sequences: Sequence[PackedSequence],
        *,
        full: float = FULL,
        even: bool = False,
    ) -> dict[int, Result]:
        """Do `work`, whose results are in the order of `batch.rows`, on all rows of sequences.

        Parameters
        ----------
        full, even: as for `each`.
        """
        placed = [Placed(0, 0, each) for each in sequences]
        done = self.each(work, placed, full=full, even=even)
        return {
            row: result
            for batch, results in done
            for (_, row), result in zip(batch.rows, results, strict=True)
        }

    def logits(
        self,
        read: Callable[[Batch], Tensor],
        sequences: Sequence[Sequence[PackedSequence]],
        *,
        labels: int,
        prompt_length: int = 0,
    ) -> list[Tensor]:
        """Read logits without gradients, per adapter those of all rows of its sequences.

        Parameters
        ----------
        read: from a batch to the logits [N, L] of its rows.
        sequences: of each adapter.
        labels: number L of logits.

        Returns
        -------
        Logits [N, L] float32 on the CPU, in the order in which the rows were packed.
        """
        counts = [sum(len(each.members) for each in rows) for rows in sequences]
        starts = list(accumulate(counts, initial=0))
        logits_ML = torch.zeros(starts[-1], labels, device=self.device)
        placed = [Placed(s, s, each) for s, rows in enumerate(sequences) for each in rows]

        def work(batch: Batch) -> Tensor:
            with torch.no_grad():
                return read(batch)

        for batch, logits_NL in self.each_adapter(work, placed, prompt_length=prompt_length):
            at_N = to_device([starts[s] + row for s, row in batch.rows], self.device)
            logits_ML[at_N] = logits_NL
        # A device is asked once it has all batches, since that is to wait for it.
        return list(torch.split(self.sum(logits_ML).cpu(), counts))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks of the group; without a group it is the tensor itself."""
        return tensor if self.group is None else self.group.sum(tensor)

    def _walk(
        self,
        work: Callable[[Batch], Result],
        waiting: list[Placed],
        cut: Callable[[Sequence[Placed]], tuple[Batch, int]],
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on the batches that `cut` makes of what waits, and yield them in their order.

        Parameters
        ----------
        cut: makes the first batch; returns it, and how many sequences are in it.
        """
        depth = self.pipeline.depth
        begun: deque[tuple[list[Placed], Batch, Callable[[], Result]]] = deque()
        try:
            while waiting or begun:
                while waiting and len(begun) < depth:
                    batch, count = cut(waiting)
                    begun.append((waiting, batch, self.pipeline.start(partial(work, batch))))
                    waiting = waiting[count:]
                before, batch, result = begun.popleft()
                try:
                    found = result()
                except RuntimeError as error:
                    if not out_of_memory(error):
                        raise
                    self.pipeline.drain()
                    begun.clear()
                    waiting = before
                    if depth > 1 and len(batch.tokens_RT) == 1:
                        depth = 1
                    else:
                        self._halve(batch, error)
                else:
                    yield batch, found
        finally:
            self.pipeline.drain()

    def _share(
        self,
        group: Collective,
        work: Callable[[Batch], Result],
        waiting: list[Placed],
        prompt_length: int,
    ) -> Iterator[tuple[Batch, Result]]:
        # Every pass gathers weights from all ranks, so all make equally many of them: a
        # rank without a batch of its own repeats one and drops the result. That also makes
        # a pass dearer than any padding.
        stacks: list[list[Placed]] = []
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

    def _fitting(self, waiting: Sequence[Placed], prompt_length: int, *, full: float) -> int:
        budget = self.tokens_per_batch
        return fitting(waiting, budget=budget, prompt_length=prompt_length, full=full)

    def _halve(self, batch: Batch, error: RuntimeError) -> None:
        count, width = batch.tokens_RT.shape
        if count == 1:
            raise WorkFailed(
                f"a sequence of {width} tokens does not fit the memory of {self.device}",
                where=self.where,
                cure="use a device with more memory, or shard the backbone",
            ) from error
        self.tokens_per_batch //= 2
        clear_device_cache(garbage_collection=True)
