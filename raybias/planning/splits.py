"""Memory that a layout of a backbone needs on a device and its node, and why no layout fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raybias.engine.memory import MemoryTerm, host_memory, total, with_headroom, within_share
from raybias.errors import PlanError
from raybias.planning.inventory import size
from raybias.planning.machine import Placement, Speed
from raybias.planning.workload import Layout

if TYPE_CHECKING:
    from raybias.engine.model_shape import ModelShape

#: Workers that a refusal looks for a sharded layout with.
_MOST_SHARDS: Final = 64


@dataclass(frozen=True)
class Fit:
    """A layout that fits."""

    layout: Layout
    workers: int
    places: Placement
    speed: Speed

    @property
    def at_once(self) -> int:
        """Workers that the nodes have room for, those that share weights counting once."""
        return 1 if self.layout.sharded else self.places.count


@dataclass(frozen=True)
class Load:
    """Memory terms of a worker, by the layout of its backbone.

    Attributes
    ----------
    terms: memory of one device, by shape, tokens of a pass and number of partitions.
    item: bytes of one weight.
    on: the kind of device, "cpu" or "gpu".
    share: of a GPU that the backbone's engine takes, where that is less than all.
    """

    terms: Callable[[ModelShape, int, int], tuple[MemoryTerm, ...]]
    shape: ModelShape
    item: int
    on: str
    share: float = 1.0

    def device(self, layout: Layout) -> tuple[MemoryTerm, ...]:
        """Return the arithmetic of one device."""
        shape = self.shape if layout.devices == 1 else self.shape.part(layout.devices)
        terms = self.terms(shape, layout.tokens * layout.passes, layout.ranks)
        if self.share < 1 and self.on == "gpu":
            return within_share(terms, self.share)
        return with_headroom(terms, self.on)

    def host(self, layout: Layout) -> tuple[MemoryTerm, ...]:
        """Return the arithmetic of a worker on a GPU in its node's memory."""
        return host_memory(self.shape, device=self.on, item=self.item, partitions=layout.ranks)


def halved(tokens: int, fewest: int) -> list[int]:
    """Return a token budget and its halves down to `fewest`, or itself where it is less."""
    return [tokens >> n for n in range(tokens.bit_length()) if tokens >> n >= min(tokens, fewest)]


@dataclass(frozen=True, kw_only=True)
class Room:
    """Resources of a backbone's workers, to explain why none of its layouts fits.

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

    def refusal(self, load: Load, method: str) -> PlanError:
        """Make the error of a backbone that fits in no way that the study allows."""
        who, cure = f"{self.backbone} ({method})", self._nearest(load)
        if not self.can_shard and self.asked == "zero3":
            who = f"workers cannot share {self.backbone} for {method}, whose runs are whole models"
            cure = "set resources.shard to auto, or use lora or soft_prompt"
            return PlanError(who, where=self.where, cure=cure)
        if self.workers < 2 and self.asked == "zero3":
            problem = "is to be sharded with ZeRO-3, which needs two workers or more, and there is"
            return PlanError(f"{who} {problem} one", where=self.where, cure=cure)
        shares = self.can_shard and self.asked != "never" and self.workers > 1
        layout = Layout(self.fewest, ranks=self.workers if shares else 1)
        need, held = total(load.device(layout)), total(load.host(layout))
        how = f" sharded over {self.workers} workers" if shares else ""
        if need <= self.device and held > self.node:
            return PlanError(
                f"{who}{how} needs {size(held)} of its node's memory while it is loaded, and the"
                f" largest node has {size(self.node)}",
                where=self.where,
                cure=f"use nodes that leave {size(held)} or more to a worker",
            )
        return PlanError(
            f"{who}{how} needs {size(need)} on one device at the smallest token budget, which has"
            f" {size(self.device)}",
            where=self.where,
            cure=cure,
        )

    def _nearest(self, load: Load) -> str:
        """Name what would fit, nearest first."""
        alone = Layout(self.fewest)
        whole = f"use devices of {size(total(load.device(alone)))} or more"
        if not self.can_shard:
            return f"{whole}, or lora, for which workers can share it"
        layouts = (replace(alone, ranks=count) for count in range(2, _MOST_SHARDS + 1))
        enough = (each for each in layouts if total(load.device(each)) <= self.device)
        nearest = next(enough, None)
        if nearest is None:
            return f"{whole}, or a smaller backbone"
        auto = " with resources.shard auto" if self.asked == "never" else ""
        return f"give {nearest.ranks} or more such workers{auto}, which can share it, or {whole}"
