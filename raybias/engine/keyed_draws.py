"""Draw random numbers by counter: a hash of keys and places in integer tensor operations.

They have the same bits on every device and in any batch; a generator's depend on earlier draws and
on the kind of GPU. The hash is "lowbias32" (C. Wellons, hash-prospector). A key is a pair of int32,
in a tensor's last dimension. Shapes: N keys, C numbers of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raybias import seeding
from raybias.engine.attention import product_attention
from raybias.engine.devices import to_device

# lowbias32's multipliers, as int32.
_FIRST: Final = 0x7FEB352D
_SECOND: Final = 0x846CA68B - 2**32


def keys(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return the keys [N, 2] of numbers below 2^63, such as those of `seeding.key`."""
    halves = torch.tensor([(n >> 32, n & 0xFFFFFFFF) for n in numbers]).view(-1, 2)
    return to_device(halves.to(torch.int32), device)


def joined(one: Tensor, other: Tensor | int) -> Tensor:
    """Combine keys with other keys, or int32 [..., 1], to keys [..., 2]."""
    return _mixed(_mixed(one.clone()) ^ other)


def words(keys_N2: Tensor, count: int) -> Tensor:
    """Return the first `count` random int32 of each key [N, C]."""
    counter_C = _mixed(torch.arange(count, dtype=torch.int32, device=keys_N2.device))
    words_NC = counter_C ^ keys_N2[:, :1]
    words_NC *= keys_N2[:, 1:] | 1
    words_NC = _folded(words_NC, 16)
    words_NC *= _SECOND
    return _folded(words_NC, 15)


def uniforms(keys_N2: Tensor, count: int) -> Tensor:
    """Return the first `count` numbers in [0, 1) of each key [N, C], float64 with 53 bits."""
    words_NC2 = words(keys_N2, 2 * count).view(len(keys_N2), count, 2).long()
    high_NC, low_NC = words_NC2.unbind(-1)
    whole_NC = ((high_NC & (2**27 - 1)) << 26) + (low_NC & (2**26 - 1))
    return whole_NC.double() / 2**53


def kept(keys_N2: Tensor, shape: Sequence[int], dropped: float) -> Tensor:
    """Return a dropout mask of values [N, *shape], True where a value is kept.

    `dropped` is rounded to a multiple of 2^-16. A mask of more rows, in the last dimension, begins
    with that of fewer.
    """
    *rows, width = shape
    words_NC = words(keys_N2, torch.Size(rows).numel() * ((width + 1) // 2))
    halves = words_NC.view(torch.int16).view(len(keys_N2), *rows, -1)[..., :width]
    return halves >= min(round(dropped * 2**16), 2**16 - 1) - 2**15


class KeyedDropout(TorchFunctionMode):
    """Draw all dropout of a pass by counter, keyed by `parts`; attention is a plain product."""

    def __init__(self, *parts: str | int) -> None:
        super().__init__()
        self._key, self._calls = seeding.key(*parts), 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is torch.nn.functional.dropout:
            return self._dropout(*args, **given)
        attention = func is torch.nn.functional.scaled_dot_product_attention
        if attention and given.get("dropout_p"):
            lost = given.pop("dropout_p")
            return product_attention(*args, **given, dropout=lambda each: self._dropout(each, lost))
        return func(*args, **given)

    def _dropout(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not p:
            return values
        key_12 = joined(keys([self._key], values.device), self._calls)
        self._calls += 1
        mask = kept(key_12, [values.numel()], p).view(values.shape)
        dropped = values * mask / (1 - p)
        return values.copy_(dropped) if inplace else dropped


def _mixed(words: Tensor) -> Tensor:
    words = _folded(words, 16)
    words *= _FIRST
    words = _folded(words, 15)
    words *= _SECOND
    return _folded(words, 16)


def _folded(words: Tensor, places: int) -> Tensor:
    moved = words >> places
    moved &= 2 ** (32 - places) - 1
    words ^= moved
    return words
