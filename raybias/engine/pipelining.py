"""Compute several batches of a split model side by side, so that every device has one.

Where layers are split over devices (see `layer_split`), one batch keeps one device busy at a time.
With as many batches under way as there are devices, each has one: pipeline parallelism (Huang et
al. 2019, GPipe) in one process. A batch has a thread, and a stream on each device. Results come in
the order of the batches, and no batch is computed otherwise than alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")


class Pipeline:
    """Batches under way at one time.

    Parameters
    ----------
    devices: that the layers are split over, in their order.
    depth: batches under way.
    """

    def __init__(self, devices: Sequence[torch.device], depth: int = 1) -> None:
        self.depth = depth
        self._devices = [device for device in devices if device.type != "cpu"]
        self._thread = threading.local()
        self._threads = ThreadPoolExecutor(self.depth, "raybias-batch")
        self._started: set[Future[Any]] = set()

    def __reduce__(self) -> tuple[object, ...]:
        # Of a context that was used here and goes to another process, which has its own threads.
        return Pipeline, (self._devices, self.depth)

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Begin a piece of work; return what waits for its result and hands it out.

        With a depth of 1 it is done here, when its result is asked for.
        """
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
                    # Its memory is not the thread's to use again before it has been read here.
                    leaf.record_stream(torch.accelerator.current_stream(leaf.device))
            return found

        return result

    def drain(self) -> None:
        """Wait until nothing is under way, failed or not."""
        wait(list(self._started))

    def _do(
        self, work: Callable[[], Result], ready: Sequence[torch.Event], *, graph: bool
    ) -> tuple[Result, list[torch.Event]]:
        """Do a piece of work in a thread of its own, whose streams begin behind `ready`."""
        if not hasattr(self._thread, "streams"):
            # Kept, since torch's allocator gives a stream's memory to no other.
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
