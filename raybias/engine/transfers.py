"""Bring what the host holds to a device, without waiting for the device.

torch's `to` waits for a GPU's stream where it copies from ordinary memory, so the GPU would end all
that it was given, and stand idle while the host prepares the next pass. A copy from pinned memory
is queued like any other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: Tensor | NDArray[Any] | Sequence[Any], device: torch.device) -> Tensor:
    """Copy numbers of the host to a device, queued behind what the device was given before.

    Parameters
    ----------
    values: an array, (nested) lists of numbers, or a tensor, which may be on a device already.
    """
    tensor = torch.as_tensor(values)
    queued = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if queued else tensor).to(device, non_blocking=queued)
