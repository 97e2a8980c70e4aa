"""Copy from the host to a device without a wait, and have a device repeat its bits.

A copy from ordinary memory waits for the GPU's stream; one from pinned memory is queued. A GPU's
bits vary by atomic additions, gradients of attention with split keys, cuBLAS with several
workspaces and cuDNN's choice of kernels by timing. `torch.use_deterministic_algorithms` covers the
first two; it has to raise, since a warning would leave attention as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from accelerate.utils.memory import should_reduce_batch_size
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode


def to_device(values: Tensor | NDArray[Any] | Sequence[Any], device: torch.device) -> Tensor:
    """Copy an array, nested lists or a tensor to a device, queued after the device's other work."""
    tensor = torch.as_tensor(values)
    queued = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if queued else tensor).to(device, non_blocking=queued)


def out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that a device or this machine has no memory left."""
    # cuBLAS allocates its handles and buffers outside torch's allocator.
    if isinstance(error, RuntimeError) and "CUBLAS_STATUS_ALLOC_FAILED" in str(error):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
#: Settings under which cuBLAS repeats its bits (NVIDIA).
_REPEATING: Final = (":4096:8", ":16:8")
_SWITCHES: Final[tuple[tuple[Any, str, bool], ...]] = (
    (torch.backends.cudnn, "deterministic", True),
    (torch.backends.cudnn, "benchmark", False),
    # TF32 repeats its bits, but is not the study's precision.
    (torch.backends.cudnn, "allow_tf32", False),
    (torch.backends.cuda.matmul, "allow_tf32", False),
    # We read no uninitialised memory, and filling it takes time.
    (torch.utils.deterministic, "fill_uninitialized_memory", False),
)


def repeat_bits() -> None:
    """Have this process's torch repeat itself; call it before the first product on a GPU."""
    # cuBLAS reads its setting once.
    if os.environ.get(_WORKSPACE) not in _REPEATING:
        os.environ[_WORKSPACE] = _REPEATING[0]
    torch.use_deterministic_algorithms(True)
    for holder, name, value in _SWITCHES:
        setattr(holder, name, value)


@contextmanager
def as_found() -> Iterator[None]:
    """Restore torch's settings that `repeat_bits` changes."""
    workspace, mode = os.environ.get(_WORKSPACE), _mode()
    values = [getattr(holder, name) for holder, name, _ in _SWITCHES]
    try:
        yield
    finally:
        # Setting the same mode again would import a compiler.
        if _mode() != mode:
            torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        for (holder, name, _), value in zip(_SWITCHES, values, strict=True):
            setattr(holder, name, value)
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = workspace


def repeatable_sums(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context for cumulative sums, which torch refuses on a GPU that repeats its bits."""
    varies = device.type != "cpu" and torch.are_deterministic_algorithms_enabled()
    return SumsOnCpu() if varies else nullcontext()


class SumsOnCpu(TorchFunctionMode):
    """Compute running sums on the CPU, in their one order."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (torch.cumsum, Tensor.cumsum):
            summed: Tensor = func(args[0].cpu(), *args[1:], **given)
            return summed.to(args[0].device)
        return func(*args, **given)


def _mode() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
