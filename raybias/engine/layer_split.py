"""Split a model's layers over the devices of one process; frozen weights stay where they are.

Hidden states move from device to device (accelerate's hooks), one device computes at a time.
Embeddings, head and all else outside the blocks are on the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

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
    """Yield the device of a module, or of what is in it where that lies on several."""
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
