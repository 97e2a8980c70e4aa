"""How fast devices are, and which nodes have room for workers.

Seconds of passes are estimated by a roofline, launches of kernels, and the host's part. A pass over
few tokens takes as long as reading the weights or launching its kernels, so runs that share it cost
little more than one; over many tokens it takes as long as its FLOPs. This is why a small backbone
wants many runs in a pack and a large one few.

A worker goes only where it fits. Where some nodes would not do, Ray is told by the kind of GPU or
the memory that is asked for; where all would, it is asked for CPUs and GPUs alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from raybias.planning.inventory import GPU_LABEL, Node


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Constants of one kind of device; times are in seconds, rates a second."""

    kind: str
    source: str
    """Where the constants are from, for people."""
    peak: float
    """FLOP/s of dense products."""
    bandwidth: float
    """Bytes/s of the device's memory."""
    reached: float
    """Share of the peak that a pass over many tokens reaches."""
    streamed: float = 0.5
    """Share of the bandwidth at which a pass reads weights."""
    launch: float = 0.25e-3
    """Of one block's kernels in a forward pass, on the host; as much again or a little more in a
    backward one."""
    token: float = 0.0
    """Of one token in a block beside its products, such as softmax and norms, where these are not
    hidden behind others."""
    score: float = 0.0
    """Of one attention score (a query, a key and a head of a block) in a forward pass, where no
    fused kernel hides it, as on GPUs."""
    step: float = 5e-3
    """Of the host in every step of a pack, however many runs it has."""
    run: float = 0.8e-3
    """Of the host in a step for each run: its batch, its AdamW, its bookkeeping."""
    shard: float = 8.7e-3
    """Of the host for one shard of predictions."""
    evaluation: float = 50e-3
    """Of a worker for one evaluation: its report and the checkpoint of its runs."""
    link: float = 12e9
    """Bytes/s between the devices of one node."""
    network: float = 5e9
    """Bytes/s between nodes, which all workers of a node share."""
    loading: float = 1e9
    """Bytes/s at which weights come from a node's disk to the device."""
    start: float = 15.0
    """Of a worker's process until it loads weights."""

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.peak / 1e12:,.3g} TFLOP/s of which long passes reach"
            f" {self.reached:.0%}, {self.bandwidth / 1e12:,.3g} TB/s ({self.source})"
        )

    def work(self, flops: float, read: float) -> float:
        """Return the seconds of the device for FLOPs and bytes read from its memory."""
        return flops / (self.peak * self.reached) + read / (self.bandwidth * self.streamed)

    def shared(self, workers: int) -> Speed:
        """Return what each of so many workers has of a device that all keep busy."""
        return replace(self, peak=self.peak / workers, bandwidth=self.bandwidth / workers)

    def load(self, weight_bytes: float) -> float:
        """Return the seconds until a new worker holds the weights."""
        return self.start + weight_bytes / self.loading


_SHEET: Final = "data sheet; share reached, launches and host assumed"


def _gpu(kind: str, tflops: float, terabytes: float, link: float = 12e9) -> Speed:
    return Speed(
        kind=kind,
        source=_SHEET,
        peak=tflops * 1e12,
        bandwidth=terabytes * 1e12,
        reached=0.55,
        link=link,
    )


#: By kind as Ray names it: dense 16-bit TFLOP/s and TB/s of memory of one GPU, and the bytes/s
#: between two GPUs of a node (NVLink in one direction, else PCIe), from the makers' data sheets.
GPUS: Final = {
    each.kind: each
    for each in (
        _gpu("V100", 125.0, 0.9, 150e9),
        _gpu("T4", 65.0, 0.32),
        _gpu("A10G", 70.0, 0.6),
        _gpu("L4", 121.0, 0.3),
        _gpu("L40S", 362.0, 0.864),
        _gpu("A100", 312.0, 2.0, 300e9),
        _gpu("A100-40G", 312.0, 1.555, 300e9),
        _gpu("A100-80G", 312.0, 2.0, 300e9),
        _gpu("H100", 989.0, 3.35, 450e9),
        _gpu("H200", 989.0, 4.8, 450e9),
        _gpu("B200", 2250.0, 8.0, 900e9),
    )
}
#: A GPU whose kind is not known.
UNKNOWN_GPU: Final = replace(
    GPUS["A10G"], kind="GPU of an unknown kind", source="taken to be as fast as an A10G"
)
#: One core, in float32.
CPU: Final = Speed(
    kind="CPU",
    source="one core of an EPYC in float32, measured; `python benchmarks/speed.py` measures yours",
    peak=100e9,
    bandwidth=10e9,
    reached=0.85,
    streamed=1.0,
    launch=0.6e-3,
    token=1e-6,
    score=14e-9,
    step=3e-3,
    run=3e-3,
    link=8e9,
    start=8.0,
    loading=0.5e9,
)


@dataclass(frozen=True)
class Machine:
    """The assumed speed of devices.

    Attributes
    ----------
    peak: TFLOP/s of one device, None to look it up by the device's kind.
    utilisation: the part of it that a large pass reaches, None for that of the kind.
    """

    peak: float | None = None
    utilisation: float | None = None

    def speed(self, nodes: Sequence[Node], *, gpus: int, threads: int) -> Speed:
        """Return the speed of one worker's device, the slowest of the nodes'.

        Parameters
        ----------
        gpus: of a worker; 0 computes on `threads` cores.
        """
        if gpus:
            kinds = {node.gpu for node in nodes if node.gpus}
            known = [GPUS.get(kind or "", UNKNOWN_GPU) for kind in sorted(kinds, key=str)]
            found = min(known, key=lambda each: each.peak, default=UNKNOWN_GPU)
        else:
            found = replace(CPU, peak=CPU.peak * threads)
        if self.peak is not None:
            found = replace(found, peak=self.peak * 1e12, source=f"{self.peak:g} TFLOP/s as given")
        if self.utilisation is not None:
            found = replace(found, reached=self.utilisation)
        return found


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

    def pending(self, workers: int) -> int:
        """Count the nodes that must still come for so many workers, after those that are there."""
        left, coming = workers, 0
        for node, count in sorted(self.rooms, key=lambda room: (room[0].pending, -room[1])):
            if left <= 0:
                break
            left -= count
            coming += node.pending
        return coming


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
    peaks = {GPUS[node.gpu].peak if node.gpu in GPUS else None for node in nodes if node.gpus}
    known = sorted(peak for peak in peaks if peak is not None)
    if len(known) < len(peaks) or not known:
        return [tuple(nodes)]
    return [tuple(n for n in nodes if not n.gpus or GPUS[n.gpu or ""].peak >= p) for p in known]


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
