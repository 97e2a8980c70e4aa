"""How workers can hold a backbone (whole, its layers split, or shared), and why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.engine.memory import MemoryTerm, total, with_headroom, within_share
from raybias.errors import PlanError
from raybias.planning.inventory import size
from raybias.planning.machine import Placement, Speed
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
#: Workers that a refusal looks for a sharded layout with.
_MOST_SHARDS: Final = 64


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


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the workers of a backbone have, for saying why none of its layouts fits.

    Attributes
    ----------
    asked: resources.shard.
    fewest: tokens of the smallest budget of a pass.
    device: bytes of the largest device.
    node: bytes of the largest node's memory.
    workers: that the study asks for, or that the nodes have places for.
    can_shard: whether workers can share what the method needs of the backbone.
    """

    backbone: str
    where: str
    asked: str
    fewest: int
    device: int
    node: int
    workers: int
    can_shard: bool


def refusal(room: Room, load: Load, method: str, host: Callable[[int, Split], int]) -> PlanError:
    """Make the error of a backbone that fits in no way that the study allows.

    Parameters
    ----------
    host: bytes of its node's memory that one of so many workers takes while it is loaded.
    """
    asked, where, workers = room.asked, room.where, room.workers
    who = f"{room.backbone} ({method})"
    if not room.can_shard and asked == "zero3":
        return PlanError(
            f"workers cannot share {room.backbone} for {method}, whose runs are whole models",
            where=where,
            cure="set resources.shard to auto, or use lora or soft_prompt",
        )
    if workers < 2 and asked == "zero3":
        return PlanError(
            f"{who} is to be sharded with ZeRO-3, which needs two workers or more, and there is"
            " one",
            where=where,
            cure=_nearest(room, load),
        )
    shares = room.can_shard and asked != "never" and workers > 1
    split, fewest = Split(sharded=shares), room.fewest
    need = total(load.device(fewest, workers if shares else 1, split))
    held = host(workers if shares else 1, split)
    how = f" sharded over {workers} workers" if shares else ""
    if need <= room.device and held > room.node:
        return PlanError(
            f"{who}{how} needs {size(held)} of its node's memory while it is loaded, and the"
            f" largest node has {size(room.node)}",
            where=where,
            cure=f"use nodes that leave {size(held)} or more to a worker",
        )
    return PlanError(
        f"{who}{how} needs {size(need)} on one device at the smallest token budget, which has"
        f" {size(room.device)}",
        where=where,
        cure=_nearest(room, load),
    )


def _nearest(room: Room, load: Load) -> str:
    """Name what would fit, nearest first."""
    fewest = room.fewest
    whole = f"use devices of {size(total(load.device(fewest)))} or more"
    if not room.can_shard:
        return f"{whole}, or lora, for which workers can share it"
    shared = Split(sharded=True)
    counts = range(2, _MOST_SHARDS + 1)
    enough = (n for n in counts if total(load.device(fewest, n, shared)) <= room.device)
    workers = next(enough, None)
    if workers is None:
        return f"{whole}, or a smaller backbone"
    auto = " with resources.shard auto" if room.asked == "never" else ""
    return f"give {workers} or more such workers{auto}, which can share it, or {whole}"
