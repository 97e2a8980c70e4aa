"""Random state keyed by what it is for, never by process, order or worker."""

from __future__ import annotations

import hashlib

import numpy as np


def key(*parts: str | int) -> int:
    """Hash the parts to a 63-bit key, equal on every machine."""
    text = "\x1f".join(str(part) for part in parts).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(*parts: str | int) -> np.random.Generator:
    """Return the NumPy generator keyed by these parts, such as (seed, "order", epoch)."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))
