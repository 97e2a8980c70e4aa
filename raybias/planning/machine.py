"""How fast devices are, how workers hold a backbone on them, and which nodes have room.

Seconds of passes are estimated by a roofline, kernel launches and the host's part. A pass over few
tokens is bound by reading weights or launching kernels, so runs that share it are nearly free; one
over many is bound by FLOPs. So a small backbone wants many runs in a pack and a large one few.

Ray is given a kind of GPU or an amount of memory only where some nodes would not do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from raybias.planning.inventory import GPU_LABEL, Node, smallest_gpus


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Constants of one kind of device, and for people their source; times are in seconds.

    peak: FLOP/s of dense products.
    bandwidth: bytes/s of the device's memory.
    reached: share of the peak that a pass over many tokens reaches.
    streamed: share of the bandwidth at which a pass reads weights.
    launch: of one block's kernels in a forward pass, on the host.
    token: of one token in a block beside its products, such as softmax and norms.
    score: of one attention score in a forward pass, where no fused kernel hides it.
    step, run: of the host in every step of a pack, and for each of its runs.
    shard: of the host for one shard of predictions.
    evaluation: of a worker for one evaluation: its report and the checkpoint of its runs.
    link, network: bytes/s between the devices of one node, and between nodes.
    loading: bytes/s at which weights come from a node's disk to the device.
    start: of a worker's process until it loads weights.
    """

    kind: str
    source: str
    peak: float
    bandwidth: float
    reached: float
    streamed: float = 0.5
    launch: float = 0.7e-3
    token: float = 0.0
    score: float = 0.0
    step: float = 1.4e-3
    run: float = 4e-3
    shard: float = 8.7e-3
    evaluation: float = 50e-3
    link: float = 12e9
    network: float = 5e9
    loading: float = 1e9
    start: float = 15.0

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.peak / 1e12:,.3g} TFLOP/s of which long passes reach"
            f" {self.reached:.0%}, {self.bandwidth / 1e12:,.3g} TB/s ({self.source})"
        )

    @property
    def merges(self) -> bool:
        """Whether a step's sequences of several widths share a pass (`Batcher.each_adapter`)."""
        return self.kind != "CPU"

    def work(self, flops: float, read: float) -> float:
        """Return the seconds of FLOPs and of bytes read from the device's memory."""
        return flops / (self.peak * self.reached) + read / (self.bandwidth * self.streamed)

    def load(self, weight_bytes: float) -> float:
        """Return the seconds until a new worker holds the weights."""
        return self.start + weight_bytes / self.loading


#: By kind as Ray names it, from the makers' data sheets; docs/results/gpu.md has what was measured.
GPUS: Final = {
    kind: Speed(
        kind=kind,
        source="data sheet; launches and host as measured on an H100, share reached assumed",
        peak=tflops * 1e12,
        bandwidth=terabytes * 1e12,
        reached=0.55,
        link=link,
    )
    # Dense 16-bit TFLOP/s, TB/s of memory, and bytes/s between two GPUs of a node: NVLink in one
    # direction, else PCIe.
    for kind, tflops, terabytes, link in (
        ("V100", 125.0, 0.9, 150e9),
        ("T4", 65.0, 0.32, 12e9),
        ("A10G", 70.0, 0.6, 12e9),
        ("L4", 121.0, 0.3, 12e9),
        ("L40S", 362.0, 0.864, 12e9),
        ("A100", 312.0, 2.0, 300e9),
        ("A100-40G", 312.0, 1.555, 300e9),
        ("A100-80G", 312.0, 2.0, 300e9),
        ("H100", 989.0, 3.35, 450e9),
        ("H200", 989.0, 4.8, 450e9),
        ("B200", 2250.0, 8.0, 900e9),
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
    """Assumed TFLOP/s of a device and share that long passes reach; None as of its kind."""

    peak: float | None = None
    utilisation: float | None = None

    def speed(self, nodes: Sequence[Node], *, gpus: int, threads: int) -> Speed:
        """Return the speed of the slowest of the nodes' GPUs; without `gpus`, of some cores."""
        if gpus:
            kinds = {node.gpu for node in nodes if node.gpus}
            known = [GPUS.get(kind or "", UNKNOWN_GPU) for kind in sorted(kinds, key=str)]
            found = min(known, key=lambda each: each.peak, default=UNKNOWN_GPU)
        else:
            found = replace(CPU, peak=CPU.peak * threads)
        if self.peak is not None:
            found = replace(found, peak=self.peak * 1e12, source=f"{self.peak:g} TFLOP/s as given")
        return found if self.utilisation is None else replace(found, reached=self.utilisation)


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """What one worker asks of a node: bytes of each GPU (`device`) and of its memory (`host`)."""

    cpus: int
    gpus: int
    device: int = 0
    host: int = 0

    @property
    def devices(self) -> int:
        """GPUs that a worker takes, or CPUs without them."""
        return self.gpus or self.cpus


@dataclass(frozen=True)
class Placement:
    """Nodes that hold workers.

    rooms: nodes with room, and how many workers each holds.
    kinds: of GPU to request from Ray, such as `in(A100,H100)`; empty where all do.
    memory: bytes to request from Ray; 0 where CPUs or GPUs run out before memory.
    """

    need: ResourceRequest
    rooms: tuple[tuple[Node, int], ...]
    kinds: str
    memory: int

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
    def options(self) -> dict[str, Any]:
        """Ray options beside CPUs and GPUs: `memory` and `label_selector`, if they matter."""
        options: dict[str, Any] = {"memory": self.memory} if self.memory else {}
        return options | ({"label_selector": {GPU_LABEL: self.kinds}} if self.kinds else {})

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
    """Place as many workers as there is room for on the nodes `among`, by default all.

    GPUs that Ray cannot tell apart count as the smallest of them.
    """
    smallest = smallest_gpus(nodes)
    rooms, left_out, tight = [], set[str | None](), False
    for node in nodes:
        most = int(min(node.cpus // need.cpus, node.gpus // need.gpus if need.gpus else math.inf))
        count = min(most, node.memory // need.host) if need.host else most
        # Ray would put more workers on it than have room.
        tight |= count < most
        fits = not need.gpus or need.device <= smallest.get(node.gpu, 0)
        if count and fits and (among is None or node in among):
            rooms.append((node, count))
        elif most:
            left_out.add(node.gpu)
    used = {node.gpu for node, _ in rooms}
    kinds = ""
    if need.gpus and left_out - used:
        # Nodes of an unknown kind have no label to ask for.
        names = left_out - used if None in used else used
        listed = ",".join(sorted(kind for kind in names if kind))
        kinds = f"!in({listed})" if None in used else f"in({listed})"
    return Placement(need, tuple(rooms), kinds, need.host if tight else 0)


def by_gpu_speed(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """List all nodes, then those without the slowest GPUs, which a group waits for, and so on."""
    peaks = {GPUS[node.gpu].peak if node.gpu in GPUS else None for node in nodes if node.gpus}
    known = sorted(peak for peak in peaks if peak is not None)
    if len(known) < len(peaks) or not known:
        return [tuple(nodes)]
    return [tuple(n for n in nodes if not n.gpus or GPUS[n.gpu or ""].peak >= p) for p in known]


@dataclass(frozen=True)
class Layout:
    """How a worker holds a backbone.

    tokens: budget of one pass.
    devices: of one worker, over which its layers are split; `passes` run at once on them.
    ranks: workers that share every weight with ZeRO-3, on several nodes if `across`.
    """

    tokens: int
    devices: int = 1
    passes: int = 1
    ranks: int = 1
    across: bool = False

    @property
    def sharded(self) -> bool:
        """Whether several workers share every weight with ZeRO-3."""
        return self.ranks > 1


@dataclass(frozen=True)
class Fit:
    """A layout that fits."""

    layout: Layout
    workers: int
    places: Placement
    speed: Speed
    sharded_takes: float | None = None
    """How many times as long the best layout with ZeRO-3 is estimated to take; None if none fits,
    or this is one."""


def fastest(fits: Sequence[Fit], seconds: Callable[[Fit], float]) -> Fit:
    """Return the layout with the least wall time, of equals that with the longest passes.

    seconds: of all of the work on one worker, or on all that share the backbone.
    """

    def wall_time(fit: Fit) -> float:
        return seconds(fit) / (1 if fit.layout.sharded else fit.places.count)

    best = min(fits, key=lambda fit: (wall_time(fit), -fit.layout.tokens))
    sharded = [wall_time(fit) for fit in fits if fit.layout.sharded]
    if best.layout.sharded or not sharded or not wall_time(best):
        return best
    return replace(best, sharded_takes=min(sharded) / wall_time(best))


def halved(tokens: int, fewest: int) -> list[int]:
    """Return a token budget and its halves down to `fewest`, or itself where it is less."""
    return [tokens >> n for n in range(tokens.bit_length()) if tokens >> n >= min(tokens, fewest)]
