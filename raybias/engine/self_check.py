"""Compare a fast way of computing with the model's own forward pass, and choose between them.

The short cuts (packed rows under a tree mask, the LM head on a few places only) are tried on a few
tokens of each model, not listed by architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from raybias.engine.devices import to_device
from raybias.engine.packing import Batch, Placed, pack, stack

Way = TypeVar("Way")

#: How far a short cut may be from the model's own values, relative to their size.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def sample_tokens(model: Any, count: int) -> list[int]:
    """Return token ids from all over a model's vocabulary."""
    return [(7919 * n) % model.config.vocab_size for n in range(1, count + 1)]


def read_samples(
    read: Callable[[Batch], Tensor], model: Any, *, packs: bool, alone: bool
) -> Tensor:
    """Compute the values [N, ...] of a few rows, two of which share tokens, in their order.

    `packs`: whether rows share sequences; `alone`: otherwise, whether they are computed one by one.
    """
    token = sample_tokens(model, 11)
    rows = [token[:5], token[:3] + token[6:9], token[9:11]]
    placed = [Placed(0, each) for each in pack(rows, max_tokens=sum(map(len, rows)) * packs)]
    batches = [stack([each]) for each in placed] if alone and not packs else [stack(placed)]
    values = torch.cat([read(batch) for batch in batches])
    numbers = torch.tensor([row for batch in batches for _, row in batch.rows])
    return values[to_device(numbers.argsort(), values.device)]


def distance(values: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference, relative to the expected values' size or to 1."""
    gap = float((values.float() - expected.float()).abs().max())
    return gap / max(1.0, float(expected.abs().max()))


def agrees(fast: Callable[[], Tensor], expected: Tensor, *, tolerance: float) -> bool:
    """Check whether a fast way gives the expected values."""
    try:
        with torch.no_grad():
            values = fast()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        # The architecture takes other inputs, or keeps its hidden states elsewhere.
        return False
    return values.shape == expected.shape and distance(values, expected) <= tolerance


def fastest(
    ways: Iterable[Way], plain: Way, sample: Callable[[Way], Tensor], *, dtype: torch.dtype
) -> Way:
    """Return the first way that agrees with the plain one on a sample, or the plain one.

    `ways`: fastest first; `sample`: computes a few rows in a way; `dtype`: the model's.
    """
    with torch.no_grad():
        expected = sample(plain)
    for way in ways:
        if agrees(partial(sample, way), expected, tolerance=TOLERANCE[dtype]):
            return way
    return plain
