"""Place workers on nodes by the CPUs, GPUs and memory that they ask for.

A worker goes only where it fits. Where some nodes would not do, Ray is told by the kind of
GPU or the memory that is asked for; where all would, it is asked for CPUs and GPUs alone.
It knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raybias.planning.inventory import GPU_LABEL, Node
from raybias.planning.speed import GPUS


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """What one worker asks of a node."""

    cpus: int
    gpus: int
    sharers: int = 1
    """Workers on each GPU."""
    per_gpu: int = 1
    """Places of a GPU, which such workers share evenly."""
    device: int = 0
    """Bytes of each GPU; 0 on CPUs."""
    host: int = 0
    """Bytes of the node's memory."""

    @property
    def places(self) -> int:
        """Places of GPUs that a worker takes, or CPUs without them."""
        return self.gpus * self.per_gpu // self.sharers or self.cpus


@dataclass(frozen=True)
class Placement:
    """Nodes that hold workers."""

    need: ResourceRequest
    rooms: tuple[tuple[Node, int], ...]
    """Nodes, and how many workers each holds; nodes without room are left out."""
    kinds: str
    """Which kinds of GPU Ray must be asked for, such as `in(A100,H100)`; empty where all do."""
    memory: int
    """Bytes of memory that Ray must be asked for; 0 where CPUs or GPUs run out before it."""

    @property
    def count(self) -> int:
        """Workers that all nodes hold together."""
        return sum(count for _, count in self.rooms)

    @property
    def device_memory(self) -> int:
        """Bytes of the smallest device, or node, among them."""
        on_gpu = self.need.gpus > 0
        sizes = [(node.gpu_memory or 0) if on_gpu else node.memory for node, _ in self.rooms]
        return min(sizes, default=0)

    @property
    def speed(self) -> float | None:
        """Peak TFLOP/s of the slowest device; None where a kind is unknown."""
        speeds = [speed_of(node) if self.need.gpus else None for node, _ in self.rooms]
        known = [speed for speed in speeds if speed is not None]
        return min(known) if known and len(known) == len(speeds) else None

    def pending(self, workers: int) -> int:
        """Count the nodes that must still come for so many workers, after those that are there."""
        left, coming = workers, 0
        for node, count in sorted(self.rooms, key=lambda room: (room[0].pending, -room[1])):
            if left <= 0:
                break
            left -= count
            coming += node.pending
        return coming


def speed_of(node: Node) -> float | None:
    """Return the peak TFLOP/s of one of a node's GPUs; None if it is not known."""
    return GPUS[node.gpu].peak / 1e12 if node.gpu in GPUS else None


def places(
    nodes: Sequence[Node], need: ResourceRequest, *, among: Sequence[Node] | None = None
) -> Placement:
    """Place workers of a resource request.

    Parameters
    ----------
    nodes: all there are. GPUs that Ray cannot tell apart count as the smallest of them.
    among: those that may be used; all by default.
    """
    smallest = _smallest(nodes)
    rooms = []
    for node in nodes:
        usable = among is None or node in among
        if usable and (count := min(_by_count(node, need), _by_memory(node, need, smallest))):
            rooms.append((node, count))
    others = [node for node in nodes if _by_count(node, need) and node not in dict(rooms)]
    # Ray must be told of memory where it would put more workers on a node than have room.
    tight = [
        node for node in nodes if need.host and _by_count(node, need) > node.memory // need.host
    ]
    return Placement(
        need=need,
        rooms=tuple(rooms),
        kinds=_kinds({node.gpu for node, _ in rooms}, others) if need.gpus else "",
        memory=need.host if tight else 0,
    )


def by_gpu_speed(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """List all nodes, then those without the slowest GPUs, and so on.

    A group of workers waits for its slowest, so fewer fast ones can be quicker.
    """
    speeds = [speed_of(node) for node in nodes if node.gpus]
    if None in speeds:
        return [tuple(nodes)]
    steps = sorted({speed for speed in speeds if speed is not None}) or [0.0]
    return [tuple(n for n in nodes if not n.gpus or (speed_of(n) or 0) >= s) for s in steps]


def requests(places: Placement) -> dict[str, Any]:
    """Return Ray options beside CPUs and GPUs: `memory` and `label_selector`, if they matter."""
    options: dict[str, Any] = {"memory": places.memory} if places.memory else {}
    return options | ({"label_selector": {GPU_LABEL: places.kinds}} if places.kinds else {})


def _kinds(used: set[str | None], others: Sequence[Node]) -> str:
    """Return Ray's label expression for the kinds that are used, if others must be kept out."""
    out = {node.gpu for node in others} - used
    if not out:
        return ""
    if None in used:
        return f"!in({','.join(sorted(kind for kind in out if kind))})"
    return f"in({','.join(sorted(kind for kind in used if kind))})"


def _smallest(nodes: Sequence[Node]) -> dict[str | None, int]:
    known = [(node.gpu, node.gpu_memory) for node in nodes if node.gpus and node.gpu_memory]
    return {kind: min(size for other, size in known if other == kind) for kind, _ in known}


def _by_count(node: Node, need: ResourceRequest) -> int:
    gpus = node.gpus * need.sharers // need.gpus if need.gpus else math.inf
    return int(min(node.cpus // need.cpus, gpus))


def _by_memory(node: Node, need: ResourceRequest, smallest: dict[str | None, int]) -> int:
    if need.gpus and need.device * need.sharers > smallest.get(node.gpu, 0):
        return 0
    return node.memory // need.host if need.host else _by_count(node, need)
