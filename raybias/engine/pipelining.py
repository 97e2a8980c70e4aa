"""Split a model's layers over the devices of one process, and have each compute a batch.

Frozen weights stay where they are, and hidden states move from device to device (accelerate's
hooks); embeddings, head and all else outside the blocks are on the first. One batch keeps one
device busy at a time. With as many batches under way as there are devices, each has one: pipeline
parallelism (Huang et al. 2019, GPipe) in one process. A batch has a thread, and a stream on each
device. Results come in the order of the batches, and no batch is computed otherwise than alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    Device = str | torch.device


def device_map(
    devices: Sequence[torch.device], empty: Callable[[], PreTrainedModel]
) -> dict[str, Device] | None:
    """Map a model's modules to devices, to which each weight goes straight from its file.

    None on a CPU, which computes on the mapped files themselves.

    Parameters
    ----------
    empty: makes the model without weights.
    """
    if len(devices) > 1:
        return layer_split(empty(), devices)
    return None if devices[0].type == "cpu" else {"": devices[0]}


def layer_split(model: PreTrainedModel, devices: Sequence[Device]) -> dict[str, Device]:
    """Map a model's modules to devices, as many blocks to each: transformers' `device_map`."""
    inside = list(blocks(model))
    placed = {id(block): devices[n * len(devices) // len(inside)] for n, block in enumerate(inside)}
    return dict(_placed("", model, placed, devices[0]))


def _placed(
    name: str, module: torch.nn.Module, placed: dict[int, Device], first: Device
) -> Iterator[tuple[str, Device]]:
    """Yield the device of a module, or those of its parts where they lie on several."""
    if id(module) in placed:
        yield name, placed[id(module)]
    elif not any(id(each) in placed for each in module.modules()):
        yield name, first
    else:
        for own, _ in module.named_parameters(recurse=False):
            yield f"{name}.{own}".strip("."), first
        for child, each in module.named_children():
            yield from _placed(f"{name}.{child}".strip("."), each, placed, first)


def blocks(model: PreTrainedModel) -> Iterator[torch.nn.Module]:
    """Return the blocks of a model, in their order: its longest list of equal modules."""
    import torch

    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    wanted = int(model.config.get_text_config().num_hidden_layers)
    return iter(next((each for each in lists if len(each) == wanted), ()))


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
