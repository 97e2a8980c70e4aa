"""How the workers of a backbone can hold it: whole, its layers split, or all of it shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.engine.memory import MemoryTerm, with_headroom, within_share
from raybias.planning.placement import Placement
from raybias.planning.speed import Speed
from raybias.planning.workload import Layout

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape


@dataclass(frozen=True)
class Split:
    """How a backbone is spread.

    Attributes
    ----------
    devices: of one worker, which the layers are split over.
    passes: under way at one time, on different devices.
    sharded: whether workers share every weight with ZeRO-3.
    sharers: workers on each device, where there are several.
    """

    devices: int = 1
    passes: int = 1
    sharded: bool = False
    sharers: int = 1


WHOLE: Final = Split()


@dataclass(frozen=True)
class Fit:
    """A layout that fits."""

    tokens: int
    workers: int
    places: Placement
    split: Split
    speed: Speed

    @property
    def at_once(self) -> int:
        """Workers that the nodes have room for, those that share counting once."""
        return 1 if self.split.sharded else self.places.count

    @property
    def layout(self) -> Layout:
        """How each worker holds the backbone."""
        ranks = self.workers if self.split.sharded else 1
        return Layout(self.tokens, self.split.devices, self.split.passes, ranks, self.across)

    @property
    def across(self) -> bool:
        """Whether no node holds all workers."""
        return self.workers > max(count for _, count in self.places.rooms)


@dataclass(frozen=True)
class Load:
    """What one device of a worker holds, by shape, token budget and number of partitions."""

    terms: Callable[[ModelShape, int, int], tuple[MemoryTerm, ...]]
    shape: ModelShape
    item: int
    """Bytes of one weight."""
    on: str
    """The kind of device, "cpu" or "gpu"."""
    share: float = 1.0
    """The share of a GPU that the backbone's engine takes, where that is less than all."""

    def device(self, tokens: int, workers: int = 1, split: Split = WHOLE) -> tuple[MemoryTerm, ...]:
        """Return the arithmetic of one device."""
        shape = self.shape if split.devices == 1 else self.shape.part(split.devices)
        terms = self.terms(shape, tokens * split.passes, workers if split.sharded else 1)
        if self.share < 1 and self.on == "gpu":
            return within_share(terms, self.share)
        return with_headroom(terms, self.on)


def halved(tokens: int, fewest: int) -> list[int]:
    """Return a token budget and its halves down to `fewest`, or itself where it is less."""
    return [tokens >> n for n in range(tokens.bit_length()) if tokens >> n >= min(tokens, fewest)]
