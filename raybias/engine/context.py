"""Describe how one process computes with one model, and compute its batches under a token budget.

Sequences of like length share a batch; running out of memory halves the budget; ranks of a sharded
backbone share the batches; a model with split layers computes several batches at a time.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor
from torch.utils._pytree import tree_leaves

from raybias.engine.devices import out_of_memory, repeat_bits, to_device
from raybias.engine.packing import (
    FULL,
    Batch,
    PackedSequence,
    Placed,
    Row,
    fitting,
    longest_first,
    shared_width,
    single_rows,
    stack,
)
from raybias.errors import WorkFailed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")

#: What torch's allocator reads before a process first uses a GPU, under its two names.
_ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"
_OLD_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
#: On a GPU sequences of several adapters share a batch down to this share of its width.
_PADDED: Final = 0.5


class Way(NamedTuple):
    """How a model is computed for one purpose, and whether no short cut was refused for it."""

    how: str
    fastest: bool


class Pipeline:
    """Compute batches side by side, as a model with its layers split over devices can.

    Frozen weights stay; hidden states move from device to device (accelerate's hooks), so `depth`
    batches under way keep `devices` busy: pipeline parallelism (Huang et al. 2019, GPipe) in one
    process. A batch has a thread, a stream on each device, and the bits that it has alone.
    """

    def __init__(self, devices: Sequence[torch.device], depth: int = 1) -> None:
        self.depth = depth
        self._devices = [device for device in devices if device.type != "cpu"]
        self._thread = threading.local()
        self._threads = ThreadPoolExecutor(self.depth, "raybias-batch")
        self._started: set[Future[Any]] = set()

    def __reduce__(self) -> tuple[object, ...]:
        # Threads cannot be pickled; another process starts its own.
        return Pipeline, (self._devices, self.depth)

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Begin `work`; return the call that waits for its result, or computes it with depth 1."""
        if self.depth == 1:
            return work
        ready = [stream.record_event() for stream in self._streams_here()]
        graph = torch.is_grad_enabled()
        future = self._threads.submit(self._do, work, ready, graph=graph)
        self._started.add(future)
        future.add_done_callback(self._started.discard)

        def result() -> Result:
            found, done = future.result()
            for stream, event in zip(self._streams_here(), done, strict=True):
                stream.wait_event(event)
            for leaf in tree_leaves(found):
                if isinstance(leaf, torch.Tensor) and leaf.device in self._devices:
                    # The thread must not reuse this memory before it is read here.
                    leaf.record_stream(torch.accelerator.current_stream(leaf.device))
            return found

        return result

    def drain(self) -> None:
        """Wait until nothing is under way, failed or not."""
        wait(list(self._started))

    def _do(
        self, work: Callable[[], Result], ready: Sequence[torch.Event], *, graph: bool
    ) -> tuple[Result, list[torch.Event]]:
        """Do a piece of work in a thread of its own, whose streams begin after `ready`."""
        if not hasattr(self._thread, "streams"):
            # Reused, since torch's allocator never moves memory between streams.
            self._thread.streams = [torch.Stream(device) for device in self._devices]
        streams: list[torch.Stream] = self._thread.streams
        with ExitStack() as current, torch.set_grad_enabled(graph):
            for stream, event in reversed([*zip(streams, ready, strict=True)]):
                stream.wait_event(event)
                current.enter_context(stream)
            found = work()
            return found, [stream.record_event() for stream in streams]

    def _streams_here(self) -> list[torch.Stream]:
        return [torch.accelerator.current_stream(device) for device in self._devices]


@dataclass(frozen=True)
class Execution:
    """How a process computes with a model; a loaded model keeps it.

    tokens_per_batch: token budget of a forward pass, prompt vectors counted; running out of memory
        halves it.
    device: of the model; of several devices the first, with embeddings and head.
    sharding: how ranks share the model (`runtime.worker_group.Zero3`): `loading()` is the context
        to load it in, `begin(model, whole=)` has it gather its weights, `whole` where its own
        forward is called, and `group` are the ranks where they share every batch.
    devices: number of devices, from `device` on, that the layers are split over.
    passes: batches computed at a time, where the layers are split (see `Pipeline`).
    ways: by purpose, the computation chosen by the self-check.
    deterministic: whether a GPU repeats its bits, as CPUs do.
    """

    tokens_per_batch: int = 4096
    device: str | torch.device = "cpu"
    threads: int = 1
    sharding: Any = None
    devices: int = 1
    passes: int = 1
    deterministic: bool = False
    ways: dict[str, Way] = field(default_factory=dict, compare=False, repr=False)

    def set_torch(self) -> None:
        """Set this process's torch: threads, a GPU's allocator, and repeated bits on request."""
        torch.set_num_threads(self.threads)
        if torch.device(self.device).type == "cuda" and _OLD_ALLOCATOR not in os.environ:
            # Batches have many widths, and blocks of fixed sizes would leave gaps between them.
            os.environ.setdefault(_ALLOCATOR, "expandable_segments:True")
        if self.deterministic:
            repeat_bits()

    def split(self) -> list[torch.device]:
        """List the devices that the layers are split over."""
        first = torch.device(self.device)
        return [torch.device(first.type, (first.index or 0) + n) for n in range(self.devices)]

    def begin(self, model: PreTrainedModel, *, whole: bool = False) -> None:
        """Have a sharded model gather its weights."""
        if self.sharding is not None:
            self.sharding.begin(model, whole=whole)

    def note(self, purpose: str, *, packs: bool, part: bool, fastest: bool) -> None:
        """Record how a model is computed: rows that share sequences, the head on a part of them."""
        rows = "packed rows" if packs else "each row alone"
        head = "the head where it is needed" if part else "the whole model with its head"
        self.ways[purpose] = Way(f"{rows}, {head}", fastest)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The batches that are under way at one time."""
        return Pipeline(self.split(), self.passes)


#: One process on the CPU, with a study's default budget.
ON_CPU: Final = Execution()


class Batcher:
    """Cut sequences into batches and compute them.

    `where`: the model's id, for messages; `context`: its longest input, None without a limit;
    `side_by_side`: whether threads may call `work` on several batches at a time; `apart`: whether a
    batch of `each_adapter` has one adapter only; `prefix_length`: keys and values before its rows.
    """

    def __init__(
        self,
        execution: Execution,
        where: str,
        *,
        context: int | None = None,
        side_by_side: bool = False,
    ) -> None:
        self.where, self.context = where, context
        self.device = torch.device(execution.device)
        self.tokens_per_batch, self.prefix_length = execution.tokens_per_batch, 0
        self.group = None if execution.sharding is None else execution.sharding.group
        # A GPU's products round by how many rows share them.
        self.apart = execution.deterministic and self.device.type != "cpu"
        self.pipeline = execution.pipeline if side_by_side else Pipeline([self.device])

    def each(
        self,
        work: Callable[[Batch], Result],
        placed: Sequence[Placed],
        *,
        full: float = FULL,
        even: bool = False,
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on each batch of the sequences, or on this rank's share of them.

        `full`: sequences shorter than this share of a batch's longest wait for the next one;
        `even`: make batches of about equally many sequences, as where each takes many passes.
        Raises WorkFailed: a single sequence does not fit the device's memory.
        """
        waiting = longest_first(placed)
        most = len(waiting)
        if even and waiting:
            tokens = most * len(waiting[0].sequence.tokens)
            batches = max(self.pipeline.depth, math.ceil(tokens / self.tokens_per_batch))
            most = math.ceil(most / batches)

        def cut(waiting: Sequence[Placed]) -> tuple[Batch, int]:
            count = min(most, fitting(waiting, self.tokens_per_batch, full=full))
            return stack(waiting[:count]), count

        return self._walk(work, waiting, cut)

    def each_adapter(
        self,
        work: Callable[[Batch], Result],
        placed: Sequence[Placed],
        *,
        prompt_length: int = 0,
    ) -> Iterator[tuple[Batch, Result]]:
        """Do `work` on each batch of several adapters' sequences, as `each` does.

        On a CPU part and width of an adapter in a batch do not depend on the others, so it keeps
        its bits (`AdapterTrainer.shares_passes`). A GPU keeps them only where batches are `apart`;
        there padding costs less than another pass, which launches each layer's kernels again.
        """

        def width(each: Placed) -> int:
            length = prompt_length + len(each.sequence.tokens)
            room = (self.context or sys.maxsize) - self.prefix_length
            return max(length, min(shared_width(length), room))

        in_order = sorted(
            placed, key=lambda each: (each.sequence.is_tree, -width(each), each.adapter)
        )
        alone = self.apart and self.group is None
        apart = sorted({each.adapter for each in placed}) if alone else [None]
        for adapter in apart:
            waiting = [each for each in in_order if adapter in (None, each.adapter)]

            def cut(waiting: Sequence[Placed]) -> tuple[Batch, int]:
                # Of like width, it ends between two adapters unless one alone fills it.
                widest, is_tree = width(waiting[0]), waiting[0].sequence.is_tree
                least = widest * (1.0 if self.device.type == "cpu" else _PADDED)
                fits = (
                    other.sequence.is_tree == is_tree and width(other) >= least for other in waiting
                )
                same = sum(1 for _ in takewhile(bool, fits))
                count = min(same, max(1, self.tokens_per_batch // (widest + self.prefix_length)))
                whole = [
                    n for n in range(1, count + 1)
                    if n == same or waiting[n].adapter != waiting[n - 1].adapter
                ]  # fmt: skip
                count = whole[-1] if whole else count
                return stack(waiting[:count], widest - prompt_length), count

            yield from self._walk(work, waiting, cut, prompt_length)

    def by_row(
        self,
        work: Callable[[Batch], Iterable[Result]],
        sequences: Sequence[PackedSequence],
        *,
        full: float = FULL,
        even: bool = False,
    ) -> dict[int, Result]:
        """Do `work`, whose results are in the order of `batch.rows`, on all rows of sequences."""
        done = self.each(work, [Placed(0, each) for each in sequences], full=full, even=even)
        return {
            row: result
            for batch, results in done
            for (_, row), result in zip(batch.rows, results, strict=True)
        }

    def stacked(
        self, read: Callable[[Batch], Tensor], rows: Sequence[Row], *, full: float = FULL
    ) -> Tensor:
        """Compute a value of each row by `read`, in order, on the CPU; `full` is that of `each`."""
        with torch.inference_mode():
            found = self.by_row(read, single_rows(rows), full=full)
            return torch.stack([found[n] for n in range(len(rows))]).cpu()

    def logits(
        self,
        read: Callable[[Batch], Tensor],
        sequences: Sequence[Sequence[PackedSequence]],
        *,
        label_count: int,
        prompt_length: int = 0,
    ) -> list[Tensor]:
        """Compute label logits [N, L] float32 on the CPU, per adapter in row order, by `read`."""
        counts = [sum(len(each.members) for each in rows) for rows in sequences]
        starts = list(accumulate(counts, initial=0))
        logits_ML = torch.zeros(starts[-1], label_count, device=self.device)
        placed = [Placed(s, each) for s, rows in enumerate(sequences) for each in rows]

        def work(batch: Batch) -> Tensor:
            with torch.no_grad():
                return read(batch)

        for batch, logits_NL in self.each_adapter(work, placed, prompt_length=prompt_length):
            at_N = to_device([starts[s] + row for s, row in batch.rows], self.device)
            logits_ML[at_N] = logits_NL
        # Copying waits for the device, so it comes after all batches.
        return list(torch.split(self.sum(logits_ML).cpu(), counts))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks of the group, if there is one."""
        return tensor if self.group is None else self.group.sum(tensor)

    def _walk(
        self,
        work: Callable[[Batch], Result],
        waiting: list[Placed],
        cut: Callable[[Sequence[Placed]], tuple[Batch, int]],
        prompt_length: int = 0,
    ) -> Iterator[tuple[Batch, Result]]:
        """Yield the result of `work` on each batch; `cut` returns the first one and its size."""
        if self.group is not None:
            yield from self._share(self.group, work, waiting, prompt_length)
            return
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
                    count, width = batch.tokens_RT.shape
                    if depth > 1 and count == 1:
                        depth = 1
                        continue
                    if count == 1:
                        raise WorkFailed(
                            f"a sequence of {width} tokens does not fit the memory of"
                            f" {self.device}",
                            where=self.where,
                            cure="use a device with more memory, or shard the backbone",
                        ) from error
                    self.tokens_per_batch //= 2
                    clear_device_cache(garbage_collection=True)
                else:
                    yield batch, found
        finally:
            self.pipeline.drain()

    def _share(
        self,
        group: Any,
        work: Callable[[Batch], Result],
        placed: Sequence[Placed],
        prompt_length: int = 0,
    ) -> Iterator[tuple[Batch, Result]]:
        # Every pass gathers weights from all ranks, so all make equally many: a rank without a
        # batch repeats one and drops the result. Passes cost more than any padding.
        waiting = longest_first(placed)
        stacks: list[list[Placed]] = []
        fair = -(-len(waiting) // group.world)
        while waiting:
            count = min(fair, fitting(waiting, self.tokens_per_batch, prompt_length, full=0))
            stacks.append(waiting[:count])
            waiting = waiting[count:]
        for first in range(0, len(stacks), group.world):
            mine = first + group.rank
            batch = stack(stacks[min(mine, len(stacks) - 1)])
            result = work(batch)
            if mine < len(stacks):
                yield batch, result
