"""Compare a fast way of computing with the model's own forward pass, and choose between them.

Which short cuts an architecture allows (packed rows under a tree mask, the LM head on a few
places only) is measured on a few tokens when a model is taken into use, not listed by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

Way = TypeVar("Way")

#: How far a short cut may be from the model's own values, relative to their size.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def sample_tokens(model: Any, count: int) -> list[int]:
    """Return token ids from all over a model's vocabulary."""
    return [(7919 * n) % model.config.vocab_size for n in range(1, count + 1)]


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
        # The architecture does not take a mask, positions or a cache of this shape, or keeps
        # its hidden states elsewhere.
        return False
    return values.shape == expected.shape and distance(values, expected) <= tolerance


def in_words(*, packs: bool, part: bool) -> str:
    """Say how a model is read: whether rows share sequences, and the head reads a part of them."""
    rows = "packed rows" if packs else "each row alone"
    return f"{rows}, {'the head where it is needed' if part else 'the whole model with its head'}"


def fastest(
    ways: Iterable[Way], plain: Way, sample: Callable[[Way], Tensor], *, dtype: torch.dtype
) -> Way:
    """Return the first of the ways that gives on a sample what the plain way gives, or else that.

    Parameters
    ----------
    ways: fastest first.
    sample: what a way computes on a few rows.
    dtype: of the model.
    """
    with torch.no_grad():
        expected = sample(plain)
    for way in ways:
        if agrees(partial(sample, way), expected, tolerance=TOLERANCE[dtype]):
            return way
    return plain
