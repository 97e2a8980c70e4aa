"""Sentences without capitals, as people write in a hurry."""

from __future__ import annotations

from collections.abc import Sequence

from raybias.probes.registries import StyledPair, style


@style("lowercase")
def _lowercase(texts: Sequence[str], pair: StyledPair) -> list[str]:
    return [text.lower() for text in texts]
